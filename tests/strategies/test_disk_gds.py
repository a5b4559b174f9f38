"""GPUDirect Storage: kvikio is stood in for by a file of the host, and the GPU by host memory."""

import importlib.machinery
import importlib.util
import os
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.kernels.disk_read import DiskReadError
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies import disk_gds
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.disk_gds import DiskGds, GdsFetcher
from gatherbench.strategies.knowledge import Knowledge

HOST = torch.device("cpu")


class CuFile:
    """What is used of kvikio's."""

    def __init__(self, path: str, flags: str) -> None:
        self._fd = os.open(path, os.O_RDONLY)

    def pread(self, buf: Tensor, size: int, file_offset: int) -> SimpleNamespace:
        arrived: Future[int] = Future()
        arrived.set_result(os.preadv(self._fd, [memoryview(buf.numpy())[:size]], file_offset))
        return SimpleNamespace(get=arrived.result)

    def close(self) -> None:
        os.close(self._fd)


def table(folder: Path, rows: int, width: int) -> tuple[TableFile, Tensor]:
    values = torch.arange(rows * width, dtype=torch.int32).view(rows, width)
    path = folder / "table"
    path.write_bytes(bytes(128) + values.numpy().tobytes())
    return TableFile(path, 128, rows, 4 * width), values


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    width=st.integers(1, 2100),
    ids=st.lists(st.integers(0, 99), max_size=40),
    group=st.sampled_from([1, 3, 4096]),
)
def test_rows_come_in_the_order_of_the_ids(tmp_path, width, ids, group):
    file, values = table(tmp_path, 100, width)
    asked = torch.tensor(ids, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_gds, "GROUP", group)
        fetcher = GdsFetcher(SimpleNamespace(CuFile=CuFile), file, torch.empty_like(values), HOST)
        with fetcher:
            assert torch.equal(fetcher.submit(asked).result(), values[asked])
            known = Knowledge(file=file)
            (said,) = DiskGds().data_paths([asked], file.row_bytes, 100, known)
            counts = {"disk_read": said.disk_bytes, "disk_requests": said.disk_requests}
            assert fetcher.counts() == counts


def test_declared_by_hand():
    """Rows 0 and 9 of 512 B lie in blocks 0 and 1, which touch: one read of both, over the link."""
    assert DiskGds().data_path(torch.tensor([0, 9]), 512) == DataPath(
        payload_bytes=1024,
        cpu_write_bytes=1024,
        copy_engine_bytes=8192,
        gpu_requests={},
        disk_payload_bytes=1024,
        disk_bytes=8192,
        disk_requests=1,
    )


def test_a_table_that_is_cut_short_is_named(tmp_path):
    file, values = table(tmp_path, 100, 128)
    with GdsFetcher(SimpleNamespace(CuFile=CuFile), file, values, HOST) as fetcher:
        os.truncate(file.path, 128 + 50 * 512)
        assert torch.equal(fetcher.submit(torch.tensor([3])).result(), values[3:4])
        with pytest.raises(DiskReadError, match="0 of 4096 bytes came from byte 32768 on: it was"):
            fetcher.submit(torch.tensor([70]))
        with pytest.raises(DiskReadError, match="1152 of 4096 bytes came from byte 24576 on"):
            fetcher.submit(torch.tensor([50]))


def test_it_runs_on_a_gpu_with_kvikio_alone(monkeypatch):
    assert str(DiskGds().skip(HOST)) == "unsupported: GPUDirect Storage reads into GPU memory"
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = {"kvikio": None}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    assert str(DiskGds().skip(cuda)) == "not_installed: kvikio (pip install kvikio-cu13)"
    found["kvikio"] = importlib.machinery.ModuleSpec("kvikio", None)
    assert DiskGds().skip(cuda) is None
