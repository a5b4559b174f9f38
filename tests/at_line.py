"""Something that comes between two lines: an interrupt, or a collection of garbage."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class AtLine:
    """Calls ``comes`` before the line ``number`` of those of a file, or of one function of it
    (``auto.py:search``), that are run: as Python may at any line, but at the same in each run."""

    def __init__(self, where: str, number: int, comes: Callable[[], None]) -> None:
        self._where, self._left, self._comes = where, number, comes

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        mine = self._where in f"{code.co_filename}:{code.co_name}"
        return self._line if mine and code.co_name != "__del__" else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self._left -= event == "line"
        if self._left == 0:
            self._left = -1
            self._comes()
        return self._line
