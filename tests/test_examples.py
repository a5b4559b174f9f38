"""The examples are run as their reader would run them, on few batches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where WordNet is prepared once for all runs."""
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("strategy", ["async_zero_copy", "cpu_gather"])
def test_train_wordnet(strategy: str, data_root: Path) -> None:
    command = [sys.executable, EXAMPLES / "train_wordnet.py", "--epochs", "2"]
    command += ["--max-batches", "20", "--strategy", strategy]
    env = {**os.environ, "GATHERBENCH_DATA": str(data_root)}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=250, env=env
    )
    assert done.returncode == 0, done.stderr
    assert f"data path: UnifiedTensor([117659, 300], torch.float32, {strategy} (" in done.stdout
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), 20 batches", done.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    accuracy = re.search(r"test accuracy ([\d.]+) on 20480 nodes", done.stdout)
    assert accuracy is not None
    assert (
        float(accuracy[1]) > 0.2
    )  # 45 classes; the most frequent one of the training nodes gives less


def test_train_wordnet_names_the_strategy_that_was_meant(data_root: Path) -> None:
    command = [sys.executable, EXAMPLES / "train_wordnet.py", "--strategy", "async_zerocopy"]
    env = {**os.environ, "GATHERBENCH_DATA": str(data_root)}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=250, env=env
    )
    assert done.returncode != 0
    assert "did you mean 'async_zero_copy'" in done.stderr
