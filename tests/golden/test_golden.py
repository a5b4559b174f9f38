"""The plan ``quick`` does in small what was recorded; a difference of any kind would be told."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gatherbench.bench.plan.plan import load_plan

from .golden import TOLERANCE, differences

HERE = Path(__file__).parent


def test_quick_in_small_does_what_was_recorded():
    """If it should do something else by now: python tests/golden/golden.py --renew"""
    command = [sys.executable, HERE / "golden.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["quick", "gpu-decide"])
def test_a_change_of_anything_is_a_difference(name):
    recorded = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    assert len(recorded) > 90
    assert list(differences(recorded, recorded)) == []
    for key, value in recorded.items():
        changed = copy.deepcopy(recorded)
        match value:
            case str():
                changed[key] = "failed"
            case {**fields}:
                changed[key] = {**fields, next(iter(fields)): -1}
            case [float(first), *rest]:
                changed[key] = [first * (1 + TOLERANCE / 2), *rest]
                assert list(differences(recorded, changed)) == []
                changed[key] = [first * (1 + 2 * TOLERANCE), *rest]
            case list():
                changed[key] = value[1:] or ["more"]
        assert [line.partition("\n")[0] for line in differences(recorded, changed)] == [key]
        del changed[key]
        assert len(list(differences(recorded, changed))) == 1


#: Waits of the host, copies to the device and back, of a minibatch; its kernels beside those of the
#: step. A path that gathers on the CPU waits for ids and buffers, too, copies rows, and launches no
#: gather; a cached one launches a kernel more. Beyond them an epoch has up to four waits.
CALLS = {
    "no_fetch": (1, 1, 1, 0),
    "cpu_gather naive": (3, 2, 2, 0),
    "cpu_gather pinned": (3, 3, 2, 0),
    "cpu_gather prefetch": (3, 2, 2, 0),
    "unified_zero_copy": (1, 1, 1, 1),
    "aligned_zero_copy": (1, 1, 1, 1),
    "async_zero_copy": (1, 1, 1, 1),
    "cached_zero_copy": (1, 1, 1, 2),
    "all_in_gpu": (1, 1, 1, 1),
}
MINIBATCHES, STEP = 5, 12


@pytest.mark.parametrize("plan", ["gpu-decide", "gpu-papers", "gpu-beyond"])
def test_what_a_minibatch_asks_of_cuda_by_each_path_of_the_plans(plan):
    """As the stand-in counted it, of three layers. A share, a table, a grid change no call."""
    recorded = json.loads((HERE / "gpu-decide.json").read_text(encoding="utf-8"))
    (start,) = {key.split(" | ")[0] for key in recorded if key.startswith("hashed-papers100M")}
    for case in load_plan(plan).cases():
        name = f"{case.strategy} {case.variant}"
        expected = CALLS.get(case.strategy) or CALLS[name]
        known = name.replace("20%", "10%").removesuffix(",dgl")
        _, every = recorded[f"{start} | {known} | calls"]
        launches = every["launches"] / MINIBATCHES - STEP
        copies = every["to_device"] // MINIBATCHES, every["to_host"] // MINIBATCHES
        assert (every["waits"] // MINIBATCHES, *copies, launches) == expected, name
        assert every["waits"] % MINIBATCHES <= 4
        assert every["allocations"] == every["events"] == 0
