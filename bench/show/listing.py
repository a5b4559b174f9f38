"""Make the tables of ``gatherbench list``, and of ``gatherbench datasets`` for its folder."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gatherbench.bench.read.units import bytes_in_words
from gatherbench.outside import plain

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from gatherbench.datasets.dataset import DatasetSpec
    from gatherbench.plugins import Plugins


def strategies() -> Table:
    """List every strategy, gatherbench's own first, with the values of its parameters."""
    from gatherbench.strategies.registry import CHOICES, PLUGINS, STRATEGIES, parameters

    table = Table("strategy", "data path", "parameters (default first)")
    for strategy in (*STRATEGIES, *CHOICES, *PLUGINS.usable()):
        params = "; ".join(f"{k}: {', '.join(v)}" for k, v in parameters(strategy).items())
        table.add_row(
            strategy.name, _said(strategy.name, strategy.summary, PLUGINS), params or "none"
        )
    return table


def _said(name: str, summary: str, plugins: Plugins[Any]) -> str:
    """Return the summary; if another package adds the name, with that package and its version."""
    package = plugins.packages().get(name)
    return escape(plain(f"{summary} ({package})" if package else summary))


def policies() -> Table:
    """List every launch policy of the gather kernels, and its decisions before it has a table."""
    from gatherbench.kernels.policies import POLICIES

    table = Table("policy", "whose", "launch")
    table.add_column("source", overflow="fold")
    for policy in POLICIES.values():
        width = f"{policy.width} B" if isinstance(policy.width, int) else policy.width
        launch = [f"{width} accesses", f"{policy.mapping} mapping"]
        if policy.shift != "none":
            launch.append(f"{policy.shift} shift above {policy.shift_above} B")
        if policy.order != "given":
            launch.append(policy.order)
        table.add_row(policy.name, policy.label, ", ".join(launch), policy.source)
    return table


def datasets() -> Table:
    """List every dataset source, with its size at full scale, and the imported graphs."""
    from gatherbench.datasets.dataset import DatasetError, read_spec
    from gatherbench.datasets.registry import PLUGINS, imported, list_sources

    table = Table()
    for name in ("dataset", "nodes", "edges", "row"):  # keep names whole, so that they can be typed
        table.add_column(name, no_wrap=True)
    table.add_column("what it is")
    for source in list_sources():
        table.add_row(*sizes(source.estimate(1.0)), _said(source.name, source.summary, PLUGINS))
    for folder in imported():
        try:
            spec = read_spec(folder)[0]
        except DatasetError as error:
            table.add_row(escape(plain(folder.name)), "–", "–", "–", escape(plain(error)))
        else:
            table.add_row(*map(escape, (*sizes(spec), spec.source)))
    return table


def sizes(spec: DatasetSpec) -> tuple[str, str, str, str]:
    """Return name, nodes, edges and row of a dataset, as cells of a table."""
    row = f"{spec.feature_dim} × {spec.feature_dtype}"
    return spec.name, _rounded(spec.num_nodes), _rounded(spec.num_edges), row


def plans() -> Table:
    """List every shipped plan."""
    from gatherbench.bench.plan.plan_file import load_plan, plan_names

    table = Table("plan", "what it measures")
    for name in plan_names():
        table.add_row(name, load_plan(name).description)
    return table


def plan_keys() -> Table:
    """List the keys of a plan, table by table."""
    from gatherbench.bench.plan.plan import Plan
    from gatherbench.bench.plan.plan_file import TABLES

    table = Table()
    for name in ("key", "type", "default"):
        table.add_column(name, no_wrap=name == "key", max_width=20)
    table.add_column("what it says")
    for name, field in Plan.model_fields.items():
        if name not in TABLES:
            table.add_row(*_plan_key(name, field))
    for key, kind in TABLES.items():
        field = Plan.model_fields[key]
        heading = f"[[{key}]]" if get_origin(field.annotation) is list else f"[{key}]"
        table.add_section()
        table.add_row(escape(heading), "", "", field.description)
        for name, field in kind.model_fields.items():
            table.add_row(*_plan_key(name, field))
    return table


def _plan_key(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    """Return key, type, default as TOML writes it, and description."""
    unset = field.is_required() or field.default is None
    default = "none" if unset else json.dumps(field.default)
    words = escape(_kind(field.annotation))
    return name, words, escape(default), escape(field.description or "")


def _kind(kind: Any) -> str:
    """Return a type in words, such as ``auto or cpu`` or ``int | list[int]``; omit ``None``."""
    origin, args = get_origin(kind), [one for one in get_args(kind) if one is not NoneType]
    if origin is Literal:
        return " or ".join(args)
    if origin is Annotated:
        return _kind(args[0])  # without its bounds
    if origin in (Union, UnionType):
        return " | ".join(map(_kind, args))
    return f"{kind.__name__}[{', '.join(map(_kind, args))}]" if args else str(kind.__name__)


def meters() -> Table:
    """List every meter, and whether it reads here."""
    from gatherbench.bench.meters.nvml_device import NO_GPU_IN_RUN
    from gatherbench.bench.meters.registry import METERS, PLUGINS

    says = {None: "reads", NO_GPU_IN_RUN: "in a run on a GPU; `gatherbench doctor` tries it"}
    table = Table("meter", "what it reads", "here")
    for kind in (*METERS, *PLUGINS.usable()):
        meter = kind()
        why = meter.probe()
        table.add_row(
            meter.name, _said(meter.name, meter.summary, PLUGINS), says.get(why) or escape(str(why))
        )
    return table


def profiles() -> Table:
    """List every machine that ships as a link profile, and its unknown constants."""
    from gatherbench.bench.model.profile import load_profile, profile_names

    table = Table("profile", "machine", "not known")
    for name in profile_names():
        profile = load_profile(name)
        table.add_row(name, profile.description, ", ".join(profile.unknown()) or "–")
    return table


LISTINGS: dict[str, Callable[[], Table]] = {
    "strategies": strategies,
    "policies": policies,
    "datasets": datasets,
    "plans": plans,
    "plan-keys": plan_keys,
    "meters": meters,
    "profiles": profiles,
}


def on_disk(root: Path) -> tuple[Table, str]:
    """List each graph with its minibatches, and other folders; return the table and the total size.

    To free space: `gatherbench datasets remove`, and `rm` for downloads and folders without graphs.

    Args:
        root: the folder :func:`gatherbench.datasets.store.data_root`; it may be missing.

    Raises:
        OSError: a folder is unreadable, so its size is unknown.
    """
    from gatherbench.bench.sampling.prepare import TRACES, traces_of
    from gatherbench.datasets.dataset import SPEC_FILE, DatasetError, read_spec

    table = Table("dataset", "nodes", "edges", "row", "on disk", "its minibatches")
    graphs, traces = _folders(root), _folders(root / TRACES)
    taken = {place: bytes_below(place) for place in [*graphs, *traces]}
    total = sum(taken[place] for place in graphs)
    taken.pop(root / TRACES, None)
    for folder in [place for place in graphs if (place / SPEC_FILE).is_file()]:
        try:
            about = sizes(read_spec(folder)[0])[1:]
        except DatasetError:
            about = ("damaged", "–", "–")
        drawn = [taken.pop(trace) for trace in traces_of(folder) if trace in taken]
        text = f"{bytes_in_words(sum(drawn))} for {len(drawn)}" if drawn else "–"
        table.add_row(Text(plain(folder.name)), *about, bytes_in_words(taken.pop(folder)), text)
    # The rest has no graph: other folders of the data folder, and minibatches of removed graphs.
    for place, size in taken.items():
        table.add_row(Text(str(place.relative_to(root))), "", "", "", bytes_in_words(size), "")
    text = f"{bytes_in_words(total)} in {root}; to have room: gatherbench datasets remove NAME"
    return table, text


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


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


def description(folder: Path) -> Table:
    """Describe a prepared dataset for ``gatherbench datasets info``."""
    from gatherbench.datasets.store import describe

    table = Table(show_header=False)
    for name, value in describe(folder).items():
        table.add_row(name.replace("_", " "), escape(_words(value)))
    return table


def imported_summary(folder: Path) -> list[str]:
    """Describe the result of an import, and how to use it."""
    from gatherbench.datasets.store import nodes_in_no_edge, open_dataset

    data = open_dataset(folder)
    spec = data.spec
    labelled, unused = int((data.labels >= 0).sum()), nodes_in_no_edge(data)
    lines = [
        f"{spec.name}: {spec.num_nodes:,} nodes ({labelled:,} labelled), {spec.num_edges:,} "
        f"edges, rows of {spec.feature_dim} × {spec.feature_dtype}; {'; '.join(spec.notes[:3])}",
        f"{len(data.train_ids):,} nodes to train, {len(data.val_ids):,} to validate, "
        f"{len(data.test_ids):,} to test",
        *spec.notes[3:-1],
        f'use it as dataset = "{spec.name}" in a plan',
    ]
    if unused > spec.num_nodes / 2:
        lines.append(
            f"warning: {unused:,} of the {spec.num_nodes:,} nodes are in no edge; if the ids of the"
            " file have gaps, numpy.unique(edges, return_inverse=True) numbers those that occur"
        )
    return lines


def _rounded(count: int) -> str:
    if count < 1e3:
        return str(count)
    if count < 1e6:
        return f"{count / 1e3:.0f} k"
    return f"{count / 1e6:,.0f} M" if count >= 1e8 else f"{count / 1e6:.3g} M"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "\n".join(f"- {item}" for item in value)
    return str(value)
