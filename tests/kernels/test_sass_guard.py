"""The guard over machine code: what it reads, its verdicts, and regressions that it must catch."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gatherbench.kernels import sass
from gatherbench.kernels.compiler import (
    ARCHITECTURES,
    CompilerError,
    compiler_version,
    kernel_source,
)
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.sass import KernelCode, compare, guarded_points, measure, verdicts

WIDE = GridPoint("circular", 16, 32, 1, 4)
CODE = KernelCode(40, 0, 200, {"LDG.64": 2, "LDG.EF.128": 4, "STG.EF.128": 4})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@pytest.fixture(scope="module")
def right(folder: Path) -> KernelCode:
    return measure([WIDE], ["sm_90"], folder=folder)[f"sm_90/{WIDE.kernel}"]


def measured(folder: Path, source: str, *options: str) -> KernelCode:
    code = measure([WIDE], ["sm_90"], source=source, extra_options=options, folder=folder)
    return code[f"sm_90/{WIDE.kernel}"]


def altered(right: str, wrong: str) -> str:
    source = kernel_source()
    assert right in source, f"the kernel no longer contains {right!r}"
    return source.replace(right, wrong)


def test_the_baseline_has_every_guarded_kernel_and_none_spills() -> None:
    _, kernels = sass.read_baseline()
    assert kernels.keys() == {f"{a}/{p.kernel}" for a in ARCHITECTURES for p in guarded_points()}
    for arch in ARCHITECTURES:
        for point in guarded_points():
            code = kernels[f"{arch}/{point.kernel}"]
            assert code.spills == code.stack_bytes == 0
            assert code.registers <= 64, "1024 threads of a block must fit"
            assert code.table_load_bits == 8 * point.width
            assert code.table_loads >= point.rows * point.loads


def test_the_kernel_reads_as_its_point_says(right: KernelCode) -> None:
    assert right.memory["LDG.EF.128"] == right.memory["STG.EF.128"] == WIDE.loads
    assert right.spills == 0
    assert right.resident_warps >= 32


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_sample_of_kernels_is_as_in_the_baseline(folder: Path, arch: str) -> None:
    made_by, baseline = sass.read_baseline()
    if made_by != f"NVRTC {compiler_version()}":
        pytest.skip(f"the baseline was made by {made_by}")
    now = measure([WIDE, GridPoint("idle", 4, 0, 1, 4)], [arch], folder=folder)
    assert {v.status for v in verdicts({n: baseline[n] for n in now}, now)} == {"SAME"}
    assert {n: code.cubin for n, code in now.items()} == {n: baseline[n].cubin for n in now}


def test_only_a_cubin_that_is_new_is_disassembled(
    folder: Path, right: KernelCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    other = GridPoint("idle", 4, 0, 1, 4)
    monkeypatch.setattr(sass, "disassemble", lambda cubin: read.append(cubin) or CODE)
    found = measure([WIDE, other], ["sm_90"], folder=folder, known=[right])
    assert len(read) == 1
    assert found == {f"sm_90/{WIDE.kernel}": right, f"sm_90/{other.kernel}": CODE}
    starved = altered("__launch_bounds__(1024)", "")
    measure([WIDE], ["sm_90"], source=starved, folder=folder, known=[right])
    assert len(read) == 2


def test_an_unaligned_variant_is_caught(folder: Path, right: KernelCode) -> None:
    # What a kernel must do that cannot rely on 16 B alignment: four accesses for one.
    narrow = altered(
        "return wanted ? __ldcs(from) : Word{};",
        """
        union { Word word; unsigned part[sizeof(Word) / 4]; } whole{};
        const unsigned* parts = reinterpret_cast<const unsigned*>(from);
        if (wanted)
          for (int i = 0; i < int(sizeof(Word) / 4); ++i) whole.part[i] = __ldcs(parts + i);
        return whole.word;""",
    )
    status, reason = compare(right, measured(folder, narrow))
    assert status == "WORSE"
    assert "bits of the narrowest table load 128 -> 32" in reason


def test_a_spill_is_caught(folder: Path, right: KernelCode) -> None:
    starved = altered("__launch_bounds__(1024)", "")
    status, reason = compare(right, measured(folder, starved, "--maxrregcount=24"))
    assert status == "WORSE"
    assert "spills 0 -> " in reason


def test_lost_loads_in_flight_are_caught(folder: Path, right: KernelCode) -> None:
    status, reason = compare(right, measured(folder, altered("k < LOADS", "k < 1")))
    assert status == "WORSE"
    assert "table loads in the code 4 -> 1" in reason


@pytest.mark.parametrize(
    ("new", "status", "reason"),
    [
        (CODE, "SAME", ""),
        (replace(CODE, instructions=190), "CHANGED", "instructions 200 -> 190"),
        (replace(CODE, registers=39), "CHANGED", "registers 40 -> 39"),
        (replace(CODE, registers=32), "BETTER", "warps that registers allow 51 -> 64"),
        (replace(CODE, registers=56), "WORSE", "warps that registers allow 51 -> 36"),
        (replace(CODE, stack_bytes=8), "WORSE", "stack bytes 0 -> 8"),
        (
            replace(CODE, registers=32, memory={**CODE.memory, "STL.32": 1}),
            "WORSE",
            "spills 0 -> 1",
        ),
        (
            replace(CODE, memory={**CODE.memory, "LDG.EF.128": 8}),
            "CHANGED",
            "LDG.EF.128 4 -> 8",
        ),
    ],
)
def test_a_verdict_has_a_reason(new: KernelCode, status: str, reason: str) -> None:
    assert compare(CODE, new) == (status, reason)


def test_kernels_that_come_and_go_are_changes() -> None:
    found = verdicts({"old": CODE}, {"new": CODE})
    assert [(v.kernel, v.status, v.reason) for v in found] == [
        ("new", "CHANGED", "not in the baseline"),
        ("old", "CHANGED", "no longer compiled"),
    ]


def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GATHERBENCH_KERNEL_CACHE", str(tmp_path / "cubins"))
    monkeypatch.setattr(sass, "guarded_points", lambda: [WIDE])
    file = tmp_path / "baseline.json"
    arguments = ["--baseline", str(file), "--arch", "sm_90"]
    assert sass.main(["--check", *arguments]) == 2
    assert sass.main(["--update", *arguments]) == 0
    assert sass.main(["--check", *arguments]) == 0
    assert "1 SAME, 0 BETTER, 0 CHANGED, 0 WORSE" in capsys.readouterr().out

    text = re.sub('"cubin": "[0-9a-f]+"', '"cubin": "another"', file.read_text())
    file.write_text(text.replace('"LDG.EF.128": 4', '"LDG.EF.128": 5').replace("13.", "12."))
    assert sass.main(["--check", *arguments]) == 1
    out = capsys.readouterr().out
    assert f"WORSE   sm_90/{WIDE.kernel}: table loads in the code 5 -> 4" in out
    assert "the baseline was made by NVRTC 12." in out


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(CompilerError, match="failed"):
        sass.disassemble(b"not a cubin")


def test_a_missing_disassembler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    monkeypatch.setattr(cuda.pathfinder, "find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(CompilerError, match="pip install nvidia-cuda-cuobjdump"):
        sass.disassemble(b"")
