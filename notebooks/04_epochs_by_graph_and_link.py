# %% [markdown]
# # 4. Epochs by graph and by link
#
# **Figure.** Min et al. (PVLDB 14(11), 2021), epoch time by graph; the Reddit chart in the README
# of K-Wu/pytorch-direct_dgl, by generation of the link; PyTorch-Direct (arXiv 2101.07956),
# transfer time.
#
# **Question.** How much faster does an epoch get, how near does it come to having the whole table
# in GPU memory, and what does a faster link change for each path?
#
# **Claims checked.** 65 to 92 % faster than the conventional path in a multi-GPU setup, and for
# some graphs as fast as all-in-GPU; from PCIe 3.0 to 4.0 the epoch with CPU gather hardly gets
# shorter, the zero-copy epochs do; data transfer time −47.1 % on average.

# %%
import numpy as np
import pandas as pd

from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.views.epochs import speedup
from helpers import (
    ONE_REPEAT,
    bars,
    change,
    known,
    name_of,
    published,
    ratios,
    runs_on,
    say,
    show,
)
from tools.validate_model import reddit_chart

LINKS = {"rtx3090-pcie3": "RTX 3090, PCIe 3.0", "rtx3090-pcie4": "RTX 3090, PCIe 4.0"}

# %% [markdown]
# ## Reddit, by generation of the link
#
# Published (outlined): read off the chart to ±0.05 s. Modelled (hatched): the link model, whose
# free constants are fitted to the four PCIe 3.0 bars; the PCIe 4.0 bars are predictions.

# %%
reddit = reddit_chart(published("reddit_epoch"))
published_rows = reddit.assign(value=reddit["published_s"], look="published", suffix="")
off = (" (" + reddit["error"].map("{:+.0%}".format) + ")").mask(reddit["fitted"], " fitted")
model = reddit.assign(value=reddit["modelled_s"], look="modelled", suffix=off)
chart = pd.concat([published_rows, model]).sort_values(["machine", "published_s"], kind="stable")
chart = chart.assign(panel=chart["machine"].map(LINKS), scale="reddit")
show(
    bars(chart, "One epoch of GraphSAGE on Reddit, by generation of the link", "epoch", "s"),
    "Epoch time on Reddit for PCIe 3.0 and 4.0, four strategies, published beside modelled.",
)

# %% [markdown]
# ## Every path over the CPU's gather, on the graphs that were measured

# %%
for run in [*runs_on("cuda"), *runs_on("host")]:
    show(speedup(run), f"Speed-up of each strategy over CPU gather, run {run.run_id}.")

# %% [markdown]
# ## A whole epoch of papers100M's shape
#
# The plan `gpu-papers` has the fan-outs, seeds and hidden width of GraphBolt's example. GraphBolt
# had its features on a disk behind caches, on A100s: no bar is a verdict over another.

# %%
whole = published("whole_epochs")
whole = whole.assign(look="published", name=whole["strategy"] + " (" + whole["variant"] + ")")
show(
    bars(
        whole[["name", "value", "look", "strategy"]].sort_values("value"),
        "One epoch of papers100M, as published",
        "epoch",
        "s",
        "dmlc/dgl #7541, pyg-team/pytorch_geometric #10079, as their authors say.",
    ),
    "Whole epochs of papers100M, published by other systems.",
)

# %% [markdown]
# ## What the data say

# %%
at = reddit.set_index(["strategy", "machine"])["published_s"]
for strategy in at.index.unique("strategy"):
    short, long = (at[strategy, machine] for machine in ("rtx3090-pcie4", "rtx3090-pcie3"))
    ends = [1 - (short + e) / (long - e) for e in (0.05, -0.05)]
    say(
        f"- Published, `{strategy}`: PCIe 4.0 shortens the epoch by **{1 - short / long:.0%}**"
        f" ({ends[0]:.0%} to {ends[1]:.0%} as the chart can be read)."
    )
predicted = reddit[~reddit["fitted"]].sort_values("error", key=np.abs)
text = ", ".join(f"{s} {e:+.0%}" for s, e in predicted[["strategy", "error"]].to_numpy())
say(f"- The model, fitted on PCIe 3.0 alone, is off on PCIe 4.0 by: {text}.")
for backend, where in {"cuda": "on a GPU", "host": "in host memory, no GPU"}.items():
    measured_runs = runs_on(backend)
    for run in measured_runs:
        say(*(f"- {answer.workload}, {where}: {answer.text}" for answer in answers(run)))
    if not measured_runs:
        say(f"- Epochs {where}: **not measured yet**.")


def transfers(run):
    """The wait for rows over that of the paper's baseline, of paths that fetch nothing ahead."""
    ahead = run.declared_medians.query("declared_lookahead > 0").index
    waits = ratios(run, run.measured["fetch_s"])
    hidden = pd.MultiIndex.from_frame(waits[SERIES[:4]]).isin(ahead)
    return waits[~hidden & ~waits["strategy"].isin(["no_fetch", "all_in_gpu"])]


for graph, paths in known(transfers, "cuda").groupby("graph"):
    text = "; ".join(f"`{name_of(row)}` {change(row)}" for row in paths.itertuples())
    say(f"- Transfer time against `cpu_gather (naive)` (published: −47.1 %), {graph}: {text}.")
if any(run.measured.index.unique("repeat").size < 2 for run in runs_on("cuda")):
    say(f"- {ONE_REPEAT}")
