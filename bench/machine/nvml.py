"""NVML's Python bindings, imported when a sensor is read.

They are nvidia-ml-py's module ``pynvml``. An old package that is called pynvml (11.5, which others
still ask for) installs a folder of that name, which hides it and lacks what is asked here. So a run
without a GPU needs neither, and where a sensor is read the wrong one is named with its remedy.
Everything of ``pynvml`` is an attribute of this module.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from gatherbench.outside import words_of
from gatherbench.reason import Reason, SensorUnavailableError

#: What nvidia-ml-py has since the version that we require, and the other never had.
_SINCE = "nvmlClocksEventReasonSwPowerCap"
_REMEDY = "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"


@functools.cache
def _bindings() -> Any:
    try:
        found = importlib.import_module("pynvml")
    except Exception as error:  # whatever is installed under that name
        what = f"pynvml cannot be imported ({words_of(error)})"
        raise SensorUnavailableError(Reason("not_installed", what, _REMEDY)) from error
    if _SINCE not in vars(found):
        what = f"{found.__file__} is not nvidia-ml-py, or an old one: another package hides it"
        raise SensorUnavailableError(Reason("not_installed", what, _REMEDY))
    return found


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what Python itself asks of a module
        raise AttributeError(name)
    return getattr(_bindings(), name)
