"""`gatherbench advise` as a user meets it: answers, JSON, a figure, and exit status 2."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.commands import advise as advise_command

NUMBERS = ["--nodes", "300000", "--edges", "6000000", "--dim", "100", "--profile", "rtx3090-pcie4"]


def test_numbers_alone_are_answered() -> None:
    done = CliRunner().invoke(app, ["advise", *NUMBERS])
    assert done.exit_code == 0, done.output
    assert "The feature table takes 114 MiB and fits" in done.output
    for name in ("cpu_gather naive", "async_zero_copy", "all_in_gpu"):
        assert name in done.output


@pytest.mark.parametrize("nodes", ["3e5", "300_000", "0.3e6", "300k", "0.3M", "0.0003B"])
def test_large_counts_are_read_as_people_write_them(nodes: str) -> None:
    said = [
        CliRunner().invoke(app, ["advise", *NUMBERS[:1], count, *NUMBERS[2:], "--json"]).stdout
        for count in ("300000", nodes)
    ]
    assert json.loads(said[0]) == json.loads(said[1])


def test_reasons_are_sentences_of_their_own_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advise_command, "console", lambda: Console(width=80))
    done = CliRunner().invoke(app, ["advise", *NUMBERS])
    assert done.exit_code == 0, done.output
    assert "…" not in done.output
    lines = done.output.splitlines()
    reasons = [
        found for line in lines if (found := re.match(r"(\d(?:, \d)*): [A-Z].* takes", line))
    ]
    ranks = [rank for found in reasons for rank in found[1].split(", ")]
    assert sorted(ranks) == list("1234567")
    said = [found.string.partition(": ")[2] for found in reasons]
    assert len(set(said)) == len(said) < 7  # each once


def test_json_is_json_and_nothing_else() -> None:
    done = CliRunner().invoke(app, ["advise", *NUMBERS, "--gpu-memory", "0.1", "--json"])
    said = json.loads(done.stdout)
    assert said["table_fits_in_gpu"] is False
    assert said["question"]["gpu_memory_bytes"] == pytest.approx(0.1 * 2**30)


def test_a_figure_is_drawn_instead(tmp_path: Path) -> None:
    path = tmp_path / "sweeps.svg"
    done = CliRunner().invoke(app, ["advise", *NUMBERS, "--figure", str(path)])
    assert done.exit_code == 0, done.output
    assert "modelled" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["advise"], "give a dataset"),
        (["advise", "wordnett"], "did you mean 'wordnet'"),
        (["advise", *NUMBERS[:-1], "h201"], "no profile 'h201'"),
        (["advise", *NUMBERS, "--fanouts", "many"], "numbers with commas"),
        (["advise", *NUMBERS, "--nodes", "2.5"], "'2.5' is no whole number"),
        (["advise", *NUMBERS, "--edges", "inf"], "'inf' is no whole number"),
        (["advise", *NUMBERS, "--edges", "1e999999999"], "is no whole number"),
        (["advise", *NUMBERS, "--edges", "1e19"], "is no whole number"),
        (["advise", *NUMBERS, "--nodes", "many"], "'many' is no whole number"),
        (["advise", "--nodes", "5M"], "--nodes, --edges and --dim go together"),
        (["advise", *NUMBERS, "--gpu-memory", "24GB"], "write 24 for 24 GiB"),
        (["advise", *NUMBERS, "--gpu-memory", "nan"], "write 24 for 24 GiB"),
        (["advise", *NUMBERS, "--gpu-memory", "-1"], "write 24 for 24 GiB"),
        (["advise", *NUMBERS, "--gpu-memory", "24576"], "write 24 for 24 GiB"),
        (["calibrate", "--device", "tpu"], "expected auto, cpu or cuda"),
    ],
)
def test_bad_input_is_told_with_status_2(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_a_figure_of_no_format_is_bad_input(tmp_path: Path) -> None:
    path = str(tmp_path / "sweeps.docx")
    done = CliRunner().invoke(app, ["advise", *NUMBERS, "--figure", path])
    assert done.exit_code == 2
    assert "docx" in done.stderr
