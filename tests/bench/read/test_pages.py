"""A fallback of managed memory to small pages is seen and said."""

import pytest

from gatherbench.bench.read.gpu import slow_pages
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.answer import cautions

from ..written_run import append_rows, write_run


@pytest.mark.parametrize(
    ("managed", "whole", "near", "seen"),
    [
        (True, 33e6, 400e6, True),
        (True, 99e6, 400e6, True),
        (True, 101e6, 400e6, False),
        (True, 317e6, 651e6, False),  # an H200 over 48 GiB, which gathers 50 GB/s of 512 B
        (False, 27e6, 640e6, False),
        (True, None, None, False),
    ],
)
def test_a_quarter_of_the_rate_over_a_window_is_too_little(tmp_path, managed, whole, near, seen):
    folder = write_run(tmp_path / "run")
    rates = {"page_visit_rate": whole, "page_visit_rate_near": near}
    rows = [
        {"metric": metric, "unit": "1/s", "value": value}
        if value
        else {"metric": metric, "unit": "1/s", "status": "skipped", "reason": "too small"}
        for metric, value in rates.items()
    ]
    rows += [{"metric": "managed", "unit": "B", "value": 1 << 33}] * managed
    path = {"strategy": "aligned_zero_copy", "variant": "given,managed"}
    append_rows(folder, rows, stage="setup", **path)
    append_rows(folder, [{"stage": "case", "metric": "wall_time", "unit": "s", "value": 1}], **path)
    run = load_run(folder)
    assert len(slow_pages(run)) == seen
    said = [line for line in cautions(run) if "small pages" in line]
    assert len(said) == seen
    if seen:
        start = "aligned_zero_copy (managed) reads"
        assert said[0].startswith(f"{start} {whole / 1e6:.1f} M/s over its table and 400 M/s over")
