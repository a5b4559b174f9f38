"""What this machine is: its processors and NUMA nodes, its GPUs and their link, its software.

A run keeps the description in ``env.json``; nothing here measures.
"""

from contextlib import suppress
from pathlib import Path


def kernel_text(path: str | Path) -> str:
    """Read a small file of the kernel, stripped; empty if it is absent or unreadable."""
    with suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text().strip()
    return ""
