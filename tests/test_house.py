"""The house: imports run one way, and each file has its place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What each room may import of ours beside itself.
BELOW = {
    "datasets": set[str](),
    "kernels": set[str](),
    "strategies": {"kernels"},
    "bench": {"kernels", "strategies", "datasets"},
}


def files_of(room: Path, pattern: str) -> list[Path]:
    """Without what an editor, a file manager or Python itself may leave there."""
    found = (path.relative_to(room) for path in sorted(room.rglob(pattern)))
    return [
        room / path
        for path in found
        if not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    ]


MODULES = [path for room in BELOW for path in files_of(ROOT / room, "*.py")]


def rooms_imported(code: str, house: str = "gatherbench") -> set[str]:
    """What a module imports of the house's rooms, inside its functions as well."""
    names: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    rooms = re.compile(re.escape(house) + r"\.(\w+)")
    return {match[1] for name in names if (match := rooms.match(name))}


def test_imports_are_found() -> None:
    code = "def f():\n    from gatherbench import datasets\n    import gatherbench.kernels.x as x"
    assert rooms_imported(code + "\nimport torch") == {"datasets", "kernels"}
    assert rooms_imported("from gatherbench.bench.show import x", "gatherbench.bench") == {"show"}


@pytest.mark.parametrize("room", BELOW)
def test_imports_run_one_way(room: str) -> None:
    modules = [path for path in MODULES if path.is_relative_to(ROOT / room)]
    assert modules
    wrong = {
        str(path.relative_to(ROOT)): above
        for path in modules
        if (above := rooms_imported(path.read_text("utf-8")) & set(BELOW) - BELOW[room] - {room})
    }
    assert wrong == {}


def rooms_of_the_harness() -> dict[str, set[str]]:
    """What each folder of ``bench/`` imports of the others."""
    bench = ROOT / "bench"
    rooms = {path.name for path in bench.iterdir() if files_of(bench, f"{path.name}/**/*.py")}
    used: dict[str, set[str]] = {room: set() for room in rooms}
    for room in rooms:
        for path in files_of(bench / room, "*.py"):
            used[room] |= rooms_imported(path.read_text("utf-8"), "gatherbench.bench")
        used[room] = used[room] & rooms - {room}
    return used


def test_rooms_of_the_harness_do_not_lean_on_each_other() -> None:
    """They can be put in an order in which each imports only of those before it."""
    waiting = rooms_of_the_harness()
    assert {"figures", "report", "show", "linkmodel"} <= set(waiting)
    while ready := {room for room, used in waiting.items() if not used & set(waiting)}:
        waiting = {room: used for room, used in waiting.items() if room not in ready}
    assert waiting == {}


def test_everything_on_the_harness_floor_has_its_place_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## Where a line belongs, in `bench/`")[1].split("\n## ")[0]
    bench = ROOT / "bench"
    files = {path.name for path in bench.glob("*.py") if not path.name.startswith(".")}
    inside = (path.relative_to(bench) for path in files_of(bench, "*.*"))
    rooms = {f"{path.parts[0]}/" for path in inside if len(path.parts) > 1}
    assert set(re.findall(r"`([\w./-]+)`", table)) - {"gatherbench"} == files | rooms
