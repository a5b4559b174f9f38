"""The page for fifteen minutes of a GPU: which programs it calls, what it packs, when it stops."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Instead of Python: what it was asked, and the files that others look for.
PYTHON = """#!/bin/bash
echo "$@" >> asked
case "$1 $2 $3" in
*suite.py*)
    mkdir -p gpu-out/smoke
    echo -e '{"end": "t", "outcome": "OUTCOME"}' > gpu-out/smoke/gpu-test.jsonl ;;
"-m gatherbench run")
    mkdir -p gpu-out/gpu/one
    touch gpu-out/gpu/one/sensors.json ;;
esac
exit 0
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A tree with the page and what it reads."""
    for name in ("tools/gpu/lease.sh", "examples/peers/gpu-peers.toml", "bench/plan/plans"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place)
    return tmp_path


def call(page: Path, number: int, outcome: str = "passed", memory: int = 81559) -> int:
    """The exit status."""
    for name, text in (
        ("python", PYTHON.replace("OUTCOME", outcome)),
        ("nvidia-smi", f"#!/bin/sh\necho {memory}\n"),
    ):
        program = page / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    (page / "kept").mkdir(exist_ok=True)
    path = f"{page / 'bin'}:{os.environ['PATH']}"
    given = {"PATH": path, "PYTHON": "python", "OUT": str(page / "kept"), "GATHERBENCH_COMMIT": "a"}
    environment = {**os.environ, **given, "GATHERBENCH_DATA": str(page / "data")}
    command = ["bash", str(page / "tools/gpu/lease.sh"), str(number)]
    return subprocess.run(command, env=environment, check=False, capture_output=True).returncode


def asked(page: Path) -> list[str]:
    lines = (page / "asked").read_text().splitlines()
    return [line.partition("gatherbench ")[2] or line for line in lines]


def test_a_wrong_smoke_test_stops_the_page(page):
    assert call(page, 1, "failed") == 1
    assert [line.split()[0] for line in asked(page)] == ["tests/gpu/suite.py"]
    assert [file.name for file in (page / "kept").iterdir()] == ["smoke.tgz"]


def test_a_smoke_test_that_was_cut_off_is_not_wrong(page):
    text = (
        'passed"}\\n{"end": "u", "outcome": "failed", "text": "cut off: the time of the whole suite'
    )
    assert call(page, 1, text) == 0
    assert (page / "kept" / "gpu-decide.tgz").exists()


def test_each_part_has_an_archive_and_sensors_are_checked_once(page):
    assert call(page, 1) == 0
    assert call(page, 2) == 0
    assert {file.stem for file in (page / "kept").iterdir()} == {
        "smoke", "gpu-decide", "gpu-papers", "gpu-beyond", "gpu-peers", "gpu-energy",
    }  # fmt: skip
    runs = [line for line in asked(page) if line.startswith("run")]
    assert len(runs) == 5
    assert ["--sensors" in line for line in runs] == [False, *[True] * 4]
    energy = (page / "gpu-out/gpu-energy.toml").read_text()
    assert energy.count("[[workload]]") == 1
    assert "energy = true" in energy
    assert "\nrepeats = 1\n" in energy


def test_a_gpu_with_more_memory_has_the_kernels_of_others_in_place_of_what_does_not_fit(page):
    assert call(page, 2, memory=143771) == 0
    kept = {file.stem for file in (page / "kept").iterdir()}
    assert "pages" in kept
    assert "gpu-beyond" not in kept
