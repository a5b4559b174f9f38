"""What the link model expects of whole epochs on the graphs of this field, known by their sizes.

From the shapes alone, whether or not a dataset lies prepared on this machine, so that the same
table comes out everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from gatherbench.bench.model.advise.question import Question, graph_sizes, source_graph
from gatherbench.bench.model.advise.rank import advise
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.show.sentences.epochs import BARS


def modelled_shapes(names: Sequence[str], profile: LinkProfile) -> pd.DataFrame:
    """One epoch of GraphSAGE with the paper's hyper-parameters on each graph, as :data:`BARS`.

    Every variant that declares something of its own has a bar; a strategy whose table does not fit
    in GPU memory has none.
    """
    records = []
    for name in names:
        question = Question(source_graph(name))
        for option in advise(question, graph_sizes(question), profile).ranked:
            note = "" if option.variant == "default" else option.variant
            nan = float("nan")
            case = (f"{name} GraphSAGE", "modelled", option.strategy, option.variant)
            records.append((*case, option.longest_s, nan, nan, note))
    return pd.DataFrame(records, columns=BARS)
