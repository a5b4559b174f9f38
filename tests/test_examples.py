"""The examples are run as their reader would run them, on few batches."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gatherbench

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where WordNet is prepared once for all runs."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("data")
        patch.setenv("GATHERBENCH_DATA", str(root))
        yield root


def run(*arguments: str) -> None:
    """The example in this process."""
    found = importlib.util.spec_from_file_location("train_wordnet", EXAMPLES / "train_wordnet.py")
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    example.main(arguments)


@pytest.mark.usefixtures("data_root")
@pytest.mark.parametrize("strategy", ["async_zero_copy", "cpu_gather"])
def test_train_wordnet(strategy: str, capfd: pytest.CaptureFixture[str]) -> None:
    run("--epochs", "2", "--max-batches", "10", "--strategy", strategy)
    said = capfd.readouterr().out
    assert f"data path: UnifiedTensor([117659, 300], torch.float32, {strategy} (" in said
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), 10 batches", said)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    accuracy = re.search(r"test accuracy ([\d.]+) on 10240 nodes", said)
    assert accuracy is not None
    # 45 classes; the most frequent one of the training nodes gives 0.122
    assert float(accuracy[1]) > 0.15


@pytest.mark.usefixtures("data_root")
def test_train_wordnet_names_the_strategy_that_was_meant() -> None:
    with pytest.raises(ValueError, match="did you mean 'async_zero_copy'"):
        run("--strategy", "async_zerocopy")


def snippets(name: str) -> list[str]:
    """The Python of a page."""
    text = (EXAMPLES.parent / name).read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_the_two_lines(page: str) -> None:
    x, n_id = torch.randn(50, 3), torch.tensor([4, 0])
    names: dict[str, Any] = {"gatherbench": gatherbench, "x": x, "n_id": n_id}
    exec(snippets(page)[0], names)
    assert torch.equal(names["x_batch"].cpu(), x[n_id])
    names["features"].close()


def test_the_loader_runs_as_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    _, loader, cached = snippets("docs/training.md")
    checked = (
        "\n    assert torch.equal(batch.x.cpu(), x[batch.n_id.cpu()])"
        "\n    assert torch.equal(batch.n_id[:batch.batch_size].cpu(), seeds.pop(0))"
        "\nfeatures.close()"
    )
    loader = loader.replace("for batch", "seeds = list(train_ids.split(1024))\nfor batch")
    names: dict[str, Any] = {}
    exec(loader.rstrip() + checked, names)
    exec(cached, names)
    with names["features"] as features:
        assert torch.equal(features[[5, 9]], names["x"][[5, 9]])
    said = capsys.readouterr().out
    assert said.count("torch.Size") == 3 * 5
    assert ", 300])" in said.splitlines()[0]
