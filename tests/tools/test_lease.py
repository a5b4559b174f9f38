"""The page for fifteen minutes of a GPU: which programs it calls, what it packs, when it stops."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from gatherbench.bench.cli import app
from gatherbench.bench.probe.case import every_case

ROOT = Path(__file__).parents[2]
#: Instead of Python: what it was asked, and the files that others look for.
PYTHON = """#!/bin/bash
[ "$1" = -c ] && { echo "$LACKING"; exit 0; }
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


def call(
    page: Path, *names: str, outcome: str = "passed", memory: int = 81559, **given: str
) -> int:
    """The exit status; ``given`` are variables."""
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
    given |= {"PATH": path, "PYTHON": "python", "OUT": str(page / "kept")}
    given |= {"GATHERBENCH_COMMIT": "a", "GATHERBENCH_DATA": str(page / "data")}
    command = ["bash", str(page / "tools/gpu/lease.sh"), *names]
    environment = {**os.environ, "LACKING": "", **given}
    with (page / "said").open("a") as said:
        done = subprocess.run(command, env=environment, check=False, stdout=said, stderr=said)
    return done.returncode


def asked(page: Path) -> list[str]:
    lines = (page / "asked").read_text().splitlines()
    return [line.partition("gatherbench ")[2] or line for line in lines]


def test_a_wrong_smoke_test_stops_the_page(page):
    assert call(page, "1", outcome="failed") == 1
    assert [line.split()[0] for line in asked(page)] == ["tests/gpu/suite.py"]
    assert [file.name for file in (page / "kept").iterdir()] == ["smoke.tgz"]


def test_a_smoke_test_that_was_cut_off_is_not_wrong(page):
    text = (
        'passed"}\\n{"end": "u", "outcome": "failed", "text": "cut off: the time of the whole suite'
    )
    assert call(page, "1", outcome=text) == 0
    assert (page / "kept" / "decide.tgz").exists()


def test_each_part_has_an_archive_and_sensors_are_checked_once(page):
    assert call(page, "1") == 0
    assert call(page, "2", LEFT_S="600") == 0
    kept = {file.stem for file in (page / "kept").iterdir()}
    assert kept == {"smoke", "decide", "papers", "beyond", "peers", "energy"}
    runs = [line for line in asked(page) if line.startswith("run")]
    assert len(runs) == 5
    assert ["--sensors" in line for line in runs] == [False, *[True] * 4]
    known = {option for each in get_command(app).commands["run"].params for option in each.opts}
    assert {word for line in runs for word in line.split() if word.startswith("--")} <= known
    assert "repeats = 6" in (page / "gpu-out/decide.toml").read_text()
    energy = (page / "gpu-out/energy.toml").read_text()
    assert energy.count("[[workload]]") == 1
    assert "energy = true" in energy
    assert "\nrepeats = 1\n" in energy


def test_a_gpu_with_more_memory_has_the_kernels_of_others_in_place_of_what_does_not_fit(page):
    assert call(page, "2", memory=143771) == 0
    kept = {file.stem for file in (page / "kept").iterdir()}
    assert {"pages", "splits"} <= kept
    assert "beyond" not in kept
    probes = [line.split()[-1].split(",") for line in asked(page) if line.startswith("probe")]
    assert probes == [
        ["gpu_gather", "managed_gather", "foreign_registered", "foreign_managed"],
        ["split_64k", "split_4k"],
    ]
    assert all(name in every_case() for names in probes for name in names)


def test_what_is_lacking_is_named_before_anything_is_measured(page):
    assert call(page, "1", LACKING="pydantic platformdirs") == 2
    assert "no pydantic platformdirs: at home, make carry PEERS=1" in (page / "said").read_text()
    assert not (page / "asked").exists()


def test_a_part_that_does_not_exist_is_refused(page):
    assert call(page, "papers", "paper") == 2
    assert "no part paper" in (page / "said").read_text()
    assert call(page) == 2


def test_what_no_longer_fits_is_left_out(page):
    """Of a lease of 300 s 100 go before the first call; of its other 185 the second call has fewer:
    not 150 for its first part, of which three quarters are enough."""
    assert call(page, "1", LEASE_S="300") == 0
    began = page / "gpu-out/began"
    began.write_text(str(int(began.read_text()) - 60))
    assert call(page, "2", LEASE_S="300") == 0
    (run,) = [line for line in asked(page) if "papers.toml" in line]
    budget = run.partition("--budget ")[2].split()[0]
    assert int(budget) <= 300 - 100 - 15 - 60 - 45
    began.write_text(str(int(began.read_text()) - 40))
    assert call(page, "2", LEASE_S="300") == 0
    said = (page / "said").read_text()
    assert "papers is left out: of 150 s" in said
    assert sum("papers.toml" in line for line in asked(page)) == 1


def test_another_lease_has_a_beginning_of_its_own(page):
    assert call(page, "1") == 0
    began = page / "gpu-out/began"
    first = int(began.read_text())
    began.write_text(str(first - 901))
    assert call(page, "2") == 0
    assert int(began.read_text()) >= first
