"""No test here cuts the power, so none waits for the disk."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
