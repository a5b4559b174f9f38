"""The CPU's gather in the loop beside what it does alone."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gatherbench.bench.show.views.resources import GATHER, gather_rates

from ..written_run import BASELINE, PAYLOAD_BYTES, PINNED, ZERO_COPY

#: Alone: 8 MB in 1 ms, which is 8 GB/s.
ALONE = {"gathered": ("B", 8e6), "gather_time": ("s", 1e-3)}


def gathering(alone: bool = True, **seconds: float) -> Any:
    """The seconds in which each variant gathers the rows of an epoch."""

    def more(case: tuple[str, str, str], _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
        if epoch < 0 and alone:
            for metric, (unit, value) in ALONE.items():
                yield {"stage": "setup", "metric": metric, "unit": unit, "value": value}
        if epoch >= 0 and (taken := seconds.get(case[2])) is not None:
            yield {"stage": "fetch", "metric": "gather_time", "unit": "s", "value": taken}

    return more


def test_a_gather_in_the_loop_stands_beside_it_alone(run_of):
    """Of 8 GB/s 6.4 are 80 %. Reads in place are no conventional path."""
    of = gathering(**{"pinned": PAYLOAD_BYTES / 6.4e9, ZERO_COPY[1]: 9.0})
    (row,) = gather_rates(run_of(series=[BASELINE, PINNED, ZERO_COPY], more=of)).to_dict("records")
    assert (row["strategy"], row["variant"], row["alone_B_per_s"]) == ("cpu_gather", "pinned", 8e9)
    assert row["in_the_loop_B_per_s"] == pytest.approx(6.4e9)
    assert row["loop_to_alone_share"] == pytest.approx(0.8)


def test_what_was_not_tried_alone_has_no_share(run_of):
    run = run_of(series=[BASELINE, PINNED], more=gathering(alone=False, pinned=9.0))
    assert gather_rates(run)[["alone_B_per_s", "loop_to_alone_share"]].isna().all(axis=None)
    assert GATHER.applies(run)
    assert not GATHER.applies(run_of(series=[BASELINE, PINNED], more=gathering()))
