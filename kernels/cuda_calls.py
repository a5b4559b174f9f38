"""Call CUDA's own Python bindings, and turn every bad status into an error with an explanation.

torch offers neither registration of existing memory with flags nor a launch of a cubin. The
bindings are imported at the first call: a machine without a GPU can import this module, and an
error at use names what is missing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from typing import Any

from gatherbench.plugins import installing

HOW_TO_INSTALL = f"{installing('cu13')} (driver 580 or newer), or cu12 in its place"
NO_DRIVER = "There is no working NVIDIA driver: `nvidia-smi` should say the same"
#: The oldest driver for each major version of CUDA (CUDA Toolkit release notes, table 2).
LEAST_DRIVER = {12: "525.60", 13: "580.65"}


class CudaCallError(RuntimeError):
    """A CUDA call failed; ``code`` is the name of its status, e.g. ``cudaErrorNotSupported``."""

    def __init__(self, call: str, code: str, text: str, hint: str = "") -> None:
        super().__init__(f"{call} failed: {code} ({text})" + (f". {hint}" if hint else ""))
        self.call, self.code = call, code


@functools.cache
def _bindings(name: str) -> Any:
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError as missing:
        raise CudaCallError(
            f"import cuda.bindings.{name}", "ImportError", str(missing), HOW_TO_INSTALL
        ) from missing


#: Return CUDA's module of this name; ``CudaCallError`` if it is not installed.
runtime, driver = (functools.partial(_bindings, name) for name in ("runtime", "driver"))


def call_runtime(name: str, *arguments: Any, hints: dict[str, str] | None = None) -> Any:
    """Call ``cudaName(*arguments)``; return its result without the status, or ``None``.

    Raises:
        CudaCallError: the status is not success; ``hints`` are remedies by status name.
    """
    module = runtime()
    try:
        return _call(module, "cudaGetErrorString", name, arguments, hints or {})
    except CudaCallError:
        module.cudaGetLastError()  # reported here, so clear it
        raise


def call_driver(name: str, *arguments: Any) -> Any:
    """Call ``cuName(*arguments)`` like :func:`call_runtime`; it raises without a driver, too."""
    return _call(driver(), "cuGetErrorString", name, arguments, {})


def _call(
    module: Any, describe: str, name: str, arguments: tuple[Any, ...], hints: dict[str, str]
) -> Any:
    try:
        status, *answer = getattr(module, name)(*arguments)
    except RuntimeError as missing:  # the bindings load the driver at the first call
        text, hint = str(missing).splitlines()[0], "install the NVIDIA driver"
        raise CudaCallError(name, "no driver", text, hint) from missing
    if not int(status):
        return answer[0] if len(answer) == 1 else (tuple(answer) or None)
    hint = hints.get(status.name, "")
    if status.name == "cudaErrorInsufficientDriver":
        hint = driver_shortage() or NO_DRIVER
    _, text = getattr(module, describe)(status)
    raise CudaCallError(name, status.name, (text or b"no description").decode(), hint)


def driver_shortage(major: int | None = None) -> str:
    """Return the remedy for a driver too old for CUDA ``major`` (default: that of the bindings);
    empty where it is new enough, and where there is none."""
    try:
        served = int(call_driver("cuDriverGetVersion"))  # e.g. 12080; needs no GPU, and no cuInit
    except CudaCallError:
        return ""
    needed = major or int(importlib.metadata.version("cuda-bindings").partition(".")[0])
    if served // 1000 >= needed:
        return ""
    return (
        f"The driver serves CUDA {served // 1000}.{served % 1000 // 10}, and CUDA {needed} is"
        f" installed here: {installing(f'cu{served // 1000}')} in an environment without it,"
        f" or driver {LEAST_DRIVER.get(needed, 'of that version')} or newer"
    )


def device_attribute(name: str, device: int) -> int:
    """Return attribute ``name`` (``cudaDevAttr…``) of CUDA device ``device``."""
    attribute = getattr(runtime().cudaDeviceAttr, name)
    return int(call_runtime("cudaDeviceGetAttribute", attribute, device))


def pointer_kind(address: int) -> str:
    """Return CUDA's kind of memory at ``address``: Unregistered, Host (page-locked or registered
    host memory), Device or Managed."""
    kind: str = call_runtime("cudaPointerGetAttributes", address).type.name
    return kind.removeprefix("cudaMemoryType")
