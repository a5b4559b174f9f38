"""Fetch rows by PyG's, DGL's and WholeGraph's own functions, in the loop that measures ours.

A built-in policy that is named after another library is our kernel; here their code runs. Rows are
new memory in each minibatch, as in their loaders. What a GPU reads has not run on one yet.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gatherbench.kernels.order import Order
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, Minibatches, Strategy, Ticket
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.cuda_fetcher import after
from gatherbench.strategies.data_path import DataPath, staged_path, zero_copy_path
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Ranks
from gatherbench.strategies.places import path_skip, with_index


class WholeGraph:
    """The library, started for one process, or for all ranks of ``torch.distributed``'s group."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        """Start the library; this raises the errors of importing and starting it."""
        if importlib.util.find_spec("librmm") is not None:
            # Its own loader finds this by way of libraft, which is needed only for that.
            importlib.import_module("librmm").load_library()
        self.version = str(importlib.import_module("pylibwholegraph").__version__)
        self._start = importlib.import_module("pylibwholegraph.torch.initialize")
        self._tensors = importlib.import_module("pylibwholegraph.torch.tensor")
        self._joined = dist.is_initialized()
        if self._joined:
            ranks = ranks or Ranks(0, 1, 1)
            world = ranks.rank, ranks.world, ranks.rank % ranks.local_world, ranks.local_world
            self._start.init(*world, wm_log_level="warn")
            self._comm = self._start.get_global_communicator()
        else:
            self._comm, _ = self._start.init_torch_env_and_create_wm_comm(
                0, 1, 0, 1, wm_log_level="warn"
            )

    def table(self, values: Tensor, kind: str = "continuous", location: str = "cpu") -> Any:
        """Make a WholeGraph table with these ``values`` ``[N, D]``; each rank fills its part.

        Args:
            kind: ``continuous``: each rank maps all of it; or ``distributed``: ranks exchange rows.
            location: ``cpu`` or ``cuda``.
        """
        rows, width = values.shape
        theirs = self._tensors.create_wholememory_tensor(
            self._comm, kind, location, [rows, width], values.dtype, [width, 1]
        )
        local, first = theirs.get_local_tensor(host_view=location == "cpu")
        local.copy_(values[first : first + len(local)])
        if self._joined:
            torch.cuda.synchronize()
            self._comm.barrier()
        return theirs

    def gather_from(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Gather rows ``[len(ids), D]`` of other memory by WholeGraph's kernel, in the ids' order.

        Its Python functions accept only its own tables; its C function accepts any address.

        Raises:
            RuntimeError: the C function fails.
        """
        env, gather = self._raw_gather
        out = torch.empty((len(ids), rows.shape[1]), dtype=rows.dtype, device=ids.device)
        given = [env.wrap_torch_tensor(tensor) for tensor in (rows, ids, out)]
        handles = [tensor.get_c_handle() for tensor in given]
        handles += [env.get_wholegraph_env_fns(), env.get_stream()]
        if status := gather(*map(ctypes.c_void_p, handles), -1):
            raise RuntimeError(f"wholememory_gather ended with status {status}")
        return out

    @functools.cached_property
    def _raw_gather(self) -> tuple[Any, Any]:
        (library,) = importlib.import_module("libwholegraph").load_library()
        env = importlib.import_module("pylibwholegraph.torch.wholegraph_env")
        return env, library.wholememory_gather

    def free(self, table: Any) -> None:
        """Free the table."""
        self._tensors.destroy_wholememory_tensor(table)

    def close(self) -> None:
        """End the library and its process group, which otherwise warns, or hangs, at exit."""
        if self._joined:  # its finalize would destroy the training's group
            self._start.wmb.finalize()
            self._start.reset_communicators()
        else:
            self._start.finalize()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Peer(Strategy):
    """The base class of the peers: strategies that need an optional package."""

    package: ClassVar[str]

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        if _version(self.package) is None:
            return Reason("not_installed", f"{self.package}; pip install {self.package}")
        return path_skip(device)


@dataclass(frozen=True)
class PeerPyg(Peer):
    """The work of PyG's loaders on a minibatch's rows, followed by `to(device)`."""

    package: ClassVar[str] = "torch-geometric"
    name: ClassVar[str] = "peer_pyg"
    summary: ClassVar[str] = f"PyG {_version(package)}: its loader's index_select, then .to(device)"
    colour: ClassVar[str] = "grey"

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        path = staged_path(ids, row_bytes)
        return replace(path, pageable_bytes=path.payload_bytes)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        gather = importlib.import_module("torch_geometric.loader.utils").index_select
        # A copy to the host is forced, as a path to a GPU always has one.
        return PeerFetcher(features, device, lambda t, ids, to: gather(t, ids).to(to, copy=True))


@dataclass(frozen=True)
class PeerDgl(Peer):
    """DGL's feature storage. ``rows``: gathered by the CPU, or read in place by the GPU (UVA)."""

    package: ClassVar[str] = "dgl"
    name: ClassVar[str] = "peer_dgl"
    summary: ClassVar[str] = f"DGL {_version(package)}: its feature storage's fetch"
    colour: ClassVar[str] = "yellow"

    rows: Literal["gathered", "in_place"] = "gathered"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        if self.rows == "in_place" and device.type == "cpu":
            return unsupported("rows = in_place is read by a GPU and means nothing on the host")
        return super().skip(device, table_bytes)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        if self.rows == "in_place":
            return zero_copy_path(ids, row_bytes, "dgl", "given")
        return staged_path(ids, row_bytes)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        os.environ.setdefault("DGLBACKEND", "pytorch")  # or DGL writes into the home folder
        wrap = importlib.import_module("dgl.storages").wrap_storage

        def fetch(table: Tensor, ids: Tensor, to: torch.device) -> Tensor:
            rows: Tensor = wrap(table).fetch(ids, to, pin_memory=to.type == "cuda")
            return rows if to.type == "cuda" else rows.clone()  # see PeerPyg

        if self.rows == "gathered":
            return PeerFetcher(features, device, fetch)
        pinned: Any = importlib.import_module("dgl.utils").pin_memory_inplace(features)
        return PeerFetcher(features, device, fetch, device, pinned.unpin_memory_)


@dataclass(frozen=True)
class PeerWholegraph(Peer):
    """WholeGraph's gather from a table of its own; its output is fresh in each minibatch.

    ``memory``: where the ranks have their parts of it, each the rows of a range. Every GPU reads
    all of it in place.
    """

    package: ClassVar[str] = "pylibwholegraph-cu13"
    name: ClassVar[str] = "peer_wholegraph"
    summary: ClassVar[str] = f"WholeGraph {_version(package)}: its gather from a table over ranks"
    colour: ClassVar[str] = "yellow"
    needs = frozenset({"ranks"})

    memory: Literal["host", "gpu"] = "host"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        if device.type == "cpu":
            return unsupported("WholeGraph gathers on a GPU")
        return super().skip(device, table_bytes)

    def kept_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        world = knowledge.ranks.world if knowledge.ranks else 1
        return -(-table_bytes // world) if self.memory == "gpu" else 0

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """Describe the data path of one rank."""
        return self._path(ids, row_bytes, torch.zeros_like(ids), Ranks(0, 1, 1))

    def data_paths(self, minibatches: Minibatches) -> Iterator[DataPath]:
        ranks = minibatches.knowledge.ranks or Ranks(0, 1, 1)
        rows_of_rank = max(1, -(-minibatches.num_rows // ranks.world))
        return (
            self._path(ids, minibatches.row_bytes, ids // rows_of_rank, ranks)
            for ids in minibatches.batches
        )

    def _path(self, ids: Tensor, row_bytes: int, owner: Tensor, ranks: Ranks) -> DataPath:
        if self.memory == "host":
            order: Order = "sorted" if row_bytes <= 512 else "given"
            path = zero_copy_path(ids, row_bytes, "wholegraph", order)
        else:
            own = int((owner == ranks.rank).sum()) * row_bytes
            sent = ids.numel() * row_bytes - own
            path = DataPath(0, gpu_memory_bytes=own, peer_bytes=sent, gpu_requests={})
        return replace(
            path,
            payload_bytes=ids.numel() * row_bytes,
            copy_engine_bytes=ids.numel() * ids.element_size(),
        )

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        ranks = knowledge.ranks or Ranks(0, 1, 1)
        library = WholeGraph(ranks)
        kind = "continuous" if ranks.world == ranks.local_world else "distributed"
        table = library.table(features, kind, "cpu" if self.memory == "host" else "cuda")

        def release() -> None:
            library.free(table)
            library.close()

        return PeerFetcher(
            features, device, lambda _t, ids, _to: table.gather(ids), device, release
        )


class PeerFetcher(Fetcher):
    """Call ``fetch(table, ids, device)`` of a peer, which queues work on the current stream."""

    def __init__(
        self,
        features: Tensor,
        device: torch.device,
        fetch: Callable[[Tensor, Tensor, torch.device], Tensor],
        ids_device: torch.device | None = None,
        release: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(features, with_index(device))
        self.ids_device = ids_device or self.ids_device
        self._table, self._fetch, self._release = features, fetch, release
        self._ring = TicketRing(1)

    def _submit(self, ids: Tensor) -> Ticket:
        self._ring.claim()
        rows = self._fetch(self._table, ids, self.device)
        if self.device.type == "cpu":
            return self._ring.issue(lambda: rows)
        queued = torch.cuda.current_stream(self.device).record_event()
        return self._ring.issue(lambda: after(queued, rows))

    def _close(self) -> None:
        self._ring.close()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # a gather may still read the table
        self._release()
        del self._table, self._fetch
