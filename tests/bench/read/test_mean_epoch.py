"""What is declared of single epochs, as readers have it: worked out by hand."""

from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.tables import of_mean_epoch
from gatherbench.bench.run.rows import RowMaker, table_of

CASE = Case(Workload("tiny"), "aligned_zero_copy", "given", {}, 0)


def test_the_mean_is_that_of_the_epochs_that_were_measured():
    """Requests of 64 B are in one epoch of three: (0 + 9 + 0) / 3; a reason stays a reason."""
    make = RowMaker("run", "abc", "box", "host", basis="declared").of(CASE)
    measured = RowMaker("run", "abc", "box", "host").of(CASE)
    rows = [make.ok("fetch", "row", "B", 132, "formula")]
    for epoch, payload in ((0, 100), (4, 110), (2, 150)):
        rows.append(measured.ok("fetch", "payload", "B", payload, "count", epoch))
        rows.append(make.ok("fetch", "declared_payload", "B", payload, "count", epoch))
        rows.append(make.missing("fetch", "disk_read", "B", "count", "unknown: why", epoch=epoch))
    rows.append(make.ok("fetch", "gpu_requests_64_bytes", "1", 9, "count", 4))
    found = of_mean_epoch(table_of(rows))
    told = found[found["basis"] == "declared"].set_index("metric")
    assert told["value"].dropna().to_dict() == {
        "row": 132,
        "declared_payload": 120,
        "gpu_requests_64_bytes": 3,
    }
    assert told.loc["disk_read", "reason"] == "unknown: why"
    assert set(told["epoch"]) == {-1}
    assert len(told) == 4
    assert found[found["basis"] == "measured"]["epoch"].tolist() == [0, 4, 2]


def test_rows_of_runs_that_declared_once_a_case_are_as_they_were():
    make = RowMaker("run", "abc", "box", "host", basis="declared").of(CASE)
    table = table_of([make.ok("fetch", "row", "B", 132, "formula")])
    assert of_mean_epoch(table).equals(table)
