"""Make the frames of ``gatherbench list``, and of ``gatherbench datasets`` for its folder.

Cells are texts; a frame's columns are the headings in the terminal and the names in JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import pandas as pd

from gatherbench.bench.read.units import quantity
from gatherbench.outside import plain

if TYPE_CHECKING:
    from gatherbench.datasets.dataset import DatasetSpec
    from gatherbench.plugins import Plugins


def strategies() -> pd.DataFrame:
    """List every strategy, gatherbench's own first, with the values of its parameters."""
    from gatherbench.strategies.registry import CHOICES, PLUGINS, STRATEGIES, parameters

    rows = []
    for strategy in (*STRATEGIES, *CHOICES, *PLUGINS.usable()):
        params = "; ".join(f"{k}: {', '.join(v)}" for k, v in parameters(strategy).items())
        rows.append((*_about(strategy, PLUGINS), params or "none"))
    return pd.DataFrame(rows, columns=["strategy", "data path", "parameters (default first)"])


def _about(named: Any, plugins: Plugins[Any]) -> tuple[str, str]:
    """Return name and summary; if another package adds the name, with that package's version."""
    package = plugins.packages().get(named.name)
    return named.name, plain(f"{named.summary} ({package})" if package else named.summary)


_SIZES = ["dataset", "nodes", "edges", "row"]


def datasets() -> pd.DataFrame:
    """List every dataset source, with its size at full scale, and the imported graphs."""
    from gatherbench.datasets.dataset import DatasetError, read_spec
    from gatherbench.datasets.registry import PLUGINS, imported, list_sources

    rows = [(*sizes(src.estimate(1.0)), _about(src, PLUGINS)[1]) for src in list_sources()]
    for folder in imported():
        try:
            spec = read_spec(folder)[0]
        except DatasetError as error:
            rows.append((plain(folder.name), "–", "–", "–", plain(error)))
        else:
            rows.append((*sizes(spec), spec.source))
    return pd.DataFrame(rows, columns=[*_SIZES, "what it is"])


def sizes(spec: DatasetSpec) -> tuple[str, str, str, str]:
    """Return name, nodes, edges and row of a dataset, as cells of a table."""
    row = f"{spec.feature_dim} × {spec.feature_dtype}"
    return spec.name, _rounded(spec.num_nodes), _rounded(spec.num_edges), row


def _rounded(count: int) -> str:
    if count < 1e3:
        return str(count)
    if count < 1e6:
        return f"{count / 1e3:.0f} k"
    return f"{count / 1e6:,.0f} M" if count >= 1e8 else f"{count / 1e6:.3g} M"


def plans() -> pd.DataFrame:
    """List every shipped plan."""
    from gatherbench.bench.plan.plan import load_plan, plan_names

    rows = [(name, load_plan(name).description) for name in plan_names()]
    return pd.DataFrame(rows, columns=["plan", "what it measures"])


def plan_keys() -> pd.DataFrame:
    """List the keys of a plan, table by table: type, default as TOML writes it, description."""
    from gatherbench.bench.plan.plan import TABLES, Plan

    fields = Plan.model_fields
    rows = [_key(name, field) for name, field in fields.items() if name not in TABLES]
    for table, keys in TABLES.items():
        heading = f"[[{table}]]" if get_origin(fields[table].annotation) is list else f"[{table}]"
        rows.append((heading, "", "", fields[table].description or ""))
        rows += [_key(name, field) for name, field in keys.model_fields.items()]
    return pd.DataFrame(rows, columns=["key", "type", "default", "what it says"])


def _key(name: str, field: Any) -> tuple[str, str, str, str]:
    unset = field.is_required() or field.default is None
    default = "none" if unset else json.dumps(field.default)
    return name, _kind(field.annotation), default, field.description or ""


def _kind(kind: Any) -> str:
    """Return a type in words, such as ``auto or cpu`` or ``int | list[int]``; omit ``None``."""
    origin, args = get_origin(kind), [part for part in get_args(kind) if part is not NoneType]
    if origin is Literal:
        return " or ".join(args)
    if origin is Annotated:
        return _kind(args[0])  # without its bounds
    if origin in (Union, UnionType):
        return " | ".join(map(_kind, args))
    return f"{kind.__name__}[{', '.join(map(_kind, args))}]" if args else str(kind.__name__)


def meters() -> pd.DataFrame:
    """List every meter, and whether it reads here."""
    from gatherbench.bench.meters.nvml_device import NO_GPU_IN_RUN
    from gatherbench.bench.meters.registry import METERS, PLUGINS

    words = {None: "reads", NO_GPU_IN_RUN: "in a run on a GPU; `gatherbench doctor` tries it"}
    rows = []
    for meter in [kind() for kind in (*METERS, *PLUGINS.usable())]:
        why = meter.probe()
        rows.append((*_about(meter, PLUGINS), words.get(why) or str(why)))
    return pd.DataFrame(rows, columns=["meter", "what it reads", "here"])


def profiles() -> pd.DataFrame:
    """List every machine that ships as a link profile, and its unknown constants."""
    from gatherbench.bench.model.profile import load_profile, profile_names

    known = [(name, load_profile(name)) for name in profile_names()]
    rows = [(name, of.description, ", ".join(of.unknown()) or "–") for name, of in known]
    return pd.DataFrame(rows, columns=["profile", "machine", "not known"])


_LISTINGS = (strategies, datasets, plans, plan_keys, meters, profiles)
LISTINGS = {listing.__name__.replace("_", "-"): listing for listing in _LISTINGS}


def on_disk(root: Path) -> tuple[pd.DataFrame, str]:
    """List each graph, and other folders; return the frame and the total size.

    To free space: `gatherbench datasets remove`, and `rm` for downloads and folders without graphs.

    Args:
        root: the folder :func:`gatherbench.datasets.store.data_root`; it may be missing.

    Raises:
        OSError: a folder is unreadable, so its size is unknown.
    """
    from gatherbench.datasets.dataset import SPEC_FILE, DatasetError, read_spec

    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    size = {place: bytes_below(place) for place in folders}
    total, rows = sum(size.values()), []
    for folder in [place for place in size if (place / SPEC_FILE).is_file()]:
        try:
            about = sizes(read_spec(folder)[0])[1:]
        except DatasetError:
            about = ("damaged", "–", "–")
        rows.append((plain(folder.name), *about, quantity(size.pop(folder), "B")))
    # The rest has no graph.
    rows += [(plain(place.name), "", "", "", quantity(n, "B")) for place, n in size.items()]
    text = f"{quantity(total, 'B')} in {root}; to have room: gatherbench datasets remove NAME"
    return pd.DataFrame(rows, columns=[*_SIZES, "on disk"]), text


def bytes_below(folder: Path) -> int:
    """Return the bytes of the files below a folder; files that vanish meanwhile count as 0."""
    total = 0

    def unless_gone(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for parent, _, names in os.walk(folder, onerror=unless_gone):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_size
    return total


def description(folder: Path) -> pd.DataFrame:
    """Describe a prepared dataset for ``gatherbench datasets info``."""
    from gatherbench.datasets.store import describe

    rows = [(name.replace("_", " "), _words(value)) for name, value in describe(folder).items()]
    return pd.DataFrame(rows, columns=["what", "value"])


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "\n".join(f"- {item}" for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def imported_summary(folder: Path) -> list[str]:
    """Describe the result of an import, and how to use it."""
    from gatherbench.datasets.store import nodes_in_no_edge, open_dataset

    data = open_dataset(folder)
    spec, labelled, unused = data.spec, int((data.labels >= 0).sum()), nodes_in_no_edge(data)
    lines = [
        f"{spec.name}: {spec.num_nodes:,} nodes ({labelled:,} labelled), {spec.num_edges:,} "
        f"edges, rows of {spec.feature_dim} × {spec.feature_dtype}",
        f"{len(data.train_ids):,} nodes to train, {len(data.val_ids):,} to validate, "
        f"{len(data.test_ids):,} to test",
        *spec.notes[:-1],
        f'use it as dataset = "{spec.name}" in a plan',
    ]
    if unused > spec.num_nodes / 2:
        lines.append(
            f"warning: {unused:,} of the {spec.num_nodes:,} nodes are in no edge; if the ids of the"
            " file have gaps, numpy.unique(edges, return_inverse=True) numbers those that occur"
        )
    return lines
