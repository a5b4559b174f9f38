"""What the sanitizer watches: every policy on small shapes, and each kind of fetcher.

Run with PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that a buffer's end is the end of an allocation. The
argument ``few`` is for tools that look at what our kernel does not use.
"""

import sys

import torch

from gatherbench.kernels.launch import Table, gather_into
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.kernels.policies import POLICIES
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.registry import build

few = sys.argv[1:] == ["few"]
for row_bytes in (127, 400) if few else (1, 4, 100, 127, 129, 400, 1412):
    for name, policy in POLICIES.items():
        stride = policy.row_stride(row_bytes)
        table = torch.randint(0, 256, (67, stride), dtype=torch.uint8)
        ids = torch.randint(0, 67, (133,))
        with HostRegistration(table) as registered:
            near = table.cuda()
            for address in (registered.address, near.data_ptr()):
                out = torch.zeros((133, row_bytes), dtype=torch.uint8, device="cuda")
                places = {"table_address": address, "out_address": out.data_ptr()}
                point = policy.point(row_bytes, 1, **places)
                gather_into(out, Table(address, 67, row_bytes, stride), ids.cuda(), point)
                assert torch.equal(out.cpu(), table[ids, :row_bytes]), (name, row_bytes)

device = torch.device("cuda")
features = torch.randn(300, 37)
for strategy in (
    build("aligned_zero_copy", {"order": "sorted"}),
    build("aligned_zero_copy", {"order": "unique"}),
    build("async_zero_copy", {"budget": "5"}),
    build("cached_zero_copy"),
    build("all_in_gpu"),
):
    with open_known(strategy, features, device) as fetcher:
        for count in (1, 200, 77):
            wanted = torch.randint(0, 300, (count,))
            assert torch.equal(fetcher.submit(wanted).result().cpu(), features[wanted])
print("workload done")
