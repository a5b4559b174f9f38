"""The roofline below the tables of ``gatherbench show``."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from gatherbench.bench.linkmodel.profile_file import load_profile
from gatherbench.bench.show.run import render
from gatherbench.bench.tables import load_run

MakeRun = Callable[..., Path]
NAIVE = ("cpu_gather", "naive", 2.0)
ALIGNED = ("aligned_zero_copy", "given", 0.8)


def shown(folder: Path, width: int = 90) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(render(load_run(folder)))
    return out.getvalue()


def test_measured_and_modelled_rates_stand_apart_as_shares_of_the_roofs(make_run: MakeRun) -> None:
    folder = make_run([NAIVE, ALIGNED], backend="cuda", declared=True)
    (folder / "profile.toml").write_text(load_profile("rtx3090-pcie4").to_toml())
    text = shown(folder)
    assert max(map(len, text.splitlines())) <= 90
    _, roofline = text.split("roofline of ", 1)
    assert roofline.startswith("wordnet GraphSAGE (20 minibatches) for rtx3090-pcie4")
    measured, modelled = roofline.split("modelled", 1)
    assert "measured" in measured
    (line,) = (words for words in measured.splitlines() if "aligned_zero_copy" in words)
    cells = line.split()
    # 2 GB of rows an epoch in 0.4 s of fetching; the raw link gives 31.51 GB/s.
    assert 4.8 < float(cells[2]) < 5.1
    assert cells[5] in ("15%", "16%")
    assert "link" in cells[6:]
    assert "aligned_zero_copy" in modelled


def test_without_a_profile_it_says_what_to_do(make_run: MakeRun) -> None:
    folder = make_run([NAIVE], backend="cuda", declared=True)
    assert "no roofline: the run has no link profile (--profile NAME)" in shown(folder)
    (folder / "profile.toml").write_text("name = ")
    assert "not valid TOML" in " ".join(shown(folder).split())
