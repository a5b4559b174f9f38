"""`gatherbench doctor`: what this machine has and lacks."""

from __future__ import annotations

from gatherbench.bench.commands.common import console


def doctor() -> None:
    """Say what this machine has, and what is lost by what it lacks."""
    from gatherbench.bench.probe.doctor import examine, print_doctor

    print_doctor(console(), examine())
