"""Every registered strategy, in every variant that runs on the host, keeps the contract."""

import re

import pytest
import torch
from host_paths import HOST, MOVERS, RUNNABLE

from gatherbench.bench.model.predict import refusal
from gatherbench.strategies import conformance
from gatherbench.strategies.disk import DiskCached
from gatherbench.strategies.registry import STRATEGIES, variants


@pytest.mark.parametrize("strategy", MOVERS)
def test_contract(strategy):
    conformance.check_strategy(strategy, HOST)


#: Words that mean something beside no default.
TOGETHER = [
    DiskCached(policy="lru", start="cold"),
    DiskCached(policy="belady", share="50%", start="cold"),
]


#: Of shares that differ in a number alone the largest stands for all.
ALIKE = [
    param
    for param in RUNNABLE
    if param not in MOVERS and not re.search(r",(1|5|20)%", str(param.id))
]


@pytest.mark.parametrize("strategy", ALIKE, ids=str)
def test_contract_of_policies_that_move_rows_alike(strategy):
    conformance.check_pipeline(strategy, HOST)
    conformance.check_data_path(strategy, HOST)


@pytest.mark.parametrize("strategy", TOGETHER, ids=str)
def test_contract_of_words_that_mean_something_together(strategy):
    for check in set(conformance.CHECKS) - {conformance.check_shapes}:
        check(strategy, HOST)


def test_every_strategy_runs_its_default_variant_on_the_host():
    skipped = {
        cls.name: str(cls().skip(HOST)) for cls in STRATEGIES if cls().skip(HOST) is not None
    }
    assert skipped == {}


@pytest.mark.parametrize("cls", STRATEGIES)
def test_a_gpu_that_is_not_here_is_no_reason_against_gpus(cls):
    """What the link model asks before it predicts for a GPU, with or without one at hand."""
    for variant in variants(cls):
        said = variant.skip(torch.device("cuda", 127))
        assert said is not None
        assert said.kind == "no_device"
        assert refusal(variant) is None
