"""The house: imports run one way, and each file has its place."""

import ast
import re
from graphlib import TopologicalSorter
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
#: The rooms of ``bench/``, each of which imports only of those before it.
ROOMS = (
    *("machine", "plan", "sampling", "meters", "run", "neighbours", "read", "model", "show"),
    *("probe", "regress", "commands"),
)
HARNESS = {f"bench/{room}": set(ROOMS[:number]) for number, room in enumerate(ROOMS)}


def files_of(room: Path, pattern: str) -> list[Path]:
    """Without what an editor, a file manager or Python itself may leave there."""
    found = (path.relative_to(room) for path in sorted(room.rglob(pattern)))
    return [
        room / path
        for path in found
        if not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    ]


MODULES = [path for room in BELOW for path in files_of(ROOT / room, "*.py")]


def modules_imported(code: str) -> set[str]:
    """What a module may import of ours, inside its functions as well: modules, or names in them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(code: str, house: str = "gatherbench") -> set[str]:
    """What a module imports of the house's rooms."""
    rooms = re.compile(re.escape(house) + r"\.(\w+)")
    return {match[1] for name in modules_imported(code) if (match := rooms.match(name))}


def test_imports_are_found():
    code = "def f():\n    from gatherbench import datasets\n    import gatherbench.kernels.x as x"
    assert rooms_imported(code + "\nimport torch") == {"datasets", "kernels"}
    assert rooms_imported("from gatherbench.bench.show import x", "gatherbench.bench") == {"show"}


@pytest.mark.parametrize(
    ("room", "below", "house"),
    [
        *((room, below, "gatherbench") for room, below in BELOW.items()),
        *((room, below, "gatherbench.bench") for room, below in HARNESS.items()),
    ],
)
def test_imports_run_one_way(room, below, house):
    modules = files_of(ROOT / room, "*.py")
    assert modules
    rooms = set(BELOW if house == "gatherbench" else ROOMS) - below - {Path(room).name}
    wrong = {
        str(path.relative_to(ROOT)): above
        for path in modules
        if (above := rooms_imported(path.read_text("utf-8"), house) & rooms)
    }
    assert wrong == {}


def test_no_file_of_the_datasets_imports_itself_by_way_of_others():
    files = {
        ".".join(["gatherbench", *path.relative_to(ROOT).with_suffix("").parts]): path
        for path in files_of(ROOT / "datasets", "*.py")
    }
    below = {
        name: modules_imported(path.read_text("utf-8")) & files.keys() - {name}
        for name, path in files.items()
    }
    assert below["gatherbench.datasets.dataset"] == set(), "the format stands on nothing"
    TopologicalSorter(below).prepare()  # raises CycleError, and names the circle


def test_the_product_needs_nothing_that_is_not_shipped():
    aside = re.compile(r"^\s*(?:from|import) (?:tools|helpers|examples|notebooks)\b", re.MULTILINE)
    assert aside.search("    from tools.sass import disassemble")
    assert [path for path in MODULES if aside.search(path.read_text("utf-8"))] == []


def test_the_harness_has_no_loose_modules_and_contributing_names_its_rooms():
    bench = ROOT / "bench"
    assert {path.relative_to(bench).parts[0] for path in files_of(bench, "*/**/*.py")} == set(ROOMS)
    assert [path.name for path in files_of(bench, "*.py") if path.parent == bench] == ["cli.py"]
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## Where a line belongs, in `bench/`")[1].split("\n## ")[0]
    assert set(re.findall(r"`([\w.-]+)/`", table)) == set(ROOMS)
