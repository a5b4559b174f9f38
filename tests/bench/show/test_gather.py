"""The CPU's gather in the loop beside what it does alone: said where it is held up."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gatherbench.bench.show.views.host import GATHER, gather_rates

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


@pytest.mark.parametrize(("rate", "held_up"), [(6.4e9, True), (7.3e9, False)])
def test_a_gather_that_the_loop_holds_up_is_told(run_of, rate, held_up):
    """Of 8 GB/s 6.4 are 80 %, 7.3 are 91 %. Reads in place are no conventional path."""
    of = gathering(**{"pinned": PAYLOAD_BYTES / rate, ZERO_COPY[1]: 9.0})
    run = run_of(series=[BASELINE, PINNED, ZERO_COPY], more=of)
    (row,) = gather_rates(run).to_dict("records")
    assert (row["strategy"], row["variant"], row["alone"]) == ("cpu_gather", "pinned", 8e9)
    assert row["loop"] == pytest.approx(rate)
    assert bool(row["held_up"]) == held_up
    said = GATHER.note(run).splitlines()
    assert len(said) == held_up
    if held_up:
        assert said[0].startswith(
            "Slower inside the training loop: cpu_gather (pinned), at 80.0 % of the rate alone"
        )


def test_what_was_not_tried_alone_is_not_judged(run_of):
    run = run_of(series=[BASELINE, PINNED], more=gathering(alone=False, pinned=9.0))
    (row,) = gather_rates(run).to_dict("records")
    assert row["alone"] != row["alone"]
    assert not row["held_up"]
    assert GATHER.applies(run)
    assert not GATHER.applies(run_of(series=[BASELINE, PINNED], more=gathering()))
