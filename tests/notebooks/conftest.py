"""Runs as the harness's tests write them."""

from ..bench.conftest import make_run

__all__ = ["make_run"]
