"""The probe on a GPU: every point gives a believable time."""

from collections.abc import Iterator

import pytest
import torch

from gatherbench.bench.probe.case import Case, Scope, every_case
from gatherbench.bench.probe.probe import facts_of
from gatherbench.bench.probe.rig import RefusedError, Rig

SPANS = (256 << 20, 512 << 20, 1 << 30)
CASES = [one for one in every_case().values() if "gpu" in one.needs and one.name != "gpu_policies"]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig(torch.device("cuda", torch.cuda.current_device()), spans=SPANS) as made:
        yield made


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_every_point_is_measured(rig: Rig, one: Case) -> None:
    """The bounds are of anything that can be a GPU, not of a good one."""
    if missing := one.missing():
        pytest.skip(str(missing))
    for point in one.points(one.name, rig, Scope.NAMED):
        try:
            one.run(rig, point)  # compiles, and wakes the link
            observed = one.run(rig, point)
        except RefusedError as why:
            assert str(why).startswith("no_memory")  # noqa: PT017
            continue
        rate = observed.amount / observed.time_s
        if one.name in ("gpu_launch", "gpu_issue", "gpu_draw", "gpu_submit"):
            assert 1e-8 < 1 / rate < 1e-1
        elif one.name == "gpu_matmul":
            assert 1e9 < rate < 1e16
        else:
            assert 1e7 < rate < 1e13


def test_the_machine_can_be_asked(rig: Rig) -> None:
    facts = facts_of(rig.device)
    assert facts["gpus"]
    assert facts["gpu_memory_bytes"]
    assert facts["link_generation"] is None or 1 <= facts["link_generation"] <= 7
