"""``python -m gatherbench.bench.probe.calibrate.main``: calibrate where little is installed.

The same as ``gatherbench calibrate``, for bare GPU machines: it needs neither typer nor pydantic.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gatherbench.bench.model.profile import ProfileError, load_profile
from gatherbench.bench.probe.calibrate.files import OutputError
from gatherbench.bench.probe.calibrate.host import CalibrationError
from gatherbench.bench.probe.calibrate.report import render
from gatherbench.bench.probe.calibrate.run import GPU_BUDGET_S, Device, calibrate
from gatherbench.bench.probe.watchdog import ends_within
from gatherbench.kernels.compiler import CompilerError
from gatherbench.kernels.cuda_calls import CudaCallError

FOLDER = Path("calibration")
_WIDTH = 120
#: So much over its time it is taken to hang.
LATE_S = 30.0


def run(out: Path, budget_s: float, base: str, device: Device) -> int:
    """Calibrate and print what came of it; 0, 1 if the machine failed, 2 for bad input."""
    err, console = Console(stderr=True), Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    try:
        known = load_profile(base) if base else None
        done = calibrate(
            out,
            device=device,
            budget_s=budget_s or None,
            base=known,
            say=lambda text: err.print(text, highlight=False),
        )
    except (CalibrationError, OutputError, ProfileError) as error:
        err.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        return 2
    except (CudaCallError, CompilerError, MemoryError, OSError) as error:
        err.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        return 1
    console.print(render(done))
    return 0


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="calibrate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for profile and samples")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds (0: 60, a GPU 500)")
    parser.add_argument("--base", default="", help="profile for what cannot be measured here")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    asked = parser.parse_args(arguments)
    last_word = f"no profile; the samples so far lie in {asked.out}"
    with ends_within((asked.budget or GPU_BUDGET_S) + LATE_S, lambda: print(last_word)):
        return run(asked.out, asked.budget, asked.base, asked.device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
