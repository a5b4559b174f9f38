"""`gatherbench advise` as a user meets it: answers, JSON, and exit status 2."""

import json
import re

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.commands import advise as advise_command

NUMBERS = ["--nodes", "300000", "--edges", "6000000", "--dim", "100", "--profile", "rtx3090-pcie4"]
NUMBERS += ["--law", "rmat"]


def test_numbers_alone_are_answered():
    done = CliRunner().invoke(app, ["advise", *NUMBERS])
    assert done.exit_code == 0, done.output
    assert "Take all_in_gpu (the table takes 114 MiB and fits there): " in done.output
    for name in ("cpu_gather naive", "async_zero_copy", "all_in_gpu"):
        assert name in done.output


def test_nothing_is_cut_at_80_columns(monkeypatch):
    monkeypatch.setattr(advise_command, "console", lambda: Console(width=80))
    done = CliRunner().invoke(app, ["advise", *NUMBERS, "--why"])
    assert done.exit_code == 0, done.output
    assert "…" not in done.output
    said = " ".join(done.output.split())
    for path in ("cpu_gather pinned", "cpu_gather naive", "all_in_gpu"):
        assert re.search(rf"{path}[^:]*: [A-Z][^:]* takes", said), path


def test_json_is_json_and_nothing_else():
    done = CliRunner().invoke(app, ["advise", *NUMBERS, "--gpu-memory", "0.1", "--json"])
    said = json.loads(done.stdout)
    assert said["table_fits_in_gpu"] is False
    assert said["question"]["gpu_memory_bytes"] == pytest.approx(0.1 * 2**30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["advise", "wordnett"], "did you mean 'wordnet'"),
        (["advise", *NUMBERS, "--profile", "h201"], "no profile is called 'h201'"),
        (["advise", *NUMBERS, "--scale", "0.5"], "a share above 0, of a generated dataset"),
        (["advise", "ogbn-products", "--scale", "0.5"], "ogbn-products has one size"),
        (["advise", "reddit-like", "--scale", "-1"], "a share above 0, of a generated dataset"),
        (["requests", "--figure", "F"], "end it in .png, .svg or .pdf"),
        (["advise", *NUMBERS, "--nodes", "2.5"], "'2.5' is no whole number"),
        (["advise", *NUMBERS, "--edges", "inf"], "'inf' is no whole number"),
        (["advise", *NUMBERS, "--edges", "1e999999999"], "is no whole number"),
        (["advise", *NUMBERS, "--nodes", "many"], "'many' is no whole number"),
        (["advise", *NUMBERS, "--gpu-memory", "24GB"], "write 24 for 24 GiB"),
        (["advise", *NUMBERS, "--gpu-memory", "nan"], "write 24 for 24 GiB"),
        (["advise", *NUMBERS, "--gpu-memory", "-1"], "write 24 for 24 GiB"),
        (["advise", *NUMBERS, "--gpu-memory", "24576"], "write 24 for 24 GiB"),
        (["calibrate", "--device", "tpu"], "expected auto, cpu or cuda"),
    ],
)
def test_bad_input_is_told_with_status_2(arguments, message):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_a_dataset_without_a_node_to_train_on_is_bad_input(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "data"))
    arrays = {"e": np.array([[0, 1, 2], [1, 2, 0]]), "x": np.ones((3, 4)), "y": np.full(3, -1)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    edges, features, labels = (str(tmp_path / f"{name}.npy") for name in arrays)
    asked = ["datasets", "import", edges, "--name", "none", "--features", features]
    done = CliRunner().invoke(app, [*asked, "--labels", labels])
    assert done.exit_code == 0, done.output
    for more in ([], ["--train-nodes", "2"]):
        done = CliRunner().invoke(app, ["advise", "none", *more])
        assert done.exit_code == 2
        assert "none has no node to train on" in done.stderr
        assert "import it again with labels that are not all -1" in done.stderr
