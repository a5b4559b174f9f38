"""Pages that a minibatch touches, by order: worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.orders import OrderCount, OrderCounts, count_orders, distinct_pages
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.show.orders import chart_of, table_of
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.writer import DatasetWriter


@pytest.mark.parametrize(
    ("rows", "row_bytes", "pages"),
    [
        ([], 4, 0),
        ([0, 1, 2], 4, 1),  # bytes 0 to 11 of a page of 16
        ([3, 4], 4, 2),  # bytes 12 to 19
        ([0, 2], 12, 3),  # bytes 0 to 11, and 24 to 35: pages 0, 1 and 2
        ([1, 1], 12, 2),  # bytes 12 to 23, twice
        ([0, 1], 40, 5),  # bytes 0 to 79: page 2 is shared
    ],
)
def test_distinct_pages_by_hand(rows, row_bytes, pages):
    assert distinct_pages(np.array(rows, np.int64), row_bytes, 16) == pages


@given(st.lists(st.integers(0, 50)), st.integers(1, 40), st.integers(1, 32))
def test_distinct_pages_are_those_of_every_byte(rows, size, page):
    every = {b // page for row in rows for b in range(row * size, (row + 1) * size)}
    assert distinct_pages(np.sort(np.array(rows, np.int64)), size, page) == len(every)


def two() -> OrderCounts:
    def one(name: str, seconds: float, pages: float) -> OrderCount:
        return OrderCount(
            name,
            seconds,
            {"registered": pages, "managed": 8.0},
            {"registered": 5, "managed": 1},
            {"registered": Estimate(2e-3), "managed": Estimate(None, ("not measured",))},
        )

    workload = Workload("wordnet")
    return OrderCounts(
        workload, 3, 100.0, 512, "some-gpu", (one("given", 0, 40.0), one("degree", 0.5, 30.0))
    )


def test_the_table_and_the_chart_hold_the_counts():
    table = table_of(two()).set_index(["order", "place"])
    assert table.loc[("degree", "registered"), "pages_per_minibatch"] == 30
    assert table.loc[("degree", "registered"), "page_bytes"] == 65536
    assert table.loc[("given", "managed"), "page_bytes"] == 2 << 20
    assert table.loc[("given", "registered"), "modelled_read_s"] == 2e-3
    assert math.isnan(table.loc[("given", "managed"), "modelled_read_s"])
    registered = chart_of(two()).panels[0]
    assert registered.title == "registered memory: pages of 64 KiB"
    assert [line.text for line in registered.lines] == ["40", "30 (-25%)"]
    assert chart_of(two()).foot.endswith(
        "from registered memory given 2.00 ms, degree 2.00 ms;"
        " from managed memory given unknown, degree unknown."
    )


def test_the_command_counts_the_same_minibatches_in_every_order(tmp_path):
    told = CliRunner().invoke(
        app, ["orders", "wordnet", "--max-batches", "2", "--out", str(tmp_path / "o")]
    )
    assert told.exit_code == 0, told.output
    assert "the same ones in every order" in " ".join(told.output.split())
    assert (tmp_path / "o/orders.png").stat().st_size > 10_000
    lines = (tmp_path / "o/orders.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == [
        *("given", "given", "degree", "degree", "rcm", "rcm")
    ]


def test_rows_are_looked_up_where_an_order_puts_them(tmp_path, monkeypatch):
    """Two rows fill a page. The minibatch of node 0 has its neighbour, node 3: pages 0 and 1. By
    degree node 3 comes first and node 0 second; the order twice, or its inverse, parts them."""
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    lists = [[3], [0, 3], [3, 0], [4], []]
    spec = DatasetSpec("mine", 1.0, 5, 0, 8192, "float32", 1, "by hand", "none")
    with DatasetWriter(tmp_path / "mine", spec) as writer:
        writer.write_columns([(np.array([len(x) for x in lists]), np.concatenate(lists))])
        writer.write_features(np.zeros((5, 8192), np.float32))
        writer.write_labels(np.zeros(5, np.int64))
        writer.write_splits(np.array([0]), np.array([1]), np.array([2]))
    workload = Workload("mine", fanouts=(1,), batch_size=1)
    counted = count_orders(workload, load_profile("nvidia-h200"))
    pages = {one.order: one.pages["registered"] for one in counted.orders}
    assert (pages["given"], pages["degree"]) == (2, 1)


def test_a_dataset_that_is_none_is_refused():
    told = CliRunner().invoke(app, ["orders", "wordnett"])
    assert told.exit_code == 2
    assert "wordnet" in told.output
