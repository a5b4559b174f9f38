"""Import NVML's Python bindings when a sensor is read.

They are nvidia-ml-py's module ``pynvml``. An old package called pynvml (11.5, which some packages
still require) installs a folder of that name, which hides it and lacks functions. So a run without
a GPU needs neither, and an error at the first sensor names the wrong package and the remedy. Every
attribute of ``pynvml`` is an attribute of this module.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from gatherbench.outside import words_of
from gatherbench.reason import Reason, SensorUnavailableError

#: An attribute of nvidia-ml-py since the required version, which the other package lacks.
_SINCE = "nvmlClocksEventReasonSwPowerCap"
_REMEDY = "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"


@functools.cache
def _bindings() -> Any:
    try:
        module = importlib.import_module("pynvml")
    except Exception as error:  # any package may have that name
        cause = f"pynvml cannot be imported ({words_of(error)})"
        raise SensorUnavailableError(Reason("not_installed", cause, _REMEDY)) from error
    if _SINCE not in vars(module):
        cause = f"{module.__file__} is not nvidia-ml-py, or an old one: another package hides it"
        raise SensorUnavailableError(Reason("not_installed", cause, _REMEDY))
    return module


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python's own queries of a module
        raise AttributeError(name)
    return getattr(_bindings(), name)
