"""The examples are run as their reader would run them, on few batches."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gatherbench

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def data_root(wordnet_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(wordnet_root))


def example(name: str) -> Any:
    """The module in this process."""
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("data_root")
def test_train_wordnet(capfd):
    few = ("--epochs", "2", "--max-batches", "10", "--strategy", "cpu_gather")
    example("train_wordnet").main(few)
    said = capfd.readouterr().out
    assert "data path: UnifiedTensor([117659, 300], torch.float32, cpu_gather (" in said
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), 10 batches", said)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    accuracy = re.search(r"test accuracy ([\d.]+) on 10240 nodes", said)
    assert accuracy is not None
    # 45 classes; the most frequent one of the training nodes gives 0.122
    assert float(accuracy[1]) > 0.15


#: Two ranks, forked behind the imports, which take longer than both scripts. Each script meets in a
#: store of its own, as one knows the ranks of the other.
ONE_BY_ONE = """
import os, runpy, sys
import gatherbench.pyg, torch_geometric.loader, torch_geometric.nn
_, right, first, wrong, second, *few = sys.argv
rank = "0" if os.fork() else "1"
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
for script, port, *more in (
    (right, first, "10", "--strategy", "cpu_gather"),
    (wrong, second, "1", "--strategy", "async_zero_copy"),
):
    os.environ["MASTER_PORT"] = port
    sys.argv = [script, *few, "--max-batches", *more]
    runpy.run_path(script, run_name="__main__")
if rank == "0":
    assert os.wait()[1] == 0
"""


@pytest.mark.usefixtures("data_root")
def test_train_ddp(tmp_path):
    """Ranks end with the same parameters, by whose digests a script without DDP is found out.

    The variables are those of torchrun.
    """
    right, wrong = EXAMPLES / "train_ddp.py", tmp_path / "wrong.py"
    wrapped, text = "DistributedDataParallel(model.to(device))", right.read_text()
    assert wrapped in text
    wrong.write_text(text.replace(wrapped, "model.to(device)"))
    stores = [
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)
    ]
    scripts = [right, stores[0].port, wrong, stores[1].port]
    # ``timeout`` ends both ranks, which a kill would not.
    command = ["timeout", 800, sys.executable, "-c", ONE_BY_ONE, *scripts]
    done = subprocess.run(
        [*map(str, command), "--epochs", "2", "--device", "cpu"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    digests = re.findall(r"^parameters by rank: (\w{16}) (\w{16})$", done.stdout, re.MULTILINE)
    assert [one == other for one, other in digests] == [True, False]
    said = (
        r"^2 ranks, each with \d+ seeds and UnifiedTensor\(\[117659, 300\], torch.float32, (\w+) \("
    )
    strategies = re.findall(said, done.stdout, re.MULTILINE)
    assert strategies == ["cpu_gather", "async_zero_copy"], "rank 0 alone says it"
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), 10 batches", done.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0]


def snippets(name: str) -> list[str]:
    """The Python of a page."""
    text = (EXAMPLES.parent / name).read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_two_lines():
    x, n_id = torch.randn(50, 3), torch.tensor([4, 0])
    names: dict[str, Any] = {"gatherbench": gatherbench, "x": x, "n_id": n_id}
    (two_lines,) = [found for found in snippets("README.md") if "x_batch = " in found]
    exec(two_lines, names)
    assert torch.equal(names["x_batch"].cpu(), x[n_id])
    names["features"].close()


def test_the_loader_runs_as_pasted(capsys, tmp_path, monkeypatch):
    loader, three = snippets("docs/guide.md")[-2:]
    on_disk, cached, empty = three.split("\n\n")
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
    with pytest.raises(RuntimeError, match="cudaMallocManaged failed"):  # a driver gives it
        exec(empty, names | {"num_nodes": 10, "dim": 4, "source": torch.ones(10, 4)})
    monkeypatch.chdir(tmp_path)
    np.save("features.npy", rows := np.random.default_rng(0).random((500, 16)))
    exec("import gatherbench\nimport numpy as np\n" + on_disk, names)
    with names["features"] as features:
        assert torch.equal(features[[5, 9]], torch.from_numpy(rows[[5, 9]]))
    said = capsys.readouterr().out
    assert said.count("torch.Size") == 3 * 5
    assert ", 300])" in said.splitlines()[0]
