"""The kernels of ``sample.cu`` on the host, under sanitizers, for a sampler that launches them."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.shim.execute import Driver, build
from torch import Tensor

from gatherbench.bench.sampling import device_sampler
from gatherbench.bench.sampling.device_sampler import _KERNELS
from gatherbench.kernels.compiler import KERNEL_SOURCE
from gatherbench.kernels.launch import BLOCK_THREADS

SOURCE = KERNEL_SOURCE.with_name("sample.cu")


def built(folder: Path, source: Path = SOURCE, *, sanitize: bool = True) -> Path:
    """The program that runs ``source``."""
    driver = Path(__file__).with_name("sample_driver.cpp")
    return build(folder, source, driver=driver, sanitize=sanitize)


class HostKernels(Driver):
    """Runs the kernels of ``sample.cu``; :meth:`launch` is for ``launch.launch_threads``."""

    def __init__(self, program: Path) -> None:
        super().__init__(program)
        self.files: dict[int, Path] = {}  # of tensors that are maps of a file, by their address
        self.launched: list[str] = []

    def launch(
        self, kernel: str, threads: int, arguments: Sequence[Tensor | int], *_: object
    ) -> None:
        """Run ``kernel``, called by its name, on host tensors.

        Raises:
            ShimError: a sanitizer stopped the kernel; the message is its report.
        """
        self.launched.append(kernel)
        blocks, given = -(-threads // BLOCK_THREADS), (threads, *arguments)
        head = (_KERNELS.index(kernel), blocks, BLOCK_THREADS, len(given))
        self._write(struct.pack("<4Q", *head))
        written = []
        for one in given:
            if not isinstance(one, Tensor):
                self._write(struct.pack("<2Q", 0, one % 2**64))
            elif (file := self.files.get(one.data_ptr())) is not None:
                path = bytes(file)
                self._write(struct.pack("<2Q", 2, len(path)) + path)
            else:
                written.append(one.numpy())
                self._write(struct.pack("<2Q", 1, one.nbytes) + one.numpy().tobytes())
        for array in written:
            array[...] = np.frombuffer(self._read(array.nbytes), array.dtype).reshape(array.shape)
        self._read(1)


@contextmanager
def on_host(program: Path) -> Iterator[HostKernels]:
    """Every ``DeviceSampler`` that is made and used here launches the kernels of ``program``."""
    with HostKernels(program) as kernels, pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_sampler, "architecture", lambda _: "")
        patch.setattr(device_sampler, "load_from", lambda file, name, arch: name)
        patch.setattr(device_sampler, "launch_threads", kernels.launch)
        yield kernels
