"""Load plans, shipped ones by name and a user's own by path, and explain their errors."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gatherbench.bench.plan.plan import (
    MANY,
    ONE,
    Measure,
    Plan,
    PlanError,
    StrategyTable,
    WorkloadTable,
)
from gatherbench.outside import read_text
from gatherbench.plugins import nearest_or_all

PLANS_FOLDER = Path(__file__).parent / "plans"

#: In place of a plan's name: the default plan, which takes some minutes.
USUAL = "usual"
#: The models that check a plan's tables.
TABLES: dict[str, type[BaseModel]] = {
    "measure": Measure,
    "workload": WorkloadTable,
    "strategy": StrategyTable,
}


def plan_names() -> list[str]:
    """Return the names of the plans in the package."""
    return sorted(path.stem for path in PLANS_FOLDER.glob("*.toml"))


def load_plan(name_or_path: str) -> Plan:
    """Read a plan: a shipped one's name, or a path to a TOML file. A missing one, invalid TOML, and
    a wrong key or value are a ``PlanError`` that names the nearest right one."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = PLANS_FOLDER / f"{name_or_path}.toml"
        if not path.is_file():
            hint = nearest_or_all(name_or_path, plan_names())
            advice = "for a plan of your own give a path that ends in .toml"
            raise PlanError(f"no plan is called {name_or_path!r}{hint}; {advice}")
    try:
        text = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise PlanError(f"{name_or_path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path.name}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path.name}: not valid TOML: {error}") from error
    try:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem)[:40]
        return Plan.model_validate({"name": name, **text})
    except ValidationError as error:
        problems = "\n  ".join(map(_explain, error.errors()))
        raise PlanError(f"{path.name}:\n  {problems}") from None


def plan_schema() -> dict[str, Any]:
    """Return a JSON Schema of plan files, for editors: ``#:schema FILE`` in the first line."""
    schema = Plan.model_json_schema()
    schema["required"].remove("name")  # the file's name is the default
    return schema


def _explain(error: Any) -> str:
    """Format one pydantic error: ``workload[0].modle: unknown key; did you mean 'model'?``."""
    key_path = ""
    table: type[BaseModel] = Plan
    for part in error["loc"]:
        if isinstance(part, int):
            key_path += f"[{part}]"
        elif part not in (ONE, MANY):
            key_path += f".{part}" if key_path else part
            table = TABLES.get(part, table)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        key = error["loc"][-1]
        message = f"unknown key{nearest_or_all(key, table.model_fields)}"
        for name, other_table in TABLES.items():
            if other_table is not table and key in other_table.model_fields:
                brackets = "[measure]" if name == "measure" else f"[[{name}]]"
                message = f"{key!r} is a key of {brackets}: write it there"
    elif error["type"] == "list_type" and isinstance(error["input"], dict) and key_path in TABLES:
        message = f"this is a list of tables: write [[{key_path}]], in two brackets"
    elif error["type"].endswith(("_type", "_from_float")):
        message += f", not {error['input']!r}"
    return f"{key_path or 'plan'}: {message}"
