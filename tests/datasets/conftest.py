"""No test here cuts the power, so none waits for the disk; and a machine without a network."""

import os

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object, **_kwargs: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", fails)
