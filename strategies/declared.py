"""Check strategies' names and parameters against their source: importing them takes seconds."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from gatherbench.plugins import nearest

#: The values of each parameter of a strategy, the default first.
Parameters = Mapping[str, tuple[str, ...]]


@functools.cache
def declared() -> dict[str, Parameters]:
    """Return the parameters of every strategy of this package, by its name."""
    found: dict[str, Parameters] = {}
    files = sorted(Path(__file__).parent.glob("*.py"))
    for node in (node for file in files for node in ast.parse(file.read_text("utf-8")).body):
        fields = [part for part in getattr(node, "body", ()) if isinstance(part, ast.AnnAssign)]
        kinds = {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}
        names = [f.value for f in fields if ast.unparse(f.target) == "name" and f.value]
        if names and kinds["name"] == "ClassVar[str]":
            found[ast.literal_eval(names[0])] = {
                parameter: tuple(ast.literal_eval(f"[{kind[len('Literal[') : -1]}]"))
                for parameter, kind in kinds.items()
                if kind.startswith("Literal[")
            }
    return found


def check_parameters(name: str, params: Mapping[str, object], known: Parameters) -> None:
    """Refuse (``ValueError``) a parameter or value that the strategy ``name`` does not have."""
    for parameter, value in params.items():
        if parameter not in known:
            there_are = f"its parameters are {', '.join(known)}" if known else "it has none"
            hint = nearest(parameter, known)
            raise ValueError(f"{name} has no parameter {parameter!r}; {there_are}{hint}")
        if value not in known[parameter]:
            choices = ", ".join(known[parameter])
            hint = nearest(value, known[parameter])
            raise ValueError(f"{name}: {parameter} = {value!r} is not one of {choices}{hint}")


def check_strategy(name: str, params: Mapping[str, object]) -> None:
    """Refuse (``ValueError``) a name or parameter that no strategy has, without importing one.

    Another package's strategy has to be imported before its parameters are known, so they pass.
    """
    if name in declared():
        check_parameters(name, params, declared()[name])
    elif name not in (others := entry_points(group="gatherbench.strategies").names):
        hint = nearest(name, {*declared(), *others})
        remedy = hint or "; `gatherbench list strategies` has the names"
        raise ValueError(f"no strategy is called {name!r}{remedy}")
