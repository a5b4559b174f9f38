# %% [markdown]
# # 13. Activations that leave the device
#
# **Question.** What a step saves for its backward pass takes memory. What does it cost to compute
# it again, or to keep it in host memory or on a disk meanwhile, beside the rows that share the
# way?
#
# **Claim checked.** SSDTrain (Wu et al., arXiv 2408.10013): peak memory of activations 47 % lower
# with a disk, and no slower a step, for language models.

# %%
from gatherbench.bench.read.axis import axis
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.views.axis import chart
from helpers.findings import open_findings
from helpers.shown import say, show

findings = open_findings()
runs = [run for run in findings.runs if len(axis(run, "activations"))]
if not runs:
    say("**Not measured yet**: `gatherbench run activations`, on a GPU or without one.")

# %% [markdown]
# ## What was published
#
# Peak memory of activations of language models, over that of keeping them.

# %%
published = {"keep": 1.0, "disk": 0.53}
lines = [
    Line(way, "SSDTrain", "published", {"memory": share}, text=f"{share:.0%}")
    for way, share in published.items()
]
show(
    Chart(
        "published-activations",
        "Peak memory of activations",
        "Published, of language models. Shorter is less memory.",
        "share of keep",
        [Panel("SSDTrain", lines, Axis("share", 1.0))],
        {"memory": ("peak memory", "blue")},
    ),
    "Peak memory of activations, as published.",
)

# %% [markdown]
# ## Memory of a step, and epochs

# %%
for run in runs:
    show(chart(run, "activations", "peak"), "Memory of a training step by where activations lie.")
    show(chart(run, "activations"), "Epoch time by where activations lie.")

# %% [markdown]
# ## What the data say

# %%
for run in runs:
    for one in answers(run):
        say(f"- {run.machine}, {one.workload}: {one.text}")
if not runs:
    say("- Steps whose activations leave the device: **not measured yet**.")
