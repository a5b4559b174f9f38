"""Sampling on the GPU, so that a slow sampler on the CPU does not hide the data path.

It draws the minibatches that the CPU's sampler draws, bit for bit (``torch_sampler.py``). Sampling
waits for the GPU several times a minibatch, so it has a stream of its own: it then waits for its
own work only, not for queued training. The edges stay on the GPU. The ids come back to the host on
that stream, where every data path checks them without waiting for training: 8 B a row over the
link, which all paths pay alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.torch_sampler import TorchNeighborSampler


class DeviceSampler:
    """A copy of the graph on ``device``, and minibatches drawn there.

    Args:
        indptr, indices: as for :class:`TorchNeighborSampler`, on the host; may be memory maps.
        fanouts: from the seeds outwards.
        device: a GPU, or the host.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32] | NDArray[np.int64],
        fanouts: Sequence[int],
        device: torch.device,
    ) -> None:
        lists, edges = (torch.from_numpy(np.array(part)).to(device) for part in (indptr, indices))
        self._sampler = TorchNeighborSampler(lists, edges, fanouts)
        self._device = device
        self._stream = _stream(device) if device.type == "cuda" else None

    @property
    def num_nodes(self) -> int:
        return self._sampler.num_nodes

    def sample(self, seeds: Tensor, seed: int) -> MiniBatch:
        """Draw the minibatch of ``seeds`` (int64 ``[S]`` on the host).

        ``input_ids`` are on the host, the edges on the device, where what the current stream does
        from here on finds them. Errors as :meth:`TorchNeighborSampler.sample`.
        """
        if self._stream is None:
            return self._sampler.sample(seeds, seed)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            drawn = self._sampler.sample(seeds.to(self._device), seed)
            ids = drawn.input_ids.cpu()
        current.wait_stream(self._stream)
        for made in drawn.edges:
            made.record_stream(current)  # or it could be handed on while the training reads it
        return MiniBatch(ids, drawn.edges, drawn.num_nodes)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
