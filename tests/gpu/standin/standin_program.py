"""``cuda.core.Program`` that builds with g++, too, what NVRTC compiles.

A cubin cannot run without a GPU; the library that g++ makes of the same source and macros can. It
is kept under a hash of the cubin, where the stand-in's driver finds it when the cubin is loaded.
"""

import os
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

_NATIVE = Path(__file__).resolve().parent / "native"
_SHIM = Path(__file__).resolve().parents[2] / "shim"
#: What native/kernel_after.h can start.
_KERNELS = (
    *("gather_kernel", "lookup_kernel", "read_kernel"),
    *("count_kernel", "draw_kernel", "mark_kernel", "relabel_kernel"),
)
_NO_BYTES = 8  # SHT_NOBITS


def install(core: ModuleType) -> None:
    """Replace ``Program`` in the module ``cuda.core``."""
    real = core.Program

    class Program:
        def __init__(self, code: str, code_type: str, options: Any = None) -> None:
            self._code, self._options = code, options
            self._program = real(code, code_type, options)

        def compile(self, *args: Any, **kwargs: Any) -> Any:
            made = self._program.compile(*args, **kwargs)
            build(self._code, self._options.define_macro or (), bytes(made.code))
            return made

    core.Program = Program


def build(source: str, macros: Iterable[str | tuple[str, str]], cubin: bytes) -> None:
    """Make the library of ``cubin``, if it is not there."""
    known = [name for name in _KERNELS if f"{name}(" in source]
    if not known:  # a test's own kernel: loading it will fail, and say so
        return
    folder = Path(os.environ["STANDIN_KERNELS"])
    library = folder / f"{_hash(cubin[: _elf_size(cubin)]):016x}.so"
    if library.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    defined = ["=".join(m) if isinstance(m, tuple) else m for m in macros]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        unit, made = Path(work, "kernel.cpp"), Path(work, "kernel.so")
        unit.write_text(f'#include "cuda_shim.h"\n{source}\n#include "kernel_after.h"\n')
        command = [
            "g++",
            "-std=c++17",
            "-O2",
            "-w",
            "-shared",
            "-fPIC",
            f"-I{_NATIVE}",
            f"-I{_SHIM}",
        ]
        command += [f"-D{name}" for name in (*defined, *(f"KERNEL_{one}" for one in known))]
        subprocess.run([*command, str(unit), "-o", str(made)], check=True, env=_without_standin())
        made.replace(library)


def _without_standin() -> dict[str, str]:
    """The environment without the stand-in's library, which a compiler does not need."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def _hash(data: bytes) -> int:
    """FNV-1a of 64 bits, as in native/driver.cpp."""
    result = 1469598103934665603
    for byte in data:
        result = ((result ^ byte) * 1099511628211) & (2**64 - 1)
    return result


def _elf_size(data: bytes) -> int:
    """Bytes of the ELF file at the start of ``data``: a driver is given no length either."""
    program_at, sections_at = struct.unpack_from("<QQ", data, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<4H", data, 54)
    end = max(program_at + programs * program_size, sections_at + sections * section_size)
    for i in range(sections):
        at = sections_at + i * section_size
        (kind,) = struct.unpack_from("<I", data, at + 4)
        offset, size = struct.unpack_from("<QQ", data, at + 24)
        if kind != _NO_BYTES:
            end = max(end, offset + size)
    return end
