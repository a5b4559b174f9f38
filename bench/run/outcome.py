"""How a piece of work ended: done, skipped, or failed; a full disk is the run's trouble."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable

#: Exit status that tells the runner that the disk is full (EX_IOERR of sysexits.h): no case can
#: be measured until there is room, so the run stops where a failed case would not stop it.
DISK_FULL = 74


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error, however it has been worded since."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome(work: Callable[[], str | None]) -> tuple[str, str | None]:
    """Status of a piece of work that returns why it was skipped; why it is not ``ok``.

    Raises:
        Exception: the disk is full.
    """
    try:
        skipped = work()
    except Exception as error:
        if is_disk_full(error):
            raise
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error}"
    return ("skipped", skipped) if skipped else ("ok", None)
