"""The notebooks: pairs that agree, execution that refuses what is wrong, panels that fill."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import RESULTS_VARIABLE, drift, main, sync

from ..bench.disk_run import write_disk
from ..bench.ranks_run import write_ranks
from ..bench.show.gpu_rows import (
    add_gpu_metrics,
    add_overlap,
    add_peer,
    declare_path,
    measure_link,
    write_micro,
)

pytest.importorskip("jupytext")
helpers = pytest.importorskip("helpers")
MakeRun = Callable[..., Path]
SaidBy = Callable[[str, Path], str]
ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "notebooks").glob("0*.py"))
#: Largest notebook that is kept, in bytes.
LARGEST = 500_000
GOOD = "# %% [markdown]\n# # Title\n\n# %%\nprint(6 * 7)\n"
SHOWN = (
    "from helpers import say, show\n"
    "from matplotlib.figure import Figure\n"
    "show(Figure(), 'nothing')\nsay('one')\nsay('two')\n"
)


def write(folder: Path, **cells: str) -> Path:
    """A folder of pairs that agree, by name."""
    folder.mkdir(exist_ok=True)
    for name, text in cells.items():
        source = folder / f"{name}.py"
        source.write_text("# %%\n" + text)
        sync(source)
    return folder


def outputs(path: Path) -> str:
    """All text that a notebook's cells put out."""
    texts = [
        o.get("text") or next((d[t] for t in ("text/markdown", "text/plain") if t in d), "")
        for o, d in ((o, o.get("data", {})) for o in put_out(path))
        if "image/png" not in d
    ]
    return "\n".join("".join(text) for text in texts)


def put_out(path: Path) -> list[Any]:
    cells = json.loads(path.read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


def pictures(path: Path) -> list[Any]:
    return [output for output in put_out(path) if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("source", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_pair_agrees_is_executed_and_small(source):
    assert drift(source) is None
    target = source.with_suffix(".ipynb")
    text = target.read_text()
    assert target.stat().st_size < LARGEST
    assert pictures(target)
    assert all(output["metadata"]["image/png"]["alt"] for output in pictures(target))
    assert '"execution_count": null' in text
    assert str(ROOT) not in text
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["metadata"]["jupyter"]["source_hidden"] for cell in code), "folded"
    first, last = notebook["cells"][0], notebook["cells"][-1]
    opening = "".join(first["source"])
    for part in ("**Figure.**", "**Question.**", "**Claim"):
        assert part in opening
    assert last["cell_type"] == "code"
    assert "".join(last["outputs"][0]["data"]["text/markdown"])


def test_each_notebook_is_in_the_list():
    assert len(SHIPPED) == 8
    text = (ROOT / "notebooks" / "README.md").read_text()
    for source in SHIPPED:
        assert f"({source.stem}.ipynb)" in text


def test_what_is_wrong_fails_the_command_and_is_named(tmp_path, capsys, monkeypatch):
    """Several run in processes of their own, one in this one."""
    folder = write(
        tmp_path / "notebooks",
        errs="1 / 0\n",
        warns="import warnings\nwarnings.warn('beware')\n",
        shows_a_path="import os\nprint(os.getcwd())\n",
        dies="import os\nos._exit(3)\n",
        good="print(6 * 7)\n\n# %%\n6 * 8\n\n# %%\n" + SHOWN,
    )
    before = (folder / "errs.ipynb").read_text()
    arguments = ["--folder", str(folder), "--results", str(tmp_path)]
    command = [sys.executable, "-m", "tools.notebooks", *arguments]
    command += ["warns", "dies", "good"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    for wrong in (
        "failed: warns.py: cell 0 wrote to stderr",
        "failed: dies.py: its process ended: 3",
    ):
        assert wrong in said.stderr
    first = (folder / "good.ipynb").read_text()  # the others do not keep it from being drawn
    assert "changed" in said.stdout
    assert outputs(folder / "good.ipynb").split() == ["42", "48", "one", "two"]
    assert len(pictures(folder / "good.ipynb")) == 1
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert main([*arguments, "good"]) == 0
    assert "as before" in capsys.readouterr().out
    assert (folder / "good.ipynb").read_text() == first
    assert main([*arguments, "errs"]) == 1
    said_here = capsys.readouterr().err
    assert "failed: errs.py: cell 0: " in said_here
    assert "ZeroDivisionError" in said_here
    assert (folder / "errs.ipynb").read_text() == before  # nor is it overwritten
    assert main([*arguments, "shows_a_path"]) == 1
    assert "failed: shows_a_path.py: cell 0 shows a path" in capsys.readouterr().err
    assert str(tmp_path) not in outputs(folder / "shows_a_path.ipynb")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda source: source.write_text(GOOD.replace("6 * 7", "6 * 8")), "from cell 1 on"),
        (lambda source: source.write_text(GOOD + "\n# %%\n1\n"), "3 cells"),
        (lambda source: source.with_suffix(".ipynb").unlink(), "has no good.ipynb"),
    ],
)
def test_a_pair_that_has_drifted_fails_before_anything_runs(tmp_path, capsys, change, reason):
    source = tmp_path / "good.py"
    source.write_text(GOOD)
    sync(source)
    change(source)
    assert main(["--folder", str(tmp_path), "--results", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "drifted: good.py" in said.err
    assert reason in said.err
    assert "make figures SYNC=1" in said.err
    assert said.out == ""
    sync(source)
    assert drift(source) is None


def test_outputs_alone_are_no_drift(tmp_path):
    source = tmp_path / "good.py"
    source.write_text(GOOD)
    sync(source)
    target = source.with_suffix(".ipynb")
    target.write_text(target.read_text().replace('"outputs": []', '"outputs": [], "x": 1'))
    assert drift(source) is None


def test_bad_input_is_told(tmp_path, capsys):
    usual = ["--folder", str(tmp_path), "--results", str(tmp_path)]
    assert main(usual) == 2
    assert "no notebook (*.py)" in capsys.readouterr().err
    (tmp_path / "good.py").write_text(GOOD)
    assert main([*usual, "bad"]) == 2
    assert "no notebook 'bad'" in capsys.readouterr().err
    assert main([*usual, "--results", str(tmp_path / "none")]) == 2
    assert "no such folder of results" in capsys.readouterr().err


@pytest.fixture
def said_by(monkeypatch: pytest.MonkeyPatch) -> SaidBy:
    """What a shipped notebook says of a folder of results; its cells run in this process.

    Its figures are made and not painted.
    """

    def said(stem: str, results: Path) -> str:
        shown: list[Any] = []
        monkeypatch.setattr(helpers, "png", lambda _: b"a picture")
        monkeypatch.setattr(helpers, "display", shown.append)
        monkeypatch.setenv(RESULTS_VARIABLE, str(results))
        monkeypatch.chdir(ROOT / "notebooks")
        runpy.run_path(f"{stem}.py")
        return "\n".join(one.data for one in shown if isinstance(one.data, str))

    return said


def test_panels_fill_themselves_from_the_rows_of_a_gpu_run(said_by, make_run, tmp_path):
    """The shipped notebooks on rows that no GPU has made: what they call missing is there."""
    series = [
        ("cpu_gather", "naive", (0.2, 1.0, 0.5)),
        ("aligned_zero_copy", "sorted", (0.2, 0.25, 0.5)),
        ("async_zero_copy", "stream,auto", (0.2, 0.05, 0.6)),
        ("all_in_gpu", "default", (0.2, 0.1, 0.5)),
    ]
    folder = make_run("20261121-gpu-aaaaaa", series=series, backend="cuda", machine="nvidia-h200")
    add_gpu_metrics(folder, [(strategy, variant) for strategy, variant, _ in series])
    eight = {"gpu_link_read": 1000.0, "gpu_requests_128_bytes": 8.0}
    declare_path(folder, "aligned_zero_copy", "sorted", **eight)
    measure_link(folder, "aligned_zero_copy", "sorted", 1180.0)
    micro = write_micro(tmp_path / "results" / "nvidia-h200" / "20261121-micro")
    add_overlap(micro)
    add_peer(micro)
    wanted = {
        # 1 s of 1.71 s waits for rows.
        "01_stages": ["measured on a GPU: **58.5%** of the epoch waits for rows"],
        "02_requests_and_alignment": [
            # 36 over 30 and 38 over 36 GB/s, in each round.
            "times that `aligned` is as fast as `unaligned`: 1.20×",
            "times that sorted ids are as fast as given ones: 1.06×",
            "put **1.18 B** on the link for a byte it wanted (counted 1.18, or",
            "WholeGraph 26.10 itself, rows of 512 B: 20.0 GB/s",
        ],
        "03_share_of_the_multiprocessors": [
            "async_zero_copy, wordnet: 97 % of the gather's best rate with **15 % of the threads**",
            # The shortest step takes 1 s beside a gather, 0.5 s alone; 14 over 10 ms.
            "the shortest step with a gather beside it (15 %) takes 2.00×",
            "memory pass, stream: 1.40 (1.40–1.40) times the load alone, at 5 %",
        ],
        "04_epochs_by_graph_and_link": [
            "wordnet GraphSAGE, on a GPU: ",
            "wordnet GraphSAGE: `aligned_zero_copy (sorted)` -75 %",
        ],
        "06_energy_and_processor": [
            "power of the GPU an epoch against `cpu_gather (naive)`, wordnet GraphSAGE:"
            " `aligned_zero_copy (sorted)` -25 % (one repeat)",
        ],
    }
    said = {stem: said_by(stem, tmp_path / "results") for stem in wanted}
    missing = {
        stem: (sentence, said[stem])
        for stem, sentences in wanted.items()
        for sentence in sentences
        if sentence not in said[stem]
    }
    assert not missing


@pytest.mark.parametrize("backend", ["cuda", "host"])
def test_ranks_fill_from_runs_of_several(said_by, make_run, tmp_path, backend):
    times = {
        ("cpu_gather", "naive"): {1: 4.0, 2: 3.2},
        ("aligned_zero_copy", "given"): {1: 3, 2: 2},
    }
    write_ranks(make_run, times, backend=backend)
    said = said_by("05_ranks", tmp_path / "results")
    # Of as many seeds 3 s with one rank and 2 s with two: 3 / 2 / 2.
    assert f"aligned_zero_copy, 2 strong ranks: efficiency **75%**, {backend}" in said
    assert ("Several GPUs: **not measured yet**" in said) == (backend == "host")


def test_tables_on_disk_fill_from_a_run(said_by, make_run, tmp_path):
    write_disk(make_run)
    said = said_by("07_hot_rows_and_disk", tmp_path / "results")
    assert "Fastest: cpu_gather (naive), 2.00× (2.00–2.00) as fast as disk_mmap (random)" in said
    # Published: 138.4 over 97.0 s.
    assert "`lru` 1.43" in said
    # By hand: of 8 rows of a block each is asked for with p = 0.5 of 111 M, so that a row costs
    # (1 - (1 - p)^8) / 8p = 0.984 blocks of 8 rows.
    assert "Of papers100M's many random rows of 512 B, **7.9 B** are read a byte" in said
    assert "on a disk: **not measured" not in said


@pytest.mark.parametrize("stem", [source.stem for source in SHIPPED])
def test_without_any_run_the_notebooks_say_what_is_missing(said_by, tmp_path, stem):
    assert "**not measured yet**" in said_by(stem, tmp_path)
