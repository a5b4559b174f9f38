"""Execute the notebooks on ``results/``; refuse one that fails or whose two files differ.

    python -m tools.notebooks [--sync] [--results FOLDER] [NAME ...]

Each notebook is a pair: ``NAME.py`` (percent format, the source that is reviewed) and
``NAME.ipynb`` (the same cells with their outputs). The pair must agree before anything runs;
``--sync`` writes the cells of the ``.py`` into the ``.ipynb``. The outputs hold no times, paths or
counters of this machine, so that a new execution on the same rows changes nothing.

The cells of each notebook run in a separate process without a kernel: a kernel sends outputs as
messages, which can be lost.

Exit status: 0 success, 1 a notebook failed or its files differ, 2 bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gatherbench.datasets.files import replacing
from gatherbench.plugins import installing

#: The variable that names the folder of results; the default is the repository's.
RESULTS_VARIABLE = "GATHERBENCH_RESULTS"
#: The notebooks' folder, where their cells find ``helpers``.
HELPED = Path(__file__).resolve().parents[1] / "notebooks"
#: The time limit of a notebook, seconds.
TIMEOUT_S = 900
#: Notebooks that run at the same time: each mostly imports.
AT_ONCE = 2
SYNC = "run `make figures SYNC=1` to take the cells of the .py"
EXTRA = f"install the extra: {installing('notebooks')}"


class NotebookError(Exception):
    """A notebook fails, or its two files differ; the message names it, the cell and the remedy."""


def main(arguments: Sequence[str]) -> int:
    """Check every pair, then execute them; return the exit status."""
    options = _parse(arguments)
    try:
        import IPython  # noqa: F401
        import jupytext  # noqa: F401
    except ImportError as missing:
        print(f"error: {missing}; {EXTRA}", file=sys.stderr)
        return 2
    sources = sorted({*options.folder.glob("*.py")} - {options.folder / "helpers.py"})
    unknown = set(options.names) - {path.stem for path in sources}
    if unknown or not sources:
        problem = f"no notebook {sorted(unknown)[0]!r}" if unknown else "no notebook (*.py)"
        print(f"error: {options.folder}: {problem}", file=sys.stderr)
        return 2
    if not options.results.is_dir():
        print(f"error: {options.results}: no such folder of results", file=sys.stderr)
        return 2
    sources = [path for path in sources if path.stem in (options.names or [path.stem])]
    if options.sync:
        for path in sources:
            sync(path)
    drifted = [reason for path in sources if (reason := drift(path))]
    for reason in drifted:
        print(f"drifted: {reason}", file=sys.stderr)
    if drifted:
        return 1
    if len(sources) == 1:
        return int(not _outcome(sources[0], options.results))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda path: _alone(path, options), sources))
    return int(not all(outcomes))


def _alone(source: Path, options: argparse.Namespace) -> bool:
    """Execute one pair in a separate process, which prints the result; return the success."""
    command = [sys.executable, "-m", "tools.notebooks", source.stem]
    command += ["--folder", str(options.folder), "--results", str(options.results)]
    try:
        status = subprocess.run(command, timeout=TIMEOUT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"failed: {source.name}: it took more than {TIMEOUT_S} s", file=sys.stderr)
        return False
    if status not in (0, 1):
        print(f"failed: {source.name}: its process ended: {status}", file=sys.stderr)
    return status == 0


def drift(source: Path) -> str | None:
    """Describe how the cells of a pair's files differ, or return ``None``; outputs may differ."""
    import jupytext

    target = source.with_suffix(".ipynb")
    if not target.is_file():
        return f"{source.name} has no {target.name}; {SYNC}"
    ours, theirs = (
        [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
        for path in (source, target)
    )
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return f"{source.name} and {target.name} differ from cell {number} on; {SYNC}"
    if len(ours) != len(theirs):
        return f"{source.name} has {len(ours)} cells, {target.name} {len(theirs)}; {SYNC}"
    return None


def sync(source: Path) -> None:
    """Write the cells of the ``.py`` into the ``.ipynb``, without outputs, where the two differ."""
    if drift(source) is not None:
        import jupytext

        _write(jupytext.read(source), source.with_suffix(".ipynb"))


def execute(source: Path, results: Path) -> Any:
    """Run a pair's cells in this process; return the notebook with its outputs.

    Raises:
        NotebookError: a cell failed, wrote to stderr or showed a path of the machine.
    """
    import nbformat
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    sys.path.insert(0, str(HELPED))
    os.environ |= {RESULTS_VARIABLE: str(results.resolve()), "MPLBACKEND": "agg"}
    with tempfile.TemporaryDirectory() as settings, contextlib.chdir(source.parent):
        # Isolate it from the user's settings and history.
        config = Config({"HistoryManager": {"enabled": False}})
        shell = InteractiveShell.instance(ipython_dir=settings, config=config)
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            shell.display_pub = CapturingDisplayPublisher()
            shown = shell.display_pub.outputs
            shell.display_trap.hook = CapturingDisplayHook(shell, shown)
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                done = shell.run_cell(cell.source)
            printed, warned = (re.sub(r"\x1b\[[0-9;]*m", "", o.getvalue()) for o in (out, err))
            if not done.success:
                raise NotebookError(f"{source.name}: cell {number}: {printed.strip()}")
            if warned:
                raise NotebookError(f"{source.name}: cell {number} wrote to stderr: {warned}")
            cell.outputs = [
                *([nbformat.v4.new_output("stream", text=printed)] if printed else []),
                *(
                    nbformat.v4.new_output("display_data", data=o["data"], metadata=o["metadata"])
                    for o in shown
                ),
            ]
            for place in {str(source.parent.resolve().parent), str(Path.home()), sys.prefix}:
                if len(place) > 1 and place in str(cell.outputs):  # machines differ in it
                    raise NotebookError(f"{source.name}: cell {number} shows a path: {place}")
    return notebook


def _outcome(source: Path, results: Path) -> bool:
    """Execute one pair and write the notebook; return whether it succeeded."""
    began = time.perf_counter()
    try:
        notebook = execute(source, results)
    except NotebookError as error:
        print(f"failed: {error}", file=sys.stderr)
        return False
    target = source.with_suffix(".ipynb")
    changed = _write(notebook, target)
    print(
        f"{source.stem}: {time.perf_counter() - began:.1f} s,"
        f" {target.stat().st_size / 1024:.0f} KiB, {'changed' if changed else 'as before'}",
        flush=True,
    )
    return True


def _write(notebook: Any, path: Path) -> bool:
    """Write the notebook without anything that varies by run; return whether the file changed."""
    import nbformat

    language = {"name": "python"}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    formats = {"formats": "ipynb,py:percent"}
    notebook.metadata = {"jupytext": formats, "kernelspec": kernel, "language_info": language}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.metadata = {"jupyter": {"source_hidden": True}}
            cell.execution_count = None
            cell.setdefault("outputs", [])
    text = nbformat.writes(nbformat.from_dict(notebook)) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return True


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    root = Path.cwd()
    parser = argparse.ArgumentParser(prog="notebooks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="notebooks without their ending; default: all")
    parser.add_argument("--folder", type=Path, default=root / "notebooks", help="of notebooks")
    parser.add_argument("--results", type=Path, default=root / "results", help="where runs are")
    parser.add_argument("--sync", action="store_true", help="take the cells of the .py files first")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
