"""Compile the kernels with NVRTC, once on each machine, without a driver or nvcc.

NVRTC comes as a Python wheel and makes a cubin for any architecture it knows, so ``tools/sass.py``
can disassemble kernels for a GPU that is not here. Compiled kernels are cached by cuda.core in
``$GATHERBENCH_KERNEL_CACHE`` or the user's cache, if only this user can write there; processes may
compile the same kernel at the same time.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from gatherbench.kernels.cuda_calls import HOW_TO_INSTALL
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.private_folder import cache_folder, private_folder

KERNEL_SOURCE = Path(__file__).resolve().with_name("gather.cu")
#: The name of the kernel in every cubin.
KERNEL_NAME = "gather_kernel"
#: Architectures whose cubins the tests check: Turing, Ampere, Hopper, Blackwell (data centre).
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
_MAX_CACHE_BYTES = 64 << 20
#: cuda.core swaps its own modules while it is imported: a second thread would see half of them.
_importing = threading.Lock()


class CompilerError(RuntimeError):
    """This machine has no compiler, or the compiler refused the source."""


def compiler_version() -> str:
    """Return the version of NVRTC, e.g. ``13.0``; ``CompilerError`` if it is not installed."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as missing:
        text = f"no CUDA compiler: NVRTC could not be loaded. Install it with {HOW_TO_INSTALL}"
        raise CompilerError(text) from missing
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilerError(f"NVRTC does not tell its version: {status}")
    return f"{major}.{minor}"


def compile_gather(point: GridPoint, arch: str, *, source: str | None = None) -> bytes:
    """Return the cubin of the gather kernel of ``point``; see :func:`compile_source`."""
    return compile_source(source or KERNEL_SOURCE.read_text(), arch, point.kernel, [*point.macros])


def compile_source(
    code: str, arch: str, name: str, macros: list[tuple[str, str]] | None = None
) -> bytes:
    """Return the cubin of ``code`` for a real architecture, e.g. ``sm_90``, from the cache if it is
    there; ``name`` is for messages.

    Raises:
        CompilerError: there is no compiler, it does not know ``arch``, or it refused the source;
            the message holds its log.
        OSError: the cache cannot be written, e.g. on a full disk.
    """
    version = compiler_version()  # names what to install, before anything else can fail
    with _importing:
        try:
            from cuda.core import Program, ProgramOptions
            from cuda.core.utils import FileStreamProgramCache
        except ImportError as missing:
            text = f"cuda-core is needed: {missing}. Install it with {HOW_TO_INSTALL}"
            raise CompilerError(text) from missing

    options = ProgramOptions(name="gather", arch=arch, std="c++17", define_macro=macros)
    program = Program(code, "c++", options)
    folder = Path(os.environ.get("GATHERBENCH_KERNEL_CACHE") or cache_folder("kernels"))
    try:
        if not private_folder(folder):
            return bytes(program.compile("cubin").code)
        with FileStreamProgramCache(folder, max_size_bytes=_MAX_CACHE_BYTES) as cache:
            return bytes(program.compile("cubin", cache=cache).code)
    # cuda.core's error types are private: any error but an OSError is the compiler's.
    except OSError:
        raise
    except Exception as refused:
        log = str(refused).rstrip("\n\0")
        text = f"NVRTC {version} could not compile {name} for {arch}: {log}"
        raise CompilerError(text) from refused
