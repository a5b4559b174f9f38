"""The plan ``quick`` does in small what was recorded; a difference of any kind would be told."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

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
