"""The machine's description: complete enough to judge a number, and nothing private in it."""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gatherbench
from gatherbench.bench.machine import env as machine_module
from gatherbench.bench.machine import gpus as gpus_module
from gatherbench.bench.machine.env import (
    COMMIT_VARIABLE,
    commit_id,
    describe_machine,
    library_versions,
    machine_slug,
)
from gatherbench.bench.machine.nvml import GpuInfo


@pytest.fixture(scope="module")
def env() -> dict[str, Any]:
    return describe_machine()


def strings(thing: object) -> Iterator[str]:
    if isinstance(thing, dict):
        for key, inner in thing.items():
            yield str(key)
            yield from strings(inner)
    elif isinstance(thing, list):
        for inner in thing:
            yield from strings(inner)
    elif isinstance(thing, str):
        yield thing


def test_it_is_json_and_says_what_matters(env: dict[str, Any]) -> None:
    assert json.loads(json.dumps(env)) == env
    assert env["cpu"]["model"]
    assert env["cpu"]["usable_cores"] >= 1
    assert env["memory"]["total"] > 2**28
    assert env["libraries"]["torch"] == importlib.metadata.version("torch")
    assert env["torch"]["threads"] >= 1
    assert bool(env["gpus"]) != bool(env["no_gpu"])  # GPUs, or why there are none


def test_no_name_of_host_or_user_and_no_path(env: dict[str, Any]) -> None:
    private = {socket.gethostname(), getpass.getuser(), str(Path.home()), str(Path.cwd())}
    for text in strings(env):
        words = set(re.split(r"[^\w./-]+", text))
        assert not private & words, text
        assert not re.search(r"(^|\s)/\w+", text), f"a path: {text}"


def test_nothing_of_the_environment_leaks(tmp_path: Path) -> None:
    """The same in a process whose user, home and folder have names that cannot be missed."""
    home, folder = tmp_path / "privatehome", tmp_path / "privatefolder"
    home.mkdir()
    folder.mkdir()
    code = (
        "import json; from gatherbench.bench.machine.env import describe_machine;"
        "print(json.dumps(describe_machine()))"
    )
    private = {"HOME": str(home), "HOSTNAME": "privatehost"}
    private |= dict.fromkeys(("USER", "LOGNAME"), "privateuser")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **private},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "private" not in done.stdout
    assert json.loads(done.stdout)["cpu"]


@pytest.mark.parametrize(
    ("model", "cores", "slug"),
    [
        ("AMD EPYC", 2, "cpu-amd-epyc-2c"),
        ("AMD EPYC 9654 96-Core Processor", 192, "cpu-amd-epyc-9654-192c"),
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", 8, "cpu-intel-xeon-platinum-8480c-8c"),
        ("Neoverse-V2", 72, "cpu-neoverse-v2-72c"),
    ],
)
def test_slug_of_a_machine_without_gpu(model: str, cores: int, slug: str) -> None:
    assert machine_slug({"gpus": [], "cpu": {"model": model, "usable_cores": cores}}) == slug


def test_slug_of_a_machine_with_gpus() -> None:
    gpus = [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]
    assert machine_slug({"gpus": gpus, "cpu": {"model": "x", "usable_cores": 1}}) == "nvidia-h200"


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuInfo(
        "NVIDIA H200", "0123456789ab", "590.10", "13.1", "9.0", 150 << 30, 700.0, 1, 5, 16, 16, 0
    )
    monkeypatch.setattr(gpus_module, "list_gpus", lambda: [gpu])
    found = describe_machine()
    assert found["gpus"][0]["link_gen_max"] == 5
    assert found["gpu_source"] == "NVML"
    assert (found["no_gpu"], found["no_nvml"]) == (None, None)
    assert json.dumps(found)
    assert machine_slug(found) == "nvidia-h200"


def test_commit_is_a_hash_or_a_version() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}(\+dirty)?|v\d+\.\d+.*", commit_id())


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_of_a_checkout_and_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    (tmp_path / "bench" / "machine").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    code = tmp_path / "bench" / "machine" / "env.py"
    code.write_text("")
    monkeypatch.setattr(machine_module, "__file__", str(code))
    assert commit_id().startswith("v")  # no checkout
    git(tmp_path, "init")
    assert commit_id().startswith("v")  # no commit yet
    git(tmp_path, "add", "bench")
    git(tmp_path, "commit", "-m", "one")
    clean = commit_id()
    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    (tmp_path / "results" / "rows.csv").write_text("")
    assert commit_id() == clean  # a result does not change the code
    (tmp_path / "bench" / "new.py").write_text("")
    assert commit_id() == f"{clean}+dirty"


def test_without_git_the_version_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", absent)
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    assert commit_id() == f"v{gatherbench.__version__}"


def test_files_without_history_or_installation_are_described_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As they lie on a GPU machine to which they were copied."""

    def not_installed(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", not_installed)
    versions = library_versions()
    assert {"torch", "numba", "nvidia-ml-py", "ogb", "cuda-bindings"} <= set(versions)
    assert versions["torch"]
    assert "pytest" not in versions
    monkeypatch.setattr(machine_module, "__file__", str(tmp_path / "bench" / "machine" / "env.py"))
    monkeypatch.delenv("GATHERBENCH_COMMIT", raising=False)
    assert library_versions() == {}
    assert re.fullmatch(r"v\d+\.\d+.*", commit_id())
    monkeypatch.setenv("GATHERBENCH_COMMIT", "0123456789ab")
    assert commit_id() == "0123456789ab"


def test_versions_are_those_of_the_requirements() -> None:
    versions = library_versions()
    assert {"torch", "numba", "nvidia-ml-py", "ogb"} <= set(versions)
    assert "pytest" not in versions
