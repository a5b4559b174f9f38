"""No test here waits for the disk, reaches out to a network, or is asked on the terminal."""

import os
import socket

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, address: object) -> None:
        raise AssertionError(f"something reached out to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
