"""The registry: what a plan may ask for, and what it is told when it asks for something else."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.places import path_skip
from gatherbench.strategies.registry import (
    CHOICES,
    STRATEGIES,
    build,
    parameters,
    role_of,
    variants,
)

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


def test_the_guide_has_a_line_for_each():
    text = GUIDE.read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \|.*[✓†]", text, re.MULTILINE)
    told = "docs/guide.md: a line | `name` | … | ✓ | † | for each, in the registry's order"
    assert lines == [s.name for s in (*STRATEGIES, *CHOICES)], told


def test_names_and_variants_identify_a_strategy():
    keys = Counter((v.name, v.variant) for cls in STRATEGIES for v in variants(cls))
    assert set(keys.values()) == {1}
    assert {v.variant for v in variants(CpuGather)} == {"naive", "pinned", "prefetch"}
    assert build("all_in_gpu").variant == "default"
    # A parameter that came after rows had been written is said only where it is not the default.
    assert build("aligned_zero_copy", {"memory": "registered"}).variant == "given"
    assert build("aligned_zero_copy", {"memory": "managed"}).variant == "given,managed"
    dgl = build("aligned_zero_copy", {"order": "sorted", "grid": "dgl"})
    assert dgl.variant == "sorted,dgl"
    assert build("async_zero_copy", {"memory": "managed"}).variant == "stream,auto,managed"


@pytest.mark.parametrize(
    ("name", "variant", "role"),
    [
        ("cpu_gather", "naive", "baseline"),
        ("cpu_gather", "pinned", "conventional"),
        ("cpu_gather", "prefetch", "conventional"),
        ("unified_zero_copy", "managed", "zero_copy"),
        ("aligned_zero_copy", "given,managed", "zero_copy"),
        ("async_zero_copy", "mps,auto", "zero_copy"),
        ("cached_zero_copy", "lru,10%,0", "zero_copy"),
        ("all_in_gpu", "default", "upper_bound"),
        ("auto", "fresh", "choice"),
        ("auto", "kept", "choice"),
        ("disk_mmap", "random,warm", "other"),
        ("cpu_gather", "a variant of long ago", "conventional"),
        ("of_a_package_that_is_gone", "default", "other"),
    ],
)
def test_readers_know_a_series_by_its_role(name, variant, role):
    assert role_of(name, variant) == role


@pytest.mark.parametrize("cls", STRATEGIES)
def test_strategies_are_plain_values_the_first_words_their_defaults(cls):
    assert variants(cls)[0] == build(cls.name) == cls()
    assert hash(build(cls.name)) == hash(cls())
    assert all(parameters(cls).values())
    assert cls.summary
    assert "\n" not in cls.summary


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("cpu_gathr", {}, "no strategy is called 'cpu_gathr'.*did you mean 'cpu_gather'"),
        ("disk", {}, "there are cpu_gather, copy_engine_gather"),
        ("cpu_gather", {"mod": "naive"}, "no parameter 'mod'.*did you mean 'mode'"),
        ("cpu_gather", {"mode": "pined"}, "mode = 'pined' is not one of.*did you mean 'pinned'"),
        ("cpu_gather", {"mode": 3}, "mode = 3 is not one of pinned, prefetch, naive$"),
        ("aligned_zero_copy", {"order": ["given"]}, "order = .* is not one of"),
        ("all_in_gpu", {"mode": "pinned"}, "it has none"),
    ],
)
def test_a_typo_is_named_with_the_nearest(name, params, message):
    with pytest.raises(ValueError, match=message):
        build(name, params)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("unified_zero_copy", {"memory": "managed"}),
        ("async_zero_copy", {"budget": "10"}),
        ("async_zero_copy", {"provider": "mps"}),
        ("aligned_zero_copy", {"order": "sorted", "grid": "dgl"}),
    ],
)
def test_what_means_nothing_on_the_host_is_skipped_there(name, params):
    assert "means nothing on the host" in str(build(name, params).skip(torch.device("cpu")))


@pytest.mark.parametrize(
    ("count", "said"), [(1, "GPU is cuda:0"), (4, "GPUs are cuda:0 to cuda:3")]
)
def test_a_gpu_that_is_not_there_is_told_which_are(monkeypatch, count, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    told = path_skip(torch.device("cuda:4"))
    assert str(told) == f"no_device: this machine's {said}"
    assert path_skip(torch.device("cuda:0")) is None


def test_a_table_too_large_for_a_second_copy_is_refused_before_it_is_made():
    reason = build("all_in_gpu").skip(torch.device("cpu"), table_bytes=1 << 60)
    assert str(reason).startswith("no_memory: the table takes 1073741824.0 GiB and cpu has ")
    assert build("all_in_gpu").skip(torch.device("cpu")) is None
