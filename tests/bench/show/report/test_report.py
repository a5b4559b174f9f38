"""What the report claims, and what becomes of it when it cannot be written."""

import errno
import html
import json
import re
from dataclasses import replace

import pytest
from matplotlib.container import ErrorbarContainer
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.model.roofline import roofline
from gatherbench.bench.read.compare import compare_runs
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.read.units import quantity, short
from gatherbench.bench.run.guards import only_one
from gatherbench.bench.show.answer import answers, cautions
from gatherbench.bench.show.comparison import against, summary
from gatherbench.bench.show.page import render_report
from gatherbench.bench.show.provenance import cases_ended, in_short
from gatherbench.bench.show.table import Table
from gatherbench.bench.show.views import model
from gatherbench.bench.show.views.epochs import numbers
from gatherbench.bench.show.views.model import roofline_chart
from gatherbench.bench.show.views.requests import data_path

from ...written_run import edit
from .conftest import ALIGNED, BOUND, NAIVE, PINNED


def test_the_answer_stands_at_the_head_with_what_to_do(make_run):
    folder = make_run([NAIVE, PINNED, ALIGNED, BOUND])
    (found,) = answers(load_run(folder))
    page = re.sub("</?bdi>", "", html.unescape(render_report(load_run(folder))))
    head = page.partition("</section>")[0]
    assert f"</strong>: {found.text} To use it: <code>{found.call}</code>" in head
    assert "Host memory only" in head


def test_of_several_gpus_the_one_that_was_used_is_named(make_run):
    run = load_run(make_run(backend="cuda"))
    two = [{"name": "NVIDIA H200", "uuid_hash": "a"}, {"name": "NVIDIA T400", "uuid_hash": "b"}]
    used = replace(run, env={**run.env, "gpus": two, "gpu_in_use": "a"})
    assert dict(in_short(used))["GPU"] == "NVIDIA H200"
    moved = data_path(load_run(make_run([NAIVE], declared=True)))
    place = [column.field for column in moved.columns].index("gpu_table")
    assert [line.cells[place].text for line in moved.lines] == ["70.0"], "MB kept of the table"
    unsaid = replace(run, env={**run.env, "gpus": two})  # as earlier runs have it
    assert dict(in_short(unsaid))["GPU"] == "NVIDIA H200, NVIDIA T400"


def test_where_an_epoch_is_less_precise_than_asked_it_says_so(make_run):
    folder = make_run([NAIVE, ALIGNED], repeats=3)
    plan = json.loads((folder / "plan.json").read_text())
    del plan["measure"]["repeats"]
    for precision, wide in ((0.03, 2), (0.06, 0)):  # s = 0.0196, t(2) = 4.303: ±5.0 %
        plan["measure"] |= {"min_repeats": 3, "max_repeats": 5, "precision": precision}
        (folder / "plan.json").write_text(json.dumps(plan))
        texts = [one for one in cautions(load_run(folder)) if "precision" in one]
        assert len(texts) == bool(wide)
        assert not wide or "2 epochs miss the plan’s precision (±3%)" in texts[0]
        assert not wide or "at ±5%;" in texts[0]


def test_a_run_of_failures_says_so_and_why(make_run):
    failures = {s[:2]: ("failed", "CUDA error: out of memory") for s in (NAIVE, ALIGNED)}
    folder = make_run([NAIVE, ALIGNED], failures=failures)
    assert answers(load_run(folder)) == []
    assert cautions(load_run(folder))[0] == (
        "Nothing was measured. Cases: 4 failed. The first: CUDA error: out of memory"
    )
    page = render_report(load_run(folder))
    assert "CUDA error: out of memory" in page
    assert "no GPU result" not in page


def test_an_incomplete_run_is_called_so(make_run):
    folder = make_run([NAIVE, ALIGNED, BOUND], cut_off=[BOUND[:2]])
    assert cautions(load_run(folder))[0] == (
        "Incomplete: 2 of 6 cases have not been run; `gatherbench run --resume FOLDER` completes it"
    )
    run = load_run(folder)
    assert cases_ended(run) == {"ok": 4, "failed": 0, "skipped": 0, "not run": 2}
    assert ("Cases", "4 ok, 2 not run") in in_short(run)
    assert "the run was cut off" in render_report(run)
    with only_one(folder):
        going = render_report(load_run(folder))
    assert "have not been run; it was still going when this was written" in going
    assert "cut off" not in going


def cells(table: Table) -> list[dict[str, str]]:
    """What is shown of each line, by the label of its column."""
    return [
        dict(zip(table.labels, (cell.text for cell in line.cells), strict=True))
        for line in table.lines
    ]


def test_a_series_without_a_quiet_repeat_looks_no_cleaner_than_one_that_has_some(make_run):
    """Other work of 1.5 cores beside all of aligned, one repeat of naive and none of pinned."""
    folder = make_run([NAIVE, PINNED, ALIGNED], repeats=3, other_cores=1.5, spread=0.0)

    def quiet(row: dict[str, str]) -> None:
        loud = row["variant"] == "given" or (row["variant"], row["repeat"]) == ("naive", "0")
        if row["metric"] == "system_cpu_busy" and not loud:
            row["value"] = str(float(row["value"]) - 3.0)

    edit(folder, quiet)
    run = load_run(folder)
    lines = {line["variant"]: line for line in cells(numbers(run))}
    wanted = ["rank", "epoch, s", "other work, cores", "repeats", "over cpu_gather (naive)"]
    found = {variant: [line[name] for name in wanted] for variant, line in lines.items()}
    assert [float(of.pop(2)) for of in found.values()] == pytest.approx([0, 0, 1.5])
    assert found == {
        "pinned": ["1", "1.50", "3", "1.33"],
        "naive": ["2", "2.00", "2/3", "1.00"],
        "default": ["noisy", "0.800", "3", "–"],
    }


def test_ratios_that_decide_nothing_are_marked(make_run):
    noisy = numbers(load_run(make_run([NAIVE, PINNED], other_cores=1.5)))
    first, second = (line["over cpu_gather (naive)"] for line in cells(noisy))
    assert (first[:6], first[-1], second) == ("1.33 (", "?", "1.00")
    assert "?: not decided" in noisy.caption


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.2134, "s", "213 ms"),
        (1.5, "s", "1.50 s"),
        (2.5e-5, "s", "25.0 µs"),
        (141190800, "B", "141 MB"),
        (1.144e10, "B/s", "11.4 GB/s"),
        (1.98e9, "Hz", "1.98 GHz"),
        (1.4442, "×", "1.44×"),
        (12345, "1", "12\N{NARROW NO-BREAK SPACE}345"),
        (float("nan"), "s", "–"),
    ],
)
def test_a_number_has_the_unit_that_suits_it(value, unit, text):
    assert quantity(value, unit) == text


def test_long_names_keep_their_ends():
    assert short("a" * 50 + "\n" + "b" * 50, 20) == "a" * 13 + "…" + "b" * 6
    assert short("two\nlines") == "two lines"


def test_the_roofs_are_those_of_the_profile(make_run):
    folder = make_run([NAIVE, ALIGNED], backend="cuda", declared=True)
    (folder / "profile.toml").write_text(load_profile("rtx3090-pcie4").to_toml())
    chart = roofline_chart(load_run(folder))
    (panel,) = chart.panels()
    roofs = {kind: value for _, value, kind in chart.at}
    assert (
        roofs["raw_link"] == max(roofs.values()) == panel.axis.top == pytest.approx(31.51e9, 1e-3)
    )
    lines = panel.lines.set_index(["look", "strategy"])
    # 2 GB of rows an epoch over the median of the fetch stage.
    rate = lines["value"]["measured", "aligned_zero_copy"]
    assert rate == pytest.approx(2e9 / (0.4 * 1.015))


def test_a_rate_over_an_epoch_is_marked(make_run, monkeypatch):
    hidden = ("async_zero_copy", "stream", 0.8)
    folder = make_run([NAIVE, ALIGNED, hidden], backend="cuda", declared=True)
    (folder / "profile.toml").write_text(load_profile("rtx3090-pcie4").to_toml())
    run, profile = load_run(folder), load_profile("rtx3090-pcie4")
    table = roofline(run, profile)
    table["over"] = table["strategy"].map(lambda name: "epoch" if name == hidden[0] else "fetch")
    monkeypatch.setattr(model, "_known", lambda _run: (profile, table, ""))
    chart = roofline_chart(run)
    (panel,) = chart.panels()
    marked = panel.lines[panel.lines["text"].str.endswith("*")]
    assert set(marked["strategy"]) == {hidden[0]}
    assert "*: over the whole epoch" in chart.reading


def test_a_full_disk_leaves_the_earlier_report(make_run, monkeypatch):
    folder = make_run()
    before = [p.name for p in folder.iterdir()]
    (folder / "report.html").write_text("the earlier one")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert (folder / "report.html").read_text() == "the earlier one"
    assert {p.name for p in folder.iterdir()} == {*before, "report.html", "figures"}


def test_the_same_run_gives_the_same_file(make_run):
    run = load_run(make_run(modelled=[NAIVE]))
    assert render_report(run) == render_report(run)


def test_two_runs_are_compared_in_the_report_and_others_are_not(make_run):
    base, new = (load_run(make_run(name=name)) for name in ("before", "after"))
    found = against(new, base)
    assert found.notes[-1] == summary(compare_runs(base, new))
    assert len(found.figures["against"].axes[0].patches) == 4
    other = against(new, load_run(make_run(workloads=["another-graph"])))
    assert "no workload in common" in other.failed
    assert len(other.tables[0].lines) > 3


def test_runs_of_one_repeat_are_compared_without_whiskers(make_run):
    """Nothing bounds a ratio of single repeats: it is drawn alone, on an axis of its own length."""
    base, new = (load_run(make_run(repeats=1, name=name)) for name in ("before", "after"))
    (axes,) = against(new, base).figures["against"].axes
    assert len(axes.patches) == 4
    assert not [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
