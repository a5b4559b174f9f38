"""Every registered strategy, in every variant that runs on the host, keeps the contract."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from host_paths import HOST, RUNNABLE

from gatherbench.bench.model.predict import refusal
from gatherbench.strategies import conformance
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import STRATEGIES, variants

#: Which rows a policy keeps, and how many, does not change how they are moved.
MOVERS = [
    param
    for param in RUNNABLE
    if "cached" not in str(param.id) or re.search(r"(presampled|lru|belady),10%", str(param.id))
]
SHAPES = [
    pytest.param(dtype, size, id=f"{str(dtype).removeprefix('torch.')}-{size}B")
    for dtype in conformance.DTYPES
    for size in conformance.ROW_BYTES
    if size % dtype.itemsize == 0
]


@pytest.mark.parametrize("strategy", MOVERS)
@pytest.mark.parametrize(("dtype", "row_bytes"), SHAPES)
def test_rows_are_those_of_the_reference(
    strategy: Strategy, dtype: torch.dtype, row_bytes: int
) -> None:
    conformance.check_rows(strategy, HOST, dtype, row_bytes)


@pytest.mark.parametrize("strategy", RUNNABLE)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda c: c.__name__)
def test_contract(check: Callable[[Strategy, torch.device], None], strategy: Strategy) -> None:
    check(strategy, HOST)


def test_every_strategy_runs_its_default_variant_on_the_host_but_one() -> None:
    skipped = {cls.name: cls().skip(HOST) for cls in STRATEGIES if cls().skip(HOST) is not None}
    assert skipped == {"disk_gds": "unsupported: GPUDirect Storage reads into GPU memory"}


@pytest.mark.parametrize("cls", STRATEGIES)
def test_a_gpu_that_is_not_here_is_no_reason_against_gpus(cls: type[Strategy]) -> None:
    """What the link model asks before it predicts for a GPU, with or without one at hand."""
    for variant in variants(cls):
        said = variant.skip(torch.device("cuda", 127))
        assert said is not None
        assert said.startswith("no_device:")
        assert refusal(variant) is None
