"""Guard the kernels' machine code against regressions, without a GPU.

A gather over the link needs wide, independent loads and enough resident warps. Both can be read
from the machine code: registers, stack, and every memory instruction with its width. The code is
deterministic for one compiler, so the comparison with a baseline is exact: one byte that differs
is a change, and the commit that makes it renews the baseline. The test suite, which runs the source
on the host, checks that it is correct. A cubin with the bytes of the baseline's is not disassembled
again, because nvdisasm takes most of the time.

    python -m tools.sass --check     compare; exit code 1 unless all is SAME
    python -m tools.sass --update    write a new baseline
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from gatherbench.kernels.compiler import (
    ARCHITECTURES,
    KERNEL_SOURCE,
    CompilerError,
    compile_gather,
    compiler_version,
)
from gatherbench.kernels.grid import IN_FLIGHT, SHIFTS, WIDTHS, GridPoint

BASELINE = Path(__file__).resolve().with_name("sass_baseline.json")

#: A load or store in SASS (CUDA Binary Utilities, "Instruction Set Reference"): LDG and STG access
#: global memory, LDL and STL local memory, which holds spilled registers.
_MEMORY = re.compile(r"\b(LDG|STG|LDL|STL|LD|ST|RED|REDG|ATOM|ATOMG)((?:\.\w+)*)\s")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/", re.MULTILINE)
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
#: Registers of an SM, and the unit in which a warp gets them (CUDA C++ Programming
#: Guide, "Technical Specifications per Compute Capability"; the same from sm_75 to sm_100).
_SM_REGISTERS, _REGISTER_UNIT = 65536, 256

STATUSES = ("SAME", "CHANGED", "WORSE")
#: Counts whose growth makes a kernel worse, and those whose decrease does. More table loads in the
#: code may be mere unrolling; fewer mean fewer in flight.
_WORSE_MORE = ("spills", "stack bytes")
_WORSE_FEWER = (
    "bits of the narrowest table load",
    "warps that registers allow",
    "table loads in the code",
)


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The contents of one kernel's machine code.

    Attributes:
        registers: per thread.
        stack_bytes: per thread; spilled registers lie here.
        instructions: in the code, each counted once.
        memory: memory instructions by kind and bits, e.g. ``LDG.EF.128``. EF (evict first) marks
            the streaming accesses to table and output.
        cubin: SHA-256 of the cubin.
    """

    registers: int
    stack_bytes: int
    instructions: int
    memory: Mapping[str, int]
    cubin: str = field(default="", compare=False)

    def counts(self) -> Counter[str]:
        """Return all counts of the code, with those that follow from them."""
        table = {kind: n for kind, n in self.memory.items() if kind.startswith("LDG.EF")}
        local = [n for kind, n in self.memory.items() if kind.startswith(("LDL", "STL"))]
        unit = -(-self.registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        return Counter(
            {
                "spills": sum(local),
                "stack bytes": self.stack_bytes,
                "bits of the narrowest table load": min(
                    (int(kind.rpartition(".")[2]) for kind in table), default=0
                ),
                "warps that registers allow": min(64, _SM_REGISTERS // unit),
                "table loads in the code": sum(table.values()),
                "registers": self.registers,
                "instructions": self.instructions,
                **self.memory,
            }
        )


class Baseline(NamedTuple):
    """The code of a source's kernels, and the compiler that made it."""

    compiler: str
    kernels: Mapping[str, KernelCode]


class Verdict(NamedTuple):
    """``status`` is one of :data:`STATUSES`."""

    kernel: str
    status: str
    reason: str


def disassemble(cubin: bytes) -> KernelCode:
    """Read registers, stack and memory instructions from a cubin.

    Raises:
        CompilerError: nvdisasm or cuobjdump is missing, or cannot read the cubin.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _tool("cuobjdump", "-res-usage", str(path))
        code = _tool("nvdisasm", "-c", "-ndf", str(path))
    resources = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if resources is None:
        raise CompilerError(f"cuobjdump shows no resources of the kernel:\n{usage[:500]}")
    memory = Counter(_kind(match[1], match[2].split(".")[1:]) for match in _MEMORY.finditer(code))
    instructions = len(_INSTRUCTION.findall(code))
    return KernelCode(
        int(resources[1]),
        int(resources[2]),
        instructions,
        dict(sorted(memory.items())),
        _digest(cubin),
    )


def kernel_points() -> Iterator[GridPoint]:
    """Give a point per kernel that can be compiled: shift x width x mapping x in flight x ids."""
    for shift, width, lanes, (rows, loads), index_bytes in itertools.product(
        SHIFTS, WIDTHS, (32, 0), IN_FLIGHT, (4, 8)
    ):
        if lanes or rows == 1:
            yield GridPoint(shift, width, lanes, rows, loads, index_bytes)


def guarded_points() -> list[GridPoint]:
    """Return the kernels that are guarded: int64 ids, and several loads in flight."""
    several = (p for p in kernel_points() if p.rows * p.loads > 1)
    return [p for p in several if p.index_bytes == 8]


def measure(
    points: Iterable[GridPoint],
    architectures: Iterable[str] = ARCHITECTURES,
    *,
    source: str | None = None,
    known: Iterable[KernelCode] = (),
) -> dict[str, KernelCode]:
    """Compile and disassemble kernels; the keys are ``architecture/kernel``.

    A cubin with the bytes of a ``known`` one is not disassembled.
    """
    by_cubin = {code.cubin: code for code in known}

    def one(job: tuple[str, GridPoint]) -> tuple[str, KernelCode]:
        arch, point = job
        cubin = compile_gather(point, arch, source=source)
        return f"{arch}/{point.kernel}", by_cubin.get(_digest(cubin)) or disassemble(cubin)

    with ThreadPoolExecutor(2) as pool:
        jobs = itertools.product(architectures, points)
        return dict(pool.map(one, jobs))


def compare(old: KernelCode | None, new: KernelCode) -> tuple[str, str]:
    """Return the verdict on one kernel and its reason; only identical machine code is SAME."""
    if old is None:
        return "CHANGED", "not in the baseline"
    if (old, old.cubin) == (new, new.cubin):
        return "SAME", ""
    before, after = old.counts(), new.counts()
    differ = [
        f"{name} {before[name]} -> {after[name]}"
        for name in before | after
        if before[name] != after[name]
    ]
    worse = any(after[name] > before[name] for name in _WORSE_MORE)
    worse |= any(after[name] < before[name] for name in _WORSE_FEWER)
    return "WORSE" if worse else "CHANGED", "; ".join(differ) or "other instructions, as many"


def verdicts(old: Mapping[str, KernelCode], new: Mapping[str, KernelCode]) -> list[Verdict]:
    """Return a verdict for each kernel of ``new``, then for each that is in ``old`` alone."""
    compared = [Verdict(name, *compare(old.get(name), code)) for name, code in new.items()]
    gone = [Verdict(name, "CHANGED", "no longer compiled") for name in old if name not in new]
    return compared + gone


def read_baseline(path: Path = BASELINE) -> Baseline:
    """Read a baseline file.

    Raises:
        FileNotFoundError: there is no such file; ``--update`` writes it.
    """
    data = json.loads(path.read_text())
    kernels = {name: KernelCode(**code) for name, code in data["kernels"].items()}
    return Baseline(data["compiler"], kernels)


def write_baseline(baseline: Baseline, path: Path = BASELINE) -> None:
    """Write a baseline, one kernel a line, so that a diff shows which kernels changed."""
    kernels = ",\n".join(
        f'  "{name}": {json.dumps(asdict(code))}' for name, code in sorted(baseline.kernels.items())
    )
    path.write_text(f'{{"compiler": "{baseline.compiler}", "kernels": {{\n{kernels}\n}}}}\n')


def report(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Give the lines that ``--check`` prints: the reasons, and a count of each status."""
    verdicts = list(verdicts)
    for verdict in verdicts:
        if verdict.status != "SAME":
            yield f"{verdict.status:8s}{verdict.kernel}: {verdict.reason}"
    counts = Counter(verdict.status for verdict in verdicts)
    yield ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    if counts.total() > counts["SAME"]:
        yield f"where that is meant, renew {BASELINE.name} with it: make regress-code UPDATE=1"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, 1 where a kernel changed, or 2 where nothing was compared."""
    parser = argparse.ArgumentParser(prog="python -m tools.sass", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare with the baseline")
    action.add_argument("--update", action="store_true", help="write the baseline anew")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE")
    parser.add_argument("--source", type=Path, default=KERNEL_SOURCE, metavar="FILE")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="only this one")
    options = parser.parse_args(arguments)
    try:
        checked = (_update if options.update else _check)(options, options.arch or ARCHITECTURES)
    except (CompilerError, FileNotFoundError) as missing:
        print(f"cannot compare: {missing}", file=sys.stderr)
        return 2
    print(*report(checked), sep="\n")
    return int(any(verdict.status != "SAME" for verdict in checked))


def _check(options: argparse.Namespace, architectures: Sequence[str]) -> list[Verdict]:
    old = read_baseline(options.baseline)
    if old.compiler != _compiler():
        raise CompilerError(
            f"the baseline was made by {old.compiler}, this is {_compiler()}: install the version "
            "of constraints.txt, or renew the baseline in a commit of its own"
        )
    source, known = options.source.read_text(), old.kernels.values()
    new = measure(guarded_points(), architectures, source=source, known=known)
    kept = {name: c for name, c in old.kernels.items() if name.split("/")[0] in architectures}
    return verdicts(kept, new)


def _update(options: argparse.Namespace, architectures: Sequence[str]) -> list[Verdict]:
    kernels = measure(guarded_points(), architectures, source=options.source.read_text())
    write_baseline(Baseline(_compiler(), kernels), options.baseline)
    return verdicts(kernels, kernels)


def _compiler() -> str:
    """Return the compiler with its build, because two builds of one version may differ."""
    try:
        return f"NVRTC {importlib.metadata.version('nvidia-cuda-nvrtc')}"
    except importlib.metadata.PackageNotFoundError:
        return f"NVRTC {compiler_version()}"


def _digest(cubin: bytes) -> str:
    return hashlib.sha256(cubin).hexdigest()


def _kind(opcode: str, modifiers: list[str]) -> str:
    bits = next((_BITS[m] for m in modifiers if m in _BITS), 32)
    return ".".join([opcode, *(["EF"] if "EF" in modifiers else []), str(bits)])


def _tool(name: str, *arguments: str) -> str:
    from cuda.pathfinder import find_nvidia_binary_utility

    path = find_nvidia_binary_utility(name)
    if path is None:
        raise CompilerError(f"{name} not found: install it with `pip install nvidia-cuda-{name}`")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerError(f"{name} failed: {done.stderr[:1000]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
