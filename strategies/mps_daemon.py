"""Find or start the MPS daemon: without it two processes take turns on a GPU.

A process becomes a client of MPS at its first call into CUDA or never: :func:`mps_client` is
entered before that. It finds a daemon, or starts one in a private folder, with a watcher that stops
it when this process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gatherbench.kernels.cuda_calls import CudaCallError, device_attribute
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.places import with_index

CONTROL = "nvidia-cuda-mps-control"
#: Where clients look for the daemon (NVIDIA MPS documentation, "Environment Variables").
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
DEFAULT_PIPE_FOLDER = "/tmp/nvidia-mps"
_START_S = 20
_NOWHERE = subprocess.DEVNULL  # a daemon that held a pipe's end would be waited for
_LOOK_S = 0.1

#: A program that opens the first GPU and exits; it fails with the driver's error.
_CLIENT = (
    sys.executable,
    "-c",
    "from gatherbench.kernels.cuda_calls import call_driver as call; call('cuInit', 0); "
    "call('cuDevicePrimaryCtxRetain', call('cuDeviceGet', 0))",
)
#: A script that waits until the process at the other end of its standard input has ended.
_WATCHER = f'read -r _; echo quit | {CONTROL}; rm -rf "$1"'
#: The writing ends of the watchers' pipes: they close only when this process ends.
_watched: list[int] = []
#: The reasons why no daemon could be started.
_refused: list[str] = []


def mps_skip(device: torch.device) -> Reason | None:
    """Return why this process cannot share CUDA ``device`` through MPS; ``None`` if it can."""
    if shutil.which(CONTROL) is None:
        return unsupported(f"{CONTROL} is not on the PATH, so no MPS daemon can be started")
    if _refused:
        return unsupported(f"no MPS daemon ({_refused[-1]})")
    try:
        if device_attribute("cudaDevAttrMpsEnabled", with_index(device).index):
            return None
    except CudaCallError as error:
        return unsupported(str(error))
    return unsupported(
        "this process is no client of MPS; the daemon must run before the process first uses the "
        f"GPU: start it with `{CONTROL} -d`, then the program"
    )


@contextlib.contextmanager
def mps_client(percent: int) -> Iterator[None]:
    """Make this process, which has not used the GPU yet, a client with ``percent`` of the SMs, as
    the processes that it starts in the block. If no daemon can be found or started, nothing is
    raised, and :func:`mps_skip` returns why."""
    settings = {SHARE_VARIABLE: str(percent)}
    if shutil.which(CONTROL) is not None:
        try:
            if daemon_answers(os.environ):
                _try_out({**os.environ})
            else:
                settings |= _start()
            _refused.clear()
        except (OSError, subprocess.SubprocessError) as error:
            _refused.append(_words_of(error))
    before = {name: os.environ[name] for name in settings if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)
        os.environ.update(before)


def daemon_answers(environment: os._Environ[str] | dict[str, str]) -> bool:
    """Tell whether a daemon listens where clients with this ``environment`` look for it."""
    folder = environment.get(PIPE_VARIABLE, DEFAULT_PIPE_FOLDER)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if Path(folder, "control").exists():
            _ask("get_server_list", {**environment, PIPE_VARIABLE: folder})
            return True
    return False


def _start() -> dict[str, str]:
    folder = tempfile.mkdtemp(prefix="gatherbench-mps-")
    settings = {PIPE_VARIABLE: folder, LOG_VARIABLE: folder}
    environment = {**os.environ, **settings}
    environment.pop(SHARE_VARIABLE, None)  # the daemon would apply it to all clients
    try:
        _run([CONTROL, "-d"], environment, stdin=_NOWHERE, stdout=_NOWHERE, stderr=_NOWHERE)
        _await_daemon(environment)
        _try_out(environment)
    except (OSError, subprocess.SubprocessError):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _ask("quit", environment)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    ours, theirs = os.pipe()
    try:
        streams: Any = {"stdin": ours, "stdout": _NOWHERE, "stderr": _NOWHERE}
        command = ["/bin/sh", "-c", _WATCHER, "sh", folder]
        # A session of its own keeps Ctrl-C and the group's end from it.
        subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    finally:
        os.close(ours)
    _watched.append(theirs)
    return settings


def _await_daemon(environment: dict[str, str]) -> None:
    """Poll for up to :data:`_START_S`: the daemon may be starting when the command returns."""
    until = time.monotonic() + _START_S
    while True:
        try:
            return _ask("get_server_list", environment)
        except subprocess.CalledProcessError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)


def _try_out(environment: dict[str, str]) -> None:
    """Let a short-lived client open the GPU: a server that hangs would hang this process, too."""
    _run(_CLIENT, environment, capture_output=True, text=True)


def _words_of(error: OSError | subprocess.SubprocessError) -> str:
    """Return the error in one line, with the last line that a failed program has printed."""
    printed = getattr(error, "stderr", None)  # text in a CalledProcessError; bytes after a timeout
    lines = printed.strip().splitlines() if isinstance(printed, str) else []
    return " ".join([*str(error).split(), *lines[-1:]])


def _ask(question: str, environment: dict[str, str]) -> None:
    _run([CONTROL], environment, input=f"{question}\n", capture_output=True, text=True)


def _run(command: Sequence[str], environment: dict[str, str], **streams: Any) -> None:
    subprocess.run(command, env=environment, check=True, timeout=_START_S, **streams)
