"""Which mutants live? A sample over the rooms whose numbers are shown, each tried by its own tests.

All mutants of four rooms would take weeks, so one change a line of code is drawn, and each meets
only the tests that reach its line, the quickest first, until one fails. That test has then to pass
on the code as it is (the control): without it a test that always fails kills everything. The
mutants are cosmic-ray's; the tests of a line are read from one run under coverage. ``README.md``
here has the commands, and what lived.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import itertools
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec
from coverage import CoverageData

REPO = Path(__file__).parents[2]
ROOMS = ("read", "model", "meters", "run")
#: Mutations that ask for arguments, or say nothing of a test: ``is`` of a constant.
LEFT_OUT = re.compile(r"Variable(Replacer|Inserter)|_(Eq|NotEq)_Is|RemoveDecorator")
#: Lines on which a mutation does nothing, or nothing that is not looked for.
QUIET = re.compile(r"TYPE_CHECKING|@dataclass\(|strict=|@lru_cache|@functools.cache")
#: How long the quickest tests of a line may take together, seconds as in the run under coverage.
SPENT_S = 12.0
#: What takes long to import and is not ours: loaded once, before each mutant has a process.
LOADED = ("matplotlib.pyplot", "numba", "pandas", "pyarrow", "scipy.stats", "torch_geometric")
#: What a mutant's process may allocate, bytes: some never end and keep all that they make.
MEMORY = 4 << 30
CLOCK = itertools.count(1_000_000_000)


def unevaluated(tree: ast.AST) -> set[tuple[int, int]]:
    """Where annotations stand (line, column): never evaluated, so a change there does nothing."""
    told = (
        getattr(node, key, None) for node in ast.walk(tree) for key in ("annotation", "returns")
    )
    inside = [part for one in told if isinstance(one, ast.AST) for part in ast.walk(one)]
    return {
        (one.lineno, column)
        for one in inside
        if isinstance(one, ast.expr)
        for column in range(one.col_offset, one.end_col_offset or 0)
    }


def drawn(modules: list[Path], count: int, seed: int) -> list[MutationSpec]:
    """``count`` mutants, of each module in proportion to its lines with any, and one at least."""
    with (
        tempfile.TemporaryDirectory() as folder,
        use_db(str(Path(folder) / "all.sqlite"), WorkDB.Mode.create) as work,
    ):
        init(modules, work, {})
        found = [item.mutations[0] for item in work.work_items]
    lines: dict[Path, dict[int, list[MutationSpec]]] = {module: {} for module in modules}
    source = {module: module.read_text("utf-8") for module in modules}
    told = {module: unevaluated(ast.parse(text)) for module, text in source.items()}
    for one in found:
        line = source[one.module_path].splitlines()[one.start_pos[0] - 1]
        idle = QUIET.search(line) or one.start_pos in told[one.module_path]
        if not LEFT_OUT.search(one.operator_name) and not idle:
            lines[one.module_path].setdefault(one.start_pos[0], []).append(one)
    share = count / max(1, sum(map(len, lines.values())))
    chosen = []
    for module, of in lines.items():
        rng = random.Random(f"{seed} {module}")
        some = rng.sample(sorted(of), min(len(of), max(1, round(len(of) * share))))
        chosen += [rng.choice(sorted(of[line], key=str)) for line in some]
    return chosen


def durations(times: Path) -> dict[str, float]:
    """Seconds of each test, by ``file::name``, from pytest's JUnit file."""
    seconds: dict[str, float] = {}
    for case in ET.parse(times).iter("testcase"):
        if not any(case.iter("failure")) and not any(case.iter("error")):
            path = case.get("classname", "").replace(".", "/") + ".py"
            seconds[f"{path}::{case.get('name')}"] = float(case.get("time", "0"))
    return seconds


def chosen_tests(
    reached: dict[int, list[str]], lines: range, seconds: dict[str, float]
) -> list[str]:
    """The quickest tests that reach these lines, or else the module at all, up to SPENT_S."""

    def known(of: Iterator[str]) -> set[str]:
        return {test for context in of if (test := context.partition("|")[0]) in seconds}

    tests = known(context for line in lines for context in reached.get(line, []))
    tests = tests or known(context for some in reached.values() for context in some)
    quickest = sorted(tests, key=lambda test: (seconds[test], test))
    total = itertools.accumulate(seconds[test] for test in quickest)
    return [test for test, upto in zip(quickest, total, strict=True) if upto <= SPENT_S]


@contextmanager
def changed(path: Path, source: str) -> Iterator[None]:
    """The module with another source; each has a time of its own, else old bytecode is believed."""
    kept = path.read_text("utf-8")
    try:
        path.write_text(source, "utf-8")
        os.utime(path, (stamp := next(CLOCK), stamp))
        yield
    finally:
        path.write_text(kept, "utf-8")
        os.utime(path, (stamp := next(CLOCK), stamp))


def fails(tests: list[str], limit_s: float, log: Path) -> str | None:
    """The first of the tests that fails, "time" or "exit" without one, in a process of its own.

    Forked: torch and pandas are here already, none of ours.
    """
    if not (child := os.fork()):
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        quiet = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-rfE", "--tb=line"]
        os._exit(int(pytest.main([*quiet, "--timeout", str(limit_s), *tests])))
    end = time.monotonic() + limit_s
    try:
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time"
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - |$)", log.read_text(), re.MULTILINE)
    if os.waitstatus_to_exitcode(ended[1]) == 0:
        return None
    return failed[1] if failed else "exit"


def tried(one: MutationSpec, tests: list[str], limit_s: float, log: Path) -> dict[str, str]:
    """What became of a mutant: lived, killed, uncontrolled (its test fails without it, too)."""
    source = one.module_path.read_text("utf-8")
    mutant = mutate_code(source, get_operator(one.operator_name)(), one.occurrence)
    if mutant is None or not tests:
        return {"state": "no test" if mutant else "none"}
    pairs = difflib.unified_diff(source.splitlines(), mutant.splitlines(), lineterm="", n=0)
    said = {"diff": "\n".join(list(pairs)[2:]), "tests": str(len(tests))}
    with changed(one.module_path, mutant):
        by = fails(tests, limit_s, log)
    if by is None:
        return {"state": "lived", **said}
    control = fails([by] if "::" in by else tests, limit_s, log)
    return {"state": "killed" if control is None else "uncontrolled", "by": by, **said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", type=Path, action="append", help="only of these files")
    parser.add_argument("--coverage", type=Path, required=True, help="by pytest --cov-context=test")
    parser.add_argument("--times", type=Path, required=True, help="by pytest --junitxml, same run")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON each, added to")
    asked = parser.parse_args()
    os.chdir(REPO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and the module is put back
    for name in LOADED:
        importlib.import_module(name)
    rooms = [path for room in ROOMS for path in sorted(Path("bench", room).rglob("*.py"))]
    reached = CoverageData(str(asked.coverage))
    reached.read()
    seconds = durations(asked.times)
    done = {json.loads(line)["what"] for line in asked.out.open()} if asked.out.exists() else set()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    mutants = drawn(asked.module or rooms, asked.sample, asked.seed)
    random.Random(asked.seed).shuffle(mutants)  # cut off at any time, it is still a sample
    for one in mutants:
        what = f"{one.module_path}:{one.start_pos[0]} {one.operator_name} {one.occurrence}"
        if what in done:
            continue
        # Measured under the name of the package's link, or of the folder that it leads to.
        names = (str(REPO / one.module_path), str(REPO / "src/gatherbench" / one.module_path))
        by_line: dict[int, list[str]] = defaultdict(list)
        for name in names:
            for line, contexts in reached.contexts_by_lineno(name).items():
                by_line[line] += contexts
        tests = chosen_tests(by_line, range(one.start_pos[0], one.end_pos[0] + 1), seconds)
        limit_s = 30 + 2 * sum(seconds[test] for test in tests)
        outcome = tried(one, tests, limit_s, asked.out.with_suffix(".last.log"))
        with asked.out.open("a") as lines:
            lines.write(json.dumps({"what": what, **outcome}) + "\n")
        counts[str(one.module_path)][outcome["state"]] += 1
        print(outcome["state"], what, outcome.get("by", ""), file=sys.stderr, flush=True)
    for module, states in sorted(counts.items()):
        print(module, dict(states))


if __name__ == "__main__":
    main()
