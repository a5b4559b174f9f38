"""WholeGraph's library as ``gpu-micro`` starts and ends it; a fake of its Python stands in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAKES = {
    "librmm/__init__.py": "def load_library(): print('librmm')",
    "pylibwholegraph/__init__.py": "__version__ = '26.10.0'; print('pylibwholegraph')",
    "pylibwholegraph/torch/__init__.py": "",
    "pylibwholegraph/torch/initialize.py": (
        "def init_torch_env_and_create_wm_comm(rank, size, local, local_size, wm_log_level):\n"
        "    print('start', rank, size, local, local_size, wm_log_level)\n"
        "    return 'comm', 'local'\n"
        "def finalize(): print('end')\n"
    ),
    "pylibwholegraph/torch/tensor.py": (
        "import torch\n"
        "class Theirs:\n"
        "    def __init__(self, sizes, dtype): self.memory = torch.zeros(sizes, dtype=dtype)\n"
        "    def get_local_tensor(self, host_view): return self.memory, 0\n"
        "    def gather(self, ids): return self.memory[ids]\n"
        "def create_wholememory_tensor(comm, kind, place, sizes, dtype, strides):\n"
        "    print('table', comm, kind, place, sizes, strides)\n"
        "    return Theirs(sizes, dtype)\n"
        "def destroy_wholememory_tensor(theirs): print('freed')\n"
    ),
}
USE = """
import torch
from gatherbench.bench.gpu.micro_peer import WholeGraph
peer = WholeGraph()
values = torch.arange(12.0).view(4, 3)
table = peer.table(values)
assert torch.equal(table.gather(torch.tensor([3, 0])), values[[3, 0]])
peer.free(table)
peer.close()
print(peer.version)
"""


def test_it_is_loaded_started_filled_and_ended(tmp_path: Path) -> None:
    for name, text in FAKES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "librmm",  # before what is linked to it
        "pylibwholegraph",
        "start 0 1 0 1 warn",
        "table comm continuous cpu [4, 3] [3, 1]",
        "freed",
        "end",
        "26.10.0",
    ]
