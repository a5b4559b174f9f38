"""Managed memory that is moved to the GPU on purpose, to see whether the move is counted.

Counters that were opened too late, or watch another process, say 0 as calmly as counters of memory
that stays where it is. A move of known size in the same window tells the two apart.
"""

from __future__ import annotations

import ctypes

from gatherbench.kernels.cuda_calls import call_runtime, runtime

#: The largest piece that the driver moves at once, and a multiple of every page size.
SIZE_BYTES = 2 << 20


class KnownMove:
    """Managed memory of :data:`SIZE_BYTES` that lies on the host until :meth:`to_gpu`.

    Attributes:
        addresses: where it lies.

    Raises:
        CudaCallError: there is no managed memory here.
    """

    def __init__(self) -> None:
        start = int(call_runtime("cudaMallocManaged", SIZE_BYTES, runtime().cudaMemAttachGlobal))
        self.addresses = range(start, start + SIZE_BYTES)
        ctypes.memset(start, 1, SIZE_BYTES)

    def to_gpu(self) -> None:
        """Move all of it to the current GPU, and wait for it.

        Raises:
            CudaCallError: CUDA refuses.
        """
        module, gpu = runtime(), runtime().cudaMemLocation()
        gpu.type = module.cudaMemLocationType.cudaMemLocationTypeDevice
        gpu.id = int(call_runtime("cudaGetDevice"))
        call_runtime("cudaMemPrefetchAsync", self.addresses.start, SIZE_BYTES, gpu, 0, 0)
        call_runtime("cudaDeviceSynchronize")

    def close(self) -> None:
        """Free it."""
        call_runtime("cudaFree", self.addresses.start)
