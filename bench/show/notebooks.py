"""Execute the notebooks on ``results/``; refuse one that fails or whose two files differ.

    python -m gatherbench.bench.show.notebooks [--sync] [--results FOLDER] [NAME ...]

Each notebook is a pair: ``NAME.py`` (percent format, the source that is reviewed) and
``NAME.ipynb`` (the same cells with what they put out). The pair must agree before anything runs;
``--sync`` writes the cells of the ``.py`` into the ``.ipynb``. What is written holds no times, no
paths and no counters of this machine, so that executing again on the same rows changes nothing.

Exit status: 0 all went well, 1 a notebook failed or has drifted, 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gatherbench.bench.show.notebook_tables import RESULTS_VARIABLE
from gatherbench.datasets.files import replacing

#: Names the file in which a notebook's kernel notes each output, a line with its media type.
NOTES_VARIABLE = "GATHERBENCH_NOTEBOOK_NOTES"
#: Seconds that one cell may take.
CELL_TIMEOUT_S = 300
#: Seconds until a cell's outputs are in once it has ended; later they count as lost.
OUTPUT_TIMEOUT_S = 60
#: Kernels at a time: each spends most of its life importing.
AT_ONCE = 2
SYNC = "run `make figures SYNC=1` to take the cells of the .py"
EXTRA = "install the extra: pip install 'gatherbench[notebooks]'"


class NotebookError(Exception):
    """A notebook that failed or has drifted; the message names it, the cell and the remedy."""


def main(arguments: Sequence[str]) -> int:
    """Check every pair, then execute; the exit status."""
    options = _parse(arguments)
    try:
        import jupytext  # noqa: F401
        import nbclient  # noqa: F401
    except ImportError as missing:
        print(f"error: {missing}; {EXTRA}", file=sys.stderr)
        return 2
    sources = sorted(options.folder.glob("*.py"))
    unknown = set(options.names) - {path.stem for path in sources}
    if unknown or not sources:
        what = f"no notebook {sorted(unknown)[0]!r}" if unknown else "no notebook (*.py)"
        print(f"error: {options.folder}: {what}", file=sys.stderr)
        return 2
    if not options.results.is_dir():
        print(f"error: {options.results}: no such folder of results", file=sys.stderr)
        return 2
    if options.names:
        sources = [path for path in sources if path.stem in options.names]
    if options.sync:
        for path in sources:
            sync(path)
    drifted = [reason for path in sources if (reason := drift(path))]
    for reason in drifted:
        print(f"drifted: {reason}", file=sys.stderr)
    if drifted:
        return 1
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda path: _outcome(path, options.results), sources))
    return int(not all(outcomes))


def drift(source: Path) -> str | None:
    """In what the two files of a pair differ, or ``None``; outputs are not compared."""
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
    """Run a pair's cells in a fresh kernel of this interpreter; the notebook with its outputs.

    Raises:
        NotebookError: a cell erred, took too long, wrote to stderr or named a path of the machine,
            or what was put out did not arrive.
    """
    import nbformat
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    class ThisInterpreter(KernelSpecManager):
        """Whatever kernels are installed for this user: the cells run where this module runs."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            launch.append("--log-level=ERROR")
            return KernelSpec(argv=launch, language="python", display_name="Python 3")

    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        iopub_timeout=OUTPUT_TIMEOUT_S,
        raise_on_iopub_timeout=True,
        record_timing=False,
        km=AsyncKernelManager(kernel_spec_manager=ThisInterpreter()),
        resources={"metadata": {"path": str(source.parent)}},
    )
    environment = os.environ | {
        RESULTS_VARIABLE: str(results.resolve()),
        "MPLBACKEND": "agg",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else the debugger complains on stderr
    }
    before = _outputs(notebook)
    with tempfile.NamedTemporaryFile("r") as notes:
        try:
            client.execute(env=environment | {NOTES_VARIABLE: notes.name})
        except (CellExecutionError, CellTimeoutError, DeadKernelError, RuntimeError) as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
            raise NotebookError(f"{source.name}: {text}") from error
        _refuse_lost(source, before, _outputs(notebook), Counter(notes.read().split()))
    for number, cell in enumerate(notebook.cells):
        _refuse(source, number, cell)
    return notebook


def _outputs(notebook: Any) -> Counter[str]:
    """How many outputs there are of each media type; what is printed counts as text/plain."""
    found: Counter[str] = Counter()
    for output in (o for cell in notebook.cells for o in cell.get("outputs", [])):
        found.update(list(output.get("data", ["text/plain"])))
    return found


def _refuse_lost(
    source: Path, before: Counter[str], arrived: Counter[str], put_out: Counter[str]
) -> None:
    """Outputs that the kernel made and that are not in the notebook: its messages can be lost."""
    lost = put_out - arrived
    if not lost and before and not arrived:  # what is only printed is noted nowhere
        lost = before
    if lost:
        what = ", ".join(f"{n} of {kind}" for kind, n in sorted(lost.items()))
        raise NotebookError(
            f"{source.name}: outputs did not arrive from its kernel ({what}); the .ipynb is "
            "left as it was: run `make figures` again"
        )


def _refuse(source: Path, number: int, cell: Any) -> None:
    """Outputs that no two machines share: warnings with their paths, and paths themselves."""
    places = [str(source.parent.resolve().parent), str(Path.home().resolve()), sys.prefix]
    for output in cell.get("outputs", []):
        if output.get("name") == "stderr":
            raise NotebookError(f"{source.name}: cell {number} wrote to stderr: {output['text']}")
        texts = [output.get("text", ""), *output.get("data", {}).values()]
        for place in places:
            if any(place in text for text in texts if len(place) > 1):
                raise NotebookError(f"{source.name}: cell {number} shows a path: {place}")


def _outcome(source: Path, results: Path) -> bool:
    """Execute one pair and keep the outcome; whether it went well."""
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
    """Write the notebook without what differs from run to run; whether the file changed."""
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
            cell.execution_count = None
            for output in cell.setdefault("outputs", []):
                if "execution_count" in output:
                    output.execution_count = None
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
    parser.add_argument("--folder", type=Path, default=root / "notebooks", help="of the pairs")
    parser.add_argument("--results", type=Path, default=root / "results", help="where runs are")
    parser.add_argument("--sync", action="store_true", help="take the cells of the .py files first")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
