"""What ``gpu-decide`` takes and what decides in it, reckoned from the rows of an H200; and the size
that has room."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pandas as pd
import pytest
from tests.bench.observations import rows_of_run

from gatherbench.bench.plan.plan import Plan, largest_scale, load_plan
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.probe.points import read_points
from gatherbench.bench.run.rows import table_of
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.registry import get_source

from ...datasets.hash_law import rows_of_a_minibatch

RESULTS = Path(__file__).parents[3] / "results" / "nvidia-h200"
GIB = 1 << 30
#: Of an H100 as it is lent, and of the host beside it.
GPU_GIB, HOST_GIB = 78, 122
#: Paths of ``gpu-decide`` as the rows of the H200 call them.
PATHS = {
    ("no_fetch", "default"),
    ("cpu_gather", "naive"),
    ("cpu_gather", "pinned"),
    ("cpu_gather", "prefetch"),
    ("unified_zero_copy", "registered"),
    ("aligned_zero_copy", "given"),
    ("async_zero_copy", "stream,auto"),
    ("async_zero_copy", "stream,auto,managed"),
    ("all_in_gpu", "default"),
}


PATH = ["strategy", "variant"]
Series: TypeAlias = "pd.Series[float]"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """What ``gpu-decide`` of 2026-11-26 measured."""
    table = table_of(rows_of_run(RESULTS / "20261126-gpu-decide-239f0b"))
    return table[table["value"].notna() & (table["basis"] == "measured")]


def values(rows: pd.DataFrame, stage: str, metric: str) -> Series:
    found = rows[(rows["stage"] == stage) & (rows["metric"] == metric)]
    return found.set_index(["dataset", *PATH, "repeat", "epoch"])["value"]


def issued_s(rows: pd.DataFrame) -> dict[int, float]:
    """What the host issues a minibatch in, by layers: draws, steps and fetches of ``async``."""
    mine = rows[(rows["variant"] == "stream,auto,managed") & (rows["epoch"] >= 0)]
    whole = values(mine, "host", "issue_train") + values(mine, "host", "issue_fetch")
    whole += values(mine, "sample", "wall_time") - values(mine, "host", "wait_sample")
    each = (whole / values(mine, "epoch", "minibatches")).groupby("dataset").median()
    return {2: each["reddit-like"], 3: each["hashed-papers"]}


def payload(workload: Workload) -> tuple[DatasetSpec, int]:
    """Bytes of a minibatch's rows."""
    source = get_source(workload.dataset)
    spec = source.estimate(workload.scale)
    asked = rows_of_a_minibatch(source, workload.scale, workload.batch_size, workload.fanouts)
    return spec, asked * spec.row_bytes


def test_the_link_decides_in_each_workload(rows):
    """Even by managed memory, where the link is fastest: issuing takes less than two thirds."""
    points = read_points(RESULTS / "20261126-pages" / "rows.csv")
    mine = points[(points["case"] == "span_managed") & (points["row_bytes"] == 512)]
    rate = (mine["amount"] / mine["time_s"]).median()
    assert rate == pytest.approx(51.3e9, rel=0.01)
    shares = {
        of.dataset: issued_s(rows)[of.layers] / (payload(of)[1] / rate)
        for of in load_plan("gpu-decide").workloads()
    }
    assert shares == {
        "hashed-papers100M": pytest.approx(0.43, abs=0.01),
        "hashed-products": pytest.approx(0.40, abs=0.01),
        "hashed-reddit": pytest.approx(0.60, abs=0.01),
        "hashed-wiki": pytest.approx(0.63, abs=0.01),
    }
    assert max(shares.values()) < 2 / 3, "the share from which an epoch is host-bound"


class Took(NamedTuple):
    """Seconds there. Paths fetch ``epoch`` for a byte of rows; ``other`` is what opening, checking
    and closing took, by path and repeat; ``between`` one process and the next, by repeat."""

    epoch: Series
    other: pd.DataFrame
    between: pd.DataFrame


#: From the command to the first path: imports, and 20 s of sensors in the first run.
START_S, SENSORS_S = 14, 20
LIKE = {"hashed-products": "products-like", "hashed-reddit": "reddit-like"}


@pytest.fixture(scope="module")
def took(rows) -> Took:
    keys = ["dataset", *PATH, "repeat"]
    large = rows[(rows["dataset"] == "hashed-papers") & (rows["epoch"] >= 0)]
    moved = values(large, "fetch", "payload").median()
    epoch = values(large, "epoch", "wall_time").groupby(PATH).median() / moved
    whole = values(rows, "case", "wall_time").groupby(keys).sum()
    trained = values(rows, "epoch", "wall_time").groupby(keys).sum()
    began = values(rows, "setup", "process_began").groupby(["dataset", "repeat"]).first()
    next_s = -began.sort_values().diff(-1) - whole.groupby(["dataset", "repeat"]).sum()
    warmed = values(rows, "epoch", "wall_time").groupby(keys).mean()  # an epoch, counted below
    other = (whole - trained - warmed).clip(lower=0).unstack("repeat")
    # What paths that fetch ahead tuned in every process they now tune in the first.
    untuned = other.xs(("aligned_zero_copy", "given"), level=("strategy", "variant"))
    for name in untuned.index:
        for variant in ("stream,auto", "stream,auto,managed"):
            other.loc[(name, "async_zero_copy", variant), [1, 2, 3]] = untuned.loc[name, [1, 2, 3]]
    between = next_s.unstack("repeat")
    # There a new server imported for 10 s behind each repeat. Now those of all repeats import side
    # by side, before the first path.
    between.loc["reddit-like"] = between.loc["products-like"]
    return Took(epoch, other, between)


def reckoned_s(took: Took, of: Workload, paths: Sequence[tuple[str, str]], epochs: int) -> Series:
    """By repeat, 0 the first, of one process in which the paths take turns: that of a table of 48
    GiB by its size, and the time to the next process."""
    spec, each = payload(of)
    like = LIKE.get(of.dataset, "hashed-papers")
    share = spec.table_bytes / (48 * GIB) if like == "hashed-papers" else 1.0
    opened = took.other.loc[like].loc[list(paths)].sum() + took.between.loc[like]
    seeds = round(get_source(of.dataset).shape.splits[0] * of.scale)
    batches = of.max_batches or -(-seeds // of.batch_size)
    return share * opened + epochs * took.epoch[list(paths)].sum() * each * batches


def test_six_repeats_take_400_s(took):
    """Behind 60 s of smoke and datasets, in the first call's 490 s."""
    plan, paths = load_plan("gpu-decide"), sorted(PATHS)
    epochs = plan.measure.warmup_epochs + plan.measure.epochs
    repeats = sum(reckoned_s(took, of, paths, epochs) for of in plan.workloads())
    first_s, later_s = repeats[0], repeats[[1, 2, 3]].mean()
    assert (first_s, later_s) == (pytest.approx(105, abs=1), pytest.approx(51.5, abs=0.5))
    six_s = START_S + SENSORS_S + first_s + 5 * later_s
    assert six_s < 400
    assert 60 + six_s < 490 < 60 * plan.minutes


def test_the_tables_fit_host_and_gpu_side_by_side():
    """Two tables of the largest graph beside its edges on the host; on the GPU the managed table is
    asked for where the table that lies there and the graph are already."""
    plan = load_plan("gpu-decide")
    fitted = plan.fitted(HOST_GIB * GIB, 60 * GIB)
    assert [w.scale for w in fitted.workloads()] == [0.5, 1, 1, 1]
    assert [w.scale for w in plan.fitted(60 * GIB, 60 * GIB).workloads()] == [0.25, 1, 1, 1]
    for of in fitted.workloads():
        spec, moved = payload(of)
        graph = 4 * spec.num_edges + 8 * spec.num_nodes
        assert 2 * spec.table_bytes + graph + 8 * moved < GPU_GIB * GIB
    graphs = ["hashed-products", "hashed-papers100M"]
    table = {"dataset": graphs, "fit": True}
    fields = {"name": "p", "workload": [table], "strategy": [{"name": "all_in_gpu"}]}
    both = Plan.model_validate(fields).fitted(60 * GIB, 60 * GIB).workloads()
    assert [(w.dataset, w.scale) for w in both] == [(graphs[0], 1.0), (graphs[1], 0.25)]
    with pytest.raises(DatasetError, match="not 100 to"):
        largest_scale("hashed-papers100M", 1.0, 1000, GIB)


def test_an_epoch_of_papers_is_whole_and_fits_an_h100():
    (of,) = load_plan("gpu-papers").workloads()
    spec, moved = payload(of)
    assert (of.scale, of.max_batches) == (1.0, 0)
    assert moved / spec.row_bytes == pytest.approx(665_000, rel=0.05)
    graph = 4 * spec.num_edges + 8 * spec.num_nodes
    assert spec.table_bytes + graph + 8 * moved < GPU_GIB * GIB


def test_the_table_beyond_is_larger_than_an_h100_and_fits_its_host():
    (of,) = load_plan("gpu-beyond").workloads()
    spec, _ = payload(of)
    assert 90 * GIB <= spec.table_bytes < 0.8 * HOST_GIB * GIB
    assert spec.table_bytes > 1.1 * GPU_GIB * GIB
