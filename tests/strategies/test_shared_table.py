"""One copy of a table for the ranks of a machine."""

import errno
import gc
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gatherbench
from gatherbench.strategies import shared_table as module

from .rank_processes import on_ranks

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    ("local", "seen"),
    [
        (2, [[True, True, False, False]] * 2),
        (1, [[True, False, False, False], [False, True, False, False]]),
    ],
)
def test_what_one_writes_the_ranks_of_its_machine_read(local, seen, tmp_path):
    def work(rank: int) -> list[bool]:
        # Only the first rank's rows are read.
        x = gatherbench.shared_table(TABLE if rank % local == 0 else np.zeros_like(TABLE))
        assert np.array_equal(x.numpy(), TABLE)
        dist.barrier()
        x[rank] = -1
        dist.barrier()
        found: list[bool] = (x[:, 0] == -1).tolist()
        with gatherbench.unified(x, device="cpu") as features:
            assert torch.equal(features[[3, 2]], x[[3, 2]])
        maps = Path("/proc/self/maps")
        assert "gatherbench-table" in maps.read_text()
        del x, features
        gc.collect()
        assert "gatherbench-table" not in maps.read_text()
        return found

    assert on_ranks(2, work, tmp_path, local_world=local) == seen


def test_all_ranks_hear_that_there_is_no_room_or_that_one_may_not_look(tmp_path, monkeypatch):
    def work(_rank: int) -> str:
        huge = np.broadcast_to(np.float32(0), (2**50, 3))
        with pytest.raises(MemoryError) as none:
            gatherbench.shared_table(huge)
        if dist.get_rank():

            def refuse(*_: object) -> None:
                raise PermissionError(errno.EACCES, "no")

            monkeypatch.setattr(module, "map_table", refuse)
        with pytest.raises(OSError, match=r"rank 1 may not open .*: start both as one user"):
            gatherbench.shared_table(TABLE)
        return str(none.value)

    (said, other) = map(str, on_ranks(2, work, tmp_path))
    assert said == other
    assert re.match(r"rank 0 has no 12582912.00 GiB of shared memory: ", said)


@pytest.mark.parametrize("table", [TABLE, torch.arange(6, dtype=torch.bfloat16).view(3, 2)])
def test_a_process_alone_has_a_copy_of_its_own(table):
    x = gatherbench.shared_table(table)
    assert torch.equal(x, torch.as_tensor(table))
    x[0, 0] = 7
    assert table[0, 0] != 7
    assert gatherbench.shared_table(np.empty((0, 3), np.int8)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"expected a table \[N, D\] in host memory, got \[12\]"):
        gatherbench.shared_table(TABLE.ravel())
