"""The kernel itself on the GPU: every policy, from device memory and over the link, bit for bit."""

import pytest
import torch
from torch import Tensor

from gatherbench.kernels.launch import Table, gather_into
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.kernels.policies import POLICIES

CUDA = torch.device("cuda")
ROWS = 1031
ROW_BYTES = (1, 2, 4, 12, 16, 64, 100, 128, 129, 400, 512, 1412, 2408, 4096, 8192)


def byte_table(rows: int, stride: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (rows, stride), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("place", ["device", "link"])
def test_every_policy_gathers_the_right_bytes(name, index, place):
    generator = torch.Generator().manual_seed(4)
    for row_bytes in ROW_BYTES:
        stride = POLICIES[name].row_stride(row_bytes)
        table = byte_table(ROWS, stride)
        ids = torch.randint(0, ROWS, (777,), generator=generator).to(index)
        expected = table[ids.long(), :row_bytes]
        places = torch.randperm(777, generator=generator)
        scattered = torch.empty_like(expected)
        scattered[places] = expected
        with HostRegistration(table) as registered:
            near = table.cuda()
            address = near.data_ptr() if place == "device" else registered.address
            seen = Table(address, ROWS, row_bytes, stride)
            for to, wanted in ((None, expected), (places.cuda(), scattered)):
                out = torch.full((777, row_bytes), 17, dtype=torch.uint8, device=CUDA)
                point = POLICIES[name].point(
                    *(row_bytes, 1),
                    table_address=address,
                    out_address=out.data_ptr(),
                    index_bytes=index.itemsize,
                )
                gather_into(out, seen, ids.cuda(), point, to)
                assert torch.equal(out.cpu(), wanted), f"rows of {row_bytes} B"


@pytest.mark.parametrize("name", POLICIES)
def test_a_bad_id_gives_zeros_and_its_name_and_harms_nobody(name):
    table = byte_table(ROWS, POLICIES[name].row_stride(400))
    ids = torch.arange(500)
    ids[[44, 300]] = torch.tensor([ROWS, -1])
    bad_id = torch.zeros(1, dtype=torch.int64, device=CUDA)
    with HostRegistration(table) as registered:
        out = torch.full((500, 400), 17, dtype=torch.uint8, device=CUDA)
        point = POLICIES[name].point(400, 4, table_address=registered.address)
        seen = Table(registered.address, ROWS, 400, table.shape[1])
        gather_into(out, seen, ids.cuda(), point, bad_id=bad_id)
        rows = out.cpu()
    assert int(bad_id) == -1
    assert not rows[[44, 300]].any()
    good = [k for k in range(500) if k not in (44, 300)]
    assert torch.equal(rows[good], table[good, :400])


def test_a_table_beyond_4_gib_and_2_to_the_31_elements():
    free = torch.cuda.mem_get_info()[0]
    if free < 8 << 30:
        pytest.skip("less than 8 GiB of GPU memory are free")
    rows, row_bytes = (5 << 30) // 512, 512
    table = torch.empty((rows, row_bytes), dtype=torch.uint8, device=CUDA)
    words = table.view(-1).view(torch.int64)
    for start in range(0, words.numel(), 1 << 27):
        part = words[start : start + (1 << 27)]
        torch.arange(start, start + part.numel(), out=part)
    ids = torch.tensor(
        [0, rows - 1, rows // 2, (4 << 30) // 512, (1 << 31) // 512 - 1], device=CUDA
    )
    out = torch.empty((5, row_bytes), dtype=torch.uint8, device=CUDA)
    for name in POLICIES:
        point = POLICIES[name].point(row_bytes, 1)
        gather_into(out.zero_(), Table(table.data_ptr(), rows, row_bytes, row_bytes), ids, point)
        assert torch.equal(out, table[ids]), name


def test_the_launch_goes_to_the_current_stream():
    """Queued behind a sleep on another stream, the gather has not happened yet."""
    table = torch.ones(1000, 64, device=CUDA)
    ids = torch.arange(1000, device=CUDA)
    out = torch.zeros(1000, 64, device=CUDA)
    seen = Table(table.data_ptr(), 1000, 256, 256)
    point = POLICIES["aligned"].point(256, 4)
    gather_into(out.clone(), seen, ids, point)  # compiled and loaded
    assert not out.any()  # this, too: loading a kernel may wait for all that runs
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        gather_into(out, seen, ids, point)
    assert not out.any()  # on the default stream, which waits for nobody
    side.synchronize()
    assert out.all()
