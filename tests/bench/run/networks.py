"""Network namespaces that stand for machines, and what listens in one of them."""

import ipaddress
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

STRANGER = Path(__file__).parent / "stranger.py"


@dataclass(frozen=True)
class Place:
    """A machine's network: what a command is run in, and its address."""

    prefix: tuple[str, ...]
    address: str


def ip(*words: str) -> None:
    """Run ``ip`` with these words."""
    subprocess.run(("ip", *words), check=True, capture_output=True)


@contextmanager
def two_places() -> Iterator[tuple[Place, Place]]:
    """Two machines with a link between them; the test is skipped where that takes rights."""
    name, (one, other) = secrets.token_hex(3), ("a", "b")
    net = secrets.randbelow(200) + 20
    ends = ((one, 1), (other, 2))
    try:
        try:
            for end, _ in ends:
                ip("netns", "add", f"gb{name}{end}")
            ip("link", "add", f"v{name}{one}", "type", "veth", "peer", "name", f"v{name}{other}")
            for end, host in ends:
                space, link = f"gb{name}{end}", f"v{name}{end}"
                ip("link", "set", link, "netns", space)
                ip("-n", space, "addr", "add", f"10.97.{net}.{host}/24", "dev", link)
                ip("-n", space, "link", "set", "lo", "up")
                ip("-n", space, "link", "set", link, "up")
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("network namespaces need root and iproute2")
        yield tuple(  # type: ignore[misc]
            Place(
                ("ip", "netns", "exec", f"gb{name}{end}"),
                f"10.97.{net}.{host}",
            )
            for end, host in ends
        )
    finally:
        for end, _ in ends:
            subprocess.run(
                ("ip", "netns", "del", f"gb{name}{end}"), check=False, capture_output=True
            )


def listening(pid: int) -> dict[str, set[int]]:
    """Ports on which something listens in the network of a process, by address."""
    found: dict[str, set[int]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state != "0A":
                continue
            address, _, port = local.partition(":")
            words = bytes.fromhex(address)
            swapped = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
            where = ipaddress.ip_address(swapped)
            mapped = getattr(where, "ipv4_mapped", None)
            found.setdefault(str(mapped or where), set()).add(int(port, 16))
    return found


def attacked(here: Place, victim: Place, mark: Path, run_id: str, ports: set[int]) -> list[str]:
    """The ports that let a stranger in."""
    command = (*here.prefix, sys.executable, str(STRANGER), victim.address, str(mark), run_id)
    done = subprocess.run(
        (*command, *map(str, sorted(ports))), capture_output=True, text=True, check=True
    )
    return done.stdout.split()
