"""`gatherbench advise`: which way of moving the features to take."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    CALIBRATIONS,
    DEFAULT_RESULTS,
    ResultsOption,
    asking,
    bad_input,
    console,
)
from gatherbench.bench.model.advise.asked import Asked


@asking(Asked)
def advise(
    asked: Asked,
    results: ResultsOption = DEFAULT_RESULTS,
    why: Annotated[
        bool, typer.Option("--why", help="Also print where the time goes and what was assumed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Recommend a strategy for a graph and a machine, and say how sure that is."""
    from gatherbench.bench.model.advise.answer import answer
    from gatherbench.bench.model.advise.question import AdviceError
    from gatherbench.bench.model.profile import ProfileError
    from gatherbench.bench.show.advice import render, to_json
    from gatherbench.datasets.dataset import DatasetError

    with bad_input(AdviceError, DatasetError, ProfileError):
        advice = answer(asked, results, CALIBRATIONS)
    if as_json:
        typer.echo(json_format.dumps(to_json(advice), indent=2))
    else:
        console().print(render(advice, why), highlight=False)
