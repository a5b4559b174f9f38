# %% [markdown]
# # 15. Kinds of edges
#
# **Question.** A relational model multiplies each source's row by the matrix of its edge's kind.
# What does that cost on sampled blocks, what is it worth, and how much is spared by computing once
# what depends on source and kind alone?
#
# **Claim checked.** PIGEON (Wu et al., arXiv 2301.06284): on full graphs compact materialisation
# and reordering train up to 3.8 times as fast as without them. A sampled block has fewer edges of
# one source and kind than a full graph, so there is less to spare.

# %%
from gatherbench.bench.plan.workload import MODELS, RELATIONAL
from gatherbench.bench.read.axis import axis
from gatherbench.bench.read.units import with_ends
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.views.axis import chart
from helpers.findings import open_findings
from helpers.shown import say, show

findings = open_findings()
runs = [run for run in findings.runs if axis(run, "model")["value"].isin(list(RELATIONAL)).any()]
if not runs:
    say("**Not measured yet**: `gatherbench run relations`, on a GPU or without one.")

# %% [markdown]
# ## What was published
#
# The most that the two optimisations win together, without the rest of the compiler.

# %%
scale = Axis("×", 3.8)
lines = [
    Line(name, "PIGEON", "published", {"ratio": ratio}, text=scale.said(ratio))
    for name, ratio in {"neither": 1.0, "compact and reordered, at most": 3.8}.items()
]
show(
    Chart(
        "published-relations",
        "Training of relational models",
        "Published, on full graphs. Longer is faster.",
        "times as fast",
        [Panel("PIGEON", lines, scale)],
        {"ratio": ("times as fast", "blue")},
    ),
    "How many times as fast relational models train, as published.",
)

# %% [markdown]
# ## Training an epoch, and the memory of a step

# %%
for run in runs:
    show(chart(run, "model", "train"), "Training of an epoch, with kinds of edges and without.")
    show(chart(run, "model", "peak"), "Memory of a step, with kinds of edges and without.")

# %% [markdown]
# ## How much is alike in a block

# %%
for run in runs:
    known = axis(run, "model").dropna(subset="distinct").drop_duplicates("family")
    for graph, share in zip(known["family"], known["distinct"], strict=True):
        say(f"- {graph}: **{share:.2f}** distinct pairs of a source and a kind for each edge.")

# %% [markdown]
# ## What the data say

# %%
for run in runs:
    for one in axis(run, "model").to_dict("records"):
        name = f"- {run.machine}, {one['family']}, {MODELS.get(one['value'], one['value'])}"
        if RELATIONAL.get(one["value"], one["value"]) != one["value"] and not one["reason"]:
            ends = (1 / one[f"longer{end}"] for end in ("", "_high", "_low"))
            say(f"{name}: trains {with_ends(*ends)} as fast as PyG's layer.")
        if one["accuracy"] > 0:
            say(f"{name}: {one['accuracy']:.1%} of test nodes told rightly.")
if not runs:
    say("- Models that tell kinds of edges apart: **not measured yet**.")
