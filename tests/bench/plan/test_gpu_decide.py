"""What ``gpu-decide`` takes and what decides in it, reckoned from the rows of an H200; and the size
that has room."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatherbench.bench.plan.plan import largest_scale
from gatherbench.bench.plan.plan_file import load_plan
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.issuing import BOUND_SHARE
from gatherbench.bench.read.points import read_points
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


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Of the nine paths, as ``gpu-decide`` of 2026-11-26 has them."""
    table = pd.read_csv(RESULTS / "20261126-gpu-decide-239f0b" / "rows.csv", low_memory=False)
    mine = [pair in PATHS for pair in zip(table["strategy"], table["variant"], strict=True)]
    return table[np.array(mine) & table["value"].notna() & (table["basis"] == "measured")]


def values(rows: pd.DataFrame, stage: str, metric: str) -> "pd.Series[float]":
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
    assert max(shares.values()) < BOUND_SHARE


def test_six_repeats_fit_into_what_the_page_has_for_them(rows):
    """Each path at its rate over 48 GiB, behind what opening and checking took there, by the size
    of the table. What paths that fetch ahead tuned in every process they now tune in the first."""
    plan = load_plan("gpu-decide")
    over_48_gib = rows[(rows["dataset"] == "hashed-papers") & (rows["epoch"] >= 0)]
    epochs = values(over_48_gib, "epoch", "wall_time").groupby(PATH).median()
    moved = values(over_48_gib, "fetch", "payload").median()
    whole = values(rows, "case", "wall_time").groupby(["dataset", *PATH, "repeat"]).sum()
    trained = values(rows, "epoch", "wall_time").groupby(["dataset", *PATH, "repeat"]).sum()
    other = (whole - trained).unstack("repeat")
    first_s = later_s = 0.0
    for of in plan.workloads():
        spec, each = payload(of)
        like = {"hashed-products": "products-like", "hashed-reddit": "reddit-like"}
        opened = other.loc[like.get(of.dataset, "hashed-papers")]
        share = min(1.0, spec.table_bytes / (48 * GIB)) if of.dataset not in like else 1.0
        untuned = opened[[1, 2, 3]].median(axis=1)
        untuned["async_zero_copy"] = untuned["aligned_zero_copy"].item()
        blocks = plan.measure.warmup_epochs + plan.measure.epochs
        train_s = blocks * epochs.sum() * each * of.max_batches / moved
        first_s += share * opened[0].sum() + train_s
        later_s += share * untuned.sum() + train_s
    assert (first_s, later_s) == (pytest.approx(92, abs=1), pytest.approx(40, abs=1))
    sensors_s, budget_s = 20, 330
    assert sensors_s + first_s + 5 * later_s < budget_s < 60 * plan.minutes


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
