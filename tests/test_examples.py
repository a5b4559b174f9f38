"""The examples are run as their reader would run them, on few batches."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
def test_train_wordnet(capfd: pytest.CaptureFixture[str]) -> None:
    run("--epochs", "2", "--max-batches", "10", "--strategy", "cpu_gather")
    said = capfd.readouterr().out
    assert "data path: UnifiedTensor([117659, 300], torch.float32, cpu_gather (" in said
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


def torchrun(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Two ranks; ``timeout`` tells the launcher to end them, which a kill would not."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        ["timeout", "200", *launcher, "--nproc-per-node", "2", str(script), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.usefixtures("data_root")
@pytest.mark.parametrize(("averaged", "strategy"), [(True, "sharded"), (False, "async_zero_copy")])
def test_train_ddp(averaged: bool, strategy: str, tmp_path: Path) -> None:
    """Ranks end with the same parameters, by whose digests a script without DDP is found out."""
    script, shared = EXAMPLES / "train_ddp.py", tmp_path / "shared"
    shared.mkdir()
    if not averaged:
        wrapped, text = "DistributedDataParallel(model.to(device))", script.read_text()
        assert wrapped in text
        script = tmp_path / "wrong.py"
        script.write_text(text.replace(wrapped, "model.to(device)"))
    few = ("--epochs", "2", "--max-batches", "10" if averaged else "1", "--strategy", strategy)
    done = torchrun(script, "--device", "cpu", "--shared", str(shared), *few)
    assert done.returncode == 0, done.stderr
    digests = re.search(r"^parameters by rank: (\w{16}) (\w{16})$", done.stdout, re.MULTILINE)
    assert digests is not None
    assert (digests[1] == digests[2]) == averaged
    assert not list(shared.iterdir())
    assert f"UnifiedTensor([117659, 300], torch.float32, {strategy} (" in done.stdout
    if averaged:
        assert "2 ranks, each with " in done.stdout
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), 10 batches", done.stdout)]
        assert len(losses) == 2, "rank 0 alone says it"
        assert losses[1] < losses[0]


ONE_COPY = r"""
import os, sys
import numpy as np
import torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from train_ddp import one_copy

dist.init_process_group("gloo")
rank, table = dist.get_rank(), np.arange(12, dtype=np.float32).reshape(4, 3)
for machines in ("one", "two"):
    if machines == "two":
        os.environ["LOCAL_RANK"] = "0"
    x = one_copy(table, sys.argv[2])
    assert np.array_equal(x.numpy(), table)
    dist.barrier()
    x[rank] = -1
    dist.barrier()
    sys.stdout.write(f"{machines} {rank} {(x[:, 0] == -1).tolist()}\n")  # print would write twice
try:
    one_copy(np.broadcast_to(np.float32(0), (2**50, 3)), sys.argv[2])
except OSError as error:
    sys.stdout.write("no room\n")
dist.destroy_process_group()
"""


def test_ranks_of_a_machine_share_the_table(tmp_path: Path) -> None:
    """What one writes, the other reads; ranks of two machines have a copy each."""
    script, shared = tmp_path / "script.py", tmp_path / "shared"
    script.write_text(ONE_COPY)
    shared.mkdir()
    done = torchrun(script, str(EXAMPLES), str(shared))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        *("no room", "no room"),
        *(f"one {rank} [True, True, False, False]" for rank in (0, 1)),
        "two 0 [True, False, False, False]",
        "two 1 [False, True, False, False]",
    ]
    assert not list(shared.iterdir())


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


def test_the_loader_runs_as_pasted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loader, on_disk, cached = snippets("docs/training.md")
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
    monkeypatch.chdir(tmp_path)
    np.save("features.npy", rows := np.random.default_rng(0).random((500, 16)))
    exec("import gatherbench\nimport numpy as np\n" + on_disk, names)
    with names["features"] as features:
        assert torch.equal(features[[5, 9]], torch.from_numpy(rows[[5, 9]]))
    said = capsys.readouterr().out
    assert said.count("torch.Size") == 3 * 5
    assert ", 300])" in said.splitlines()[0]
