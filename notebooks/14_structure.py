# %% [markdown]
# # 14. Where neighbour lists lie, and sampling that remembers
#
# **Question.** Drawing minibatches reads the graph. What does that ask of the link when the lists
# stay in host memory, and what is gained, or lost, by drawing from a cache of neighbours?
#
# **Claim checked.** GraphSnapShot (NoakLiu/GraphSnapShot): at fan-outs 20, 20, 20 sampling takes
# 7.1 % (FCR) and 11.1 % (OTF) less time than plain sampling; its own README has an accuracy of
# 0.710 in place of 0.718.

# %%
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.views.structure import (
    STRUCTURE,
    structure_accuracy,
    structure_bytes,
    structure_points,
)
from gatherbench.datasets.dataset import index_dtype
from gatherbench.datasets.registry import get_source
from helpers.findings import open_findings
from helpers.shown import say, show

findings = open_findings()
runs = [run for run in findings.runs if STRUCTURE.applies(run)]
if not runs:
    say("**Not measured yet**: `gatherbench run structure` and `gatherbench run structure-place`.")

# %% [markdown]
# ## How large the lists are

# %%
names = ["reddit-like", "products-like", "papers100M-like"]
specs = {name: get_source(name).estimate(1.0) for name in names}
lists = {n: float(index_dtype(s.num_nodes).itemsize * s.num_edges) for n, s in specs.items()}
axis = Axis.of("B", lists.values())
lines = [
    Line(name, "all lists", "modelled", {"lists": size}, text=axis.said(size))
    for name, size in lists.items()
]
show(
    Chart(
        "lists",
        "Neighbour lists of three graphs",
        "Computed: an index of 4 B for each edge.",
        "bytes of all lists",
        [Panel("neighbour lists", lines, axis)],
        {"lists": ("neighbour lists", "blue")},
    ),
    "Bytes of the neighbour lists of three graphs, computed.",
)

# %% [markdown]
# ## Lists over the link, and accuracy after as much time

# %%
for run in runs:
    for chart in (structure_bytes(run), structure_accuracy(run)):
        if chart.panels:
            show(chart, chart.title)

# %% [markdown]
# ## What the data say

# %%
for run in runs:
    for point in structure_points(run):
        say(f"- {run.machine}: {point.text}")
if not runs:
    say("- Neighbour lists in place, and sampling that remembers: **not measured yet**.")
