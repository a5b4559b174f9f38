"""`gatherbench doctor`: what this machine has and lacks."""

from __future__ import annotations

from gatherbench.bench.commands.common import console


def doctor() -> None:
    """Print what this machine has, and what cannot be measured on it."""
    from gatherbench.bench.probe.doctor import examine, print_doctor

    print_doctor(console(), examine())
