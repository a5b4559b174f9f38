"""What is declared of single epochs, as readers have it: worked out by hand."""

from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.tables import of_mean_epoch
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.rows import RowMaker

CASE = Case(Workload("tiny"), "aligned_zero_copy", "given", {}, 0)


def test_the_mean_is_that_of_the_epochs_that_were_measured():
    """Requests of 64 B are in one epoch of three: (0 + 9 + 0) / 3; a reason leaves no number."""
    make = RowMaker("run", "abc", "box", "host", basis="declared").of(CASE)
    measured = RowMaker("run", "abc", "box", "host").of(CASE)
    rows = [make.ok("fetch", "row", "B", 132, "formula")]
    for epoch, payload in ((0, 100), (4, 110), (2, 150)):
        rows.append(measured.ok("fetch", "payload", "B", payload, "count", epoch))
        rows.append(make.ok("fetch", "declared_payload", "B", payload, "count", epoch))
        rows.append(make.missing("fetch", "disk_read", "B", "count", "unknown: why", epoch=epoch))
    rows.append(make.ok("fetch", "gpu_requests_64_bytes", "1", 9, "count", 4))
    found = of_mean_epoch(frames_of(rows))
    assert found.index.tolist() == [(CASE.workload.id, "aligned_zero_copy", "given", "host", 0)]
    assert found.iloc[0].dropna().to_dict() == {
        "declared_row_bytes": 132,
        "declared_payload_bytes": 120,
        "declared_gpu_requests_64b": 3,
    }
