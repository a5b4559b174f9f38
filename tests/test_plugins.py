"""Other people's packages: found, measured like ours, and harmless where they are broken."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from tests.bench.observations import rows_of_run
from typer.testing import CliRunner

from gatherbench import plugins
from gatherbench.bench.cli import app
from gatherbench.bench.meters import registry as meters
from gatherbench.bench.plan.plan import Plan, PlanError
from gatherbench.bench.run.rows import table_of
from gatherbench.bench.show.looks import colour_of
from gatherbench.datasets import registry as datasets
from gatherbench.datasets.dataset import DatasetError
from gatherbench.strategies import conformance
from gatherbench.strategies import registry as strategies

EXAMPLES = Path(__file__).parents[1] / "examples"
Announce = Callable[..., None]


def write(
    folder: Path, package: str, code: str, entries: dict[str, str], kind: str = "strategies"
) -> None:
    """An installed package ``package`` 1.2 of one module: name → what of the module it loads."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = [f"{name} = {module}:{what}" for name, what in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[gatherbench.{kind}]", *lines]))


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Announce]:
    """Installs packages for one test: arguments of :func:`write` after the folder."""
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def do(*arguments: object, **more: object) -> None:
        write(tmp_path, *arguments, **more)  # type: ignore[arg-type]
        plugins._entries.cache_clear()

    yield do
    plugins._entries.cache_clear()
    for module in set(sys.modules) - modules:
        if getattr(sys.modules[module], "__file__", None) == str(tmp_path / f"{module}.py"):
            del sys.modules[module]


#: What an abstract strategy lacks, and the clock's meter.
CONCRETE = "    skip = data_path = _open = lambda *_: None"
CLOCK = "from gatherbench.bench.meters.cpu import WallClockMeter\n"


def strategy(body: str = "", fields: str = "", base: str = "CpuGather") -> str:
    return f"""
from dataclasses import dataclass
from typing import ClassVar, Literal
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.cpu_gather import CpuGather

@dataclass(frozen=True)
class Own({base}):
    name: ClassVar[str] = "own"
    summary: ClassVar[str] = "somebody's own"
    role = "other"
    {fields}
{body}
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit('needs a GPU')", "SystemExit: needs a GPU"),
        ("Other = 1", "AttributeError: .* 'Own'"),
        ("Own = dict", "no subclass of gatherbench.strategies.base.Strategy"),
        (strategy(base="Strategy"), "TypeError: Can't instantiate abstract class Own"),
        (strategy(CONCRETE, "depth: Literal['1']", "Strategy"),
         "TypeError: .*missing 1 required positional argument: 'depth'"),
        (strategy(fields="depth: int = 3"), "Literal of words, the default first: depth"),
        (strategy(fields="mode: Literal['naive', 'pinned'] = 'pinned'"), "the default first$"),
        (strategy(CONCRETE, "mode: Literal['fast', 'null'] = 'fast'", "Strategy"),
         "pandas reads 'null' as a missing value"),
        (strategy("Own.name = 'another'"), "calls itself 'another'"),
        (strategy("Own.name = '../own'"), "a name of letters"),
        (strategy("Own.summary = ''"), "needs a summary"),
        *(
            (strategy(f"Own.role = {role!r}"), f"its role is {role}, which ours alone have")
            for role in ("baseline", "conventional", "upper_bound", "no_fetch", "choice", "mine")
        ),
        (strategy("Own.role = property(lambda o: 'no_fetch' if o.mode == 'naive' else 'other')"),
         "no_fetch"),
        (strategy("raise ValueError('\\x1b[31mred\\x1b[0m\\nlines' + 'x' * 9999)"),
         r"ValueError: red \| linesx+…$"),
    ],
)  # fmt: skip
def test_a_broken_strategy_is_named_with_its_package_and_stops_nothing(announce, code, said):
    announce("a-good-one", strategy().replace('"own"', '"good"'), {"good": "Own"})
    announce("their-package", code, {"own": "Own"})
    names = r"^own of their-package 1\.2 \(gatherbench\.strategies\) cannot be used: "
    with pytest.warns(RuntimeWarning, match=names + f".*{said}") as told:
        assert [usable.name for usable in strategies.PLUGINS.usable()] == ["good"]
    assert len(told) == 1
    assert strategies.get("cpu_gather") is strategies.CpuGather
    assert strategies.get("good").name == "good"
    with pytest.raises(PlanError, match=f"^plan p: strategy: {names[1:]}.*{said}"):
        plan_of("own").cases()


def test_names_that_pandas_reads_as_missing_are_refused(announce):
    """Rows of that name would vanish for whoever reads them as FORMAT says."""
    announce("their-package", strategy().replace('"own"', "'null'"), {"null": "Own"})
    said = "null of their-package 1.2 .*pandas reads 'null' as a missing value"
    with pytest.warns(RuntimeWarning, match=said):
        assert strategies.PLUGINS.usable() == []
    with pytest.raises(ValueError, match=said):
        strategies.get("null")
    announce("a-meter", f"{CLOCK}class Own(WallClockMeter):\n    name = 'nan'\n    units = {{}}\n"
             "    def end(self): return {}", {"nan": "Own"}, kind="meters")  # fmt: skip
    with pytest.warns(RuntimeWarning, match="pandas reads 'nan' as a missing value"):
        assert [type(meter) for meter in meters.open_meters()] == list(meters.METERS)
    announce("a-graph", GRAPH_AND_METER.replace('"ring"', '"NA"'), {"NA": "Ring"}, kind="datasets")
    with pytest.warns(RuntimeWarning, match="pandas reads 'NA' as a missing value"):
        assert datasets.list_sources() == datasets.SOURCES


def test_every_name_of_ours_is_read_back():
    names = {text for kind in strategies.STRATEGIES for one in strategies.variants(kind)
             for text in (one.name, one.variant)}  # fmt: skip
    names |= {meter.name for meter in meters.METERS} | {s.name for s in datasets.SOURCES}
    text = "name\n" + "".join(f'"{name}"\n' for name in sorted(names))
    assert pd.read_csv(io.StringIO(text))["name"].notna().all()


def plan_of(*names: str) -> Plan:
    tables = {"workload": [{"dataset": "wordnet"}], "strategy": [{"name": name} for name in names]}
    return Plan.model_validate({"name": "p", **tables})


def test_a_name_that_is_taken_stays_with_its_owner(announce):
    own = strategy()
    announce("b-second", own, {"own": "Own"})
    announce("a-first", own + "Ours = type('Ours', (Own,), {'name': 'cpu_gather'})",
             {"own": "Own", "cpu_gather": "Ours"})  # fmt: skip
    with pytest.warns(RuntimeWarning) as told:
        (usable,) = strategies.PLUGINS.usable()
    assert usable.__module__ == "a_first"
    assert strategies.get("own") is usable
    assert strategies.get("cpu_gather") is strategies.CpuGather
    assert {name: str(of) for name, of in strategies.PLUGINS.packages().items()} == {
        "own": "a-first 1.2"
    }
    assert [str(warning.message).partition(" (")[0] for warning in told] == [
        "cpu_gather of a-first 1.2", "own of b-second 1.2",
    ]  # fmt: skip
    assert all("the name is taken" in str(warning.message) for warning in told)


def test_names_are_known_before_anything_is_imported(announce):
    announce("their-package", "raise AssertionError('imported')", {"own": "Own"})
    with pytest.raises(ValueError, match=r"there are cpu_gather, .*, own; did you mean 'own'\?$"):
        strategies.get("owm")
    assert "their_package" not in sys.modules


def test_every_other_strategy_of_a_plan_is_ours(announce):
    announce("their-package", strategy(), {"own": "Own"})
    every = (kind() for kind in strategies.STRATEGIES)
    ours = {one.name for one in every if not one.needs & {"ranks", "file"}}
    assert {case.strategy for case in plan_of("*").cases()} == ours
    assert {case.strategy for case in plan_of("own", "*").cases()} == {"own", *ours}


def test_a_strategy_of_another_package_has_its_own_colour(announce):
    announce("their-package", strategy("Own.colour = 'sky'"), {"own": "Own"})
    announce("another", strategy("Own.name = Own.colour = 'mauve'"), {"mauve": "Own"})
    assert (colour_of("own"), colour_of("mauve")) == ("sky", "yellow"), "mauve is no colour here"


def test_a_broken_dataset_is_the_registrys_own_error(announce):
    announce("their-package", "class Own: name = 'own'", {"own": "Own"}, kind="datasets")
    said = "own of their-package 1.2 .*: it lacks something of .*GraphSource"
    with pytest.warns(RuntimeWarning, match=said):
        assert datasets.list_sources() == datasets.SOURCES
    with pytest.raises(DatasetError, match=said):
        datasets.get_source("own")


#: A meter that reports one metric of this name.
TOLD = """
from gatherbench.bench.meters.cpu import WallClockMeter
class Own(WallClockMeter):
    name, summary = 'own', 'a test'
    units = dict([("{0}", "1")])
    def end(self): return dict([("{0}", 1.0)])
"""


#: A meter that does not say what it is.
MUTE = """
from gatherbench.bench.meters.base import Meter
class Own(Meter):
    name, units = 'mute', dict(own_count='1')
    def begin(self): pass
    def end(self): return dict(own_count=1.0)
"""


def test_a_meter_is_tried_by_its_name(announce):
    announce("third", MUTE, {"mute": "Own"}, kind="meters")
    announce("their-package", TOLD.format("own_count"), {"own": "Own"}, kind="meters")
    announce("another", TOLD.format("cpu_user"), {"thief": "Own"}, kind="meters")

    def tried(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["check", *words])
        return done.exit_code, done.output

    assert tried("meter", "own") == (0, "own_count: 1 (a test)\n")
    code, said = tried("meter", "clock")
    assert code == 0
    assert said.startswith("window_time: 0.5")
    code, said = tried("meter", "own", "--json")
    assert json.loads(said)[0] | {"source": ""} == {
        "metric": "own_count", "value": 1.0, "unit": "1", "source": "", "reason": "",
    }  # fmt: skip
    for words, told in (
        (("meter", "clok"), "no meter is called 'clok'"),
        (("meter", "thief"), "its metric cpu_user is of cpu"),
        (("meter", "mute"), "it lacks summary, lost, trust"),
        (("meter",), "there are cpu_gather"),
        (("a", "b"), "expected one strategy, or `meter` and the name of one"),
    ):
        code, said = tried(*words)
        assert code == 2
        assert told in " ".join(said.split())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Own: name = 'own'", "it is no gatherbench.bench.meters.base.Meter"),
        (f"{CLOCK}class Own(WallClockMeter):\n    name = 'own'\n    def probe(self): 1 / 0",
         "ZeroDivisionError"),
        (f"{CLOCK}class Own(WallClockMeter): name = 'own'",
         "its metric window_time is of clock: give it a name of its own"),
        (TOLD.format("Watts"), "its metric 'Watts': lower-case letters, digits and _ alone"),
        (TOLD.format("wall_time"), "its metric wall_time is of the loop"),
        (TOLD.replace("1.0", "1 / 0").format("own"), "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_broken_meter_leaves_ours(announce, code, said):
    announce("their-package", code, {"own": "Own"}, kind="meters")
    with pytest.warns(RuntimeWarning, match=f"own of their-package 1.2 .*{said}"):
        assert [type(meter) for meter in meters.open_meters()] == list(meters.METERS)


#: A graph and a meter of one's own.
GRAPH_AND_METER = '''
import numpy as np
from gatherbench.bench.meters.base import Meter
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.writer import DatasetWriter

class Ring:
    """Each node's neighbours are the next three."""
    name, summary, scalable = "ring", "a ring of 300 nodes", False

    def estimate(self, scale):
        return DatasetSpec("ring", 1.0, 300, 900, 5, "float32", 3, "made", "none")

    def prepare(self, folder, scale, progress):
        nodes = np.arange(300)
        with DatasetWriter(folder, self.estimate(1.0)) as writer:
            neighbours = (nodes[:, None] + [1, 2, 3]) % 300
            writer.write_columns([(np.full(300, 3), neighbours.ravel())])
            writer.write_features(np.random.default_rng(0).random((300, 5), dtype=np.float32))
            writer.write_labels(nodes % 3)
            writer.write_splits(nodes[:200], nodes[200:250], nodes[250:])

class Windows(Meter):
    name, summary = "windows", "counts its windows"
    lost, trust = "nothing", "it counts"
    units = {"windows": "1"}
    count = 0
    def begin(self): self.count += 1
    def end(self): return {"windows": self.count}
'''
PLAN = """
[measure]
repeats = 1
warmup_epochs = 0
threads = 1
[[workload]]
dataset = "ring"
fanouts = [3, 2]
batch_size = 50
[[strategy]]
name = "own_rows"
order = ["given", "ascending"]
[[strategy]]
name = "peer_pyg"
[[strategy]]
name = "cpu_gather"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed both examples, beside a graph and a meter."""
    pytest.importorskip("setuptools", minversion="77")
    sources, site = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    for name in ("own_data_path", "peers"):  # a build leaves files beside what it builds
        shutil.copytree(EXAMPLES / name, sources / name)
    write(site, "own-graph", GRAPH_AND_METER, {"ring": "Ring"}, "datasets")
    with (site / "own_graph-1.2.dist-info" / "entry_points.txt").open("a") as file:
        file.write("\n[gatherbench.meters]\nwindows = own_graph:Windows\n")
    write(site, "a-broken-one", "import no_such_library", {"broken": "Broken"}, "datasets")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([*command, *map(str, sources.iterdir())], check=True)
    return site


def check(name: str) -> tuple[int, str, str]:
    """Exit status and what was printed, of `gatherbench check` in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tables are tiny
    done = CliRunner().invoke(app, ["check", name, "--device", "cpu"])
    torch.set_num_threads(threads)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def beside(installed: Path, announce: Announce, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed, beside ours in this process and in those that it starts."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    plugins._entries.cache_clear()


@pytest.mark.usefixtures("beside")
def test_what_is_installed_and_broken_is_one_warning_of_the_program():
    command = [sys.executable, "-m", "gatherbench", "list", "datasets"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(own-graph 1.2)" in done.stdout
    (warned,) = done.stderr.splitlines()
    why = "cannot be used: ModuleNotFoundError: No module named 'no_such_library'"
    assert warned == f"warning: broken of a-broken-one 1.2 (gatherbench.datasets) {why}"


@pytest.mark.usefixtures("beside")
def test_what_is_installed_is_listed_with_its_package_and_keeps_the_contract():
    for what, listed in (
        ("strategies", ["own_rows", "(own-data-path 0.1.0)", "peer_pyg", "peer_wholegraph"]),
        ("meters", ["windows", "counts its windows (own-graph 1.2)"]),
    ):
        done = CliRunner().invoke(app, ["list", what], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        assert [word for word in listed if word not in done.stdout] == []
    assert check("own_rows") == (0, "own_rows given: ok\nown_rows ascending: ok\n", "")
    assert check("peer_pyg") == (0, "peer_pyg default: ok\n", "")


@pytest.mark.usefixtures("beside")
@pytest.mark.filterwarnings("ignore:broken of a-broken-one 1.2:RuntimeWarning")
def test_what_is_installed_is_measured_and_shown_with_its_package(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("gatherbench.bench.commands.execute.save_all", lambda *_, **__: [])
    (tmp_path / "mine.toml").write_text(PLAN)
    command = ["run", str(tmp_path / "mine.toml"), "--results", str(tmp_path), "--device", "cpu"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (folder,) = (path.parent for path in tmp_path.glob("*/*/epochs.csv"))
    rows = table_of(rows_of_run(folder))
    ended = rows[rows["stage"] == "case"]
    assert set(zip(ended["strategy"], ended["variant"], ended["status"], strict=True)) == {
        ("own_rows", "given", "ok"), ("own_rows", "ascending", "ok"),
        ("peer_pyg", "default", "ok"), ("cpu_gather", "pinned", "ok"),
    }  # fmt: skip
    assert set(rows[rows["metric"] == "windows"]["value"]) == {1.0, 2.0}, "an epoch, a window"
    declared = rows[(rows["metric"] == "copy_engine") & (rows["strategy"] == "own_rows")]
    given, ascending = (
        declared[declared["variant"] == variant]["value"].sum()
        for variant in ("given", "ascending")
    )
    assert ascending / given == (5 * 4 + 8) / (5 * 4), "rows of 5 float32, and 8 B of a place each"
    env = json.loads((folder / "env.json").read_text())
    graph = {"package": "own-graph"}
    strategies = env["plugins"]["gatherbench.strategies"]
    assert strategies["own_rows"] == {"package": "own-data-path", "version": "0.1.0"}
    assert strategies["peer_pyg"] == {"package": "gatherbench-peers", "version": "0.1.0"}
    assert env["plugins"]["gatherbench.datasets"]["ring"] == {**graph, "version": "1.2"}
    assert env["plugins"]["gatherbench.meters"] == {"windows": {**graph, "version": "1.2"}}
    assert env["libraries"]["own-data-path"] == "0.1.0"
    assert "dgl" in env["libraries"], "what a peer's package may need, installed or not"
    page = (folder / "report.html").read_text()
    assert "own_rows (own-data-path 0.1.0), peer_" in page
    assert "peer_pyg (gatherbench-peers 0.1.0)" in page


@pytest.mark.parametrize(
    ("body", "said", "status"),
    [
        ("", "own pinned: ok\nown prefetch: ok\nown naive: ok\n", 0),
        (
            "Own.skip = lambda s, *_: 'unsupported: today' if s.mode == 'naive' else None",
            "own naive: skipped: unsupported: today",
            1,  # skip() has to refuse the device meta, and does not
        ),
        ("Own.skip = lambda *_: 'not_installed: it'", "own pinned: skipped: not_installed: it", 1),
        ("Own.data_path = lambda *_: 1 / 0",
         "every row from somewhere.: ZeroDivisionError: division by zero", 1),
    ],
)  # fmt: skip
def test_check_says_of_each_variant_what_became_of_it(announce, monkeypatch, body, said, status):
    monkeypatch.setattr(conformance, "SHAPES", {torch.float32: (4, 400)})
    announce("their-package", strategy(body), {"own": "Own"})
    code, out, err = check("own")
    assert said in out
    assert code == status
    assert ("nothing was checked on cpu" in err) == ("not_installed" in body)


def test_what_is_unknown_or_broken_cannot_be_checked(announce):
    announce("their-package", "import no_such_library", {"own": "Own"})
    for name, said in (("cpu_gathr", "did you mean 'cpu_gather'"), ("own", "ModuleNotFoundError")):
        code, out, err = check(name)
        assert (code, out) == (2, "")
        assert said in err
