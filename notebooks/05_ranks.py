# %% [markdown]
# # 5. Several GPUs
#
# **Figure.** Min et al. (PVLDB 14(11), 2021), multi-GPU training.
#
# **Question.** What does zero-copy win when several GPUs share one host's processor and memory?
#
# **Claim checked.** In a multi-GPU setup training is 65 to 92 % faster than on the conventional
# path.

# %%
import pandas as pd

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.axis import axis
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.views.axis import chart
from helpers import curves, published, runs, say, show
from tools.validate_model import chart_epochs, fitted_chart

GPUS = [1, 2, 4, 8]
faster = published("headlines").query("metric == 'faster_by'").set_index("variant")["value"]
low, high = 1 + faster["lowest"], 1 + faster["highest"]

# %% [markdown]
# ## By the model
#
# Reddit, minibatches and program costs fitted to the chart of one GPU (notebook 4); each GPU has a
# port of its own. Dotted: the published range, over graphs and numbers of GPUs that the paper does
# not tell apart.

# %%
fitted, profile = fitted_chart(published("reddit_epoch")), load_profile("rtx3090-pcie4")
epochs = pd.DataFrame(
    [
        ("modelled", strategy, gpus, epoch.epoch_s, epoch.bound)
        for gpus in GPUS
        for (strategy, _), epoch in chart_epochs(fitted, profile, gpus).items()
    ],
    columns=["kind", "series", "x", "y", "bound"],
)
base = epochs[epochs["series"] == "cpu_gather"].set_index("x")["y"]
over = epochs.assign(y=epochs["x"].map(base) / epochs["y"]).query("series != 'cpu_gather'")
show(
    curves(
        {f"modelled, {profile.name}": over},
        "GPUs",
        "times as fast as CPU gather on as many",
        title="Several GPUs: zero-copy against CPU gather",
        ticks=GPUS,
        limits={"published, least": low, "published, most": high},
    ),
    "Times as fast as CPU gather against the number of GPUs, modelled, with the published range.",
)

# %% [markdown]
# ## Ranks that were measured
#
# Scaling efficiency is the time for a seed node with one rank over that with W, and over W.
# Without GPUs ranks are processes that share one processor.

# %%
ranked = [run for run in runs() if len(axis(run, "gpus"))]
for run in ranked:
    for column in ("epoch", "efficiency"):
        show(chart(run, "gpus", column), f"{column} over ranks on {run.machine}.")
if not ranked:
    say("**Not measured yet**: a plan with `gpus = [1, 2]`, on GPUs or without any.")

# %% [markdown]
# ## What the data say

# %%
for row in over[over["series"] == "async_zero_copy"].itertuples():
    place = "inside" if low <= row.y <= high else "outside"
    remark = f", {place} the published {low:.2f} to {high:.2f} of several GPUs" * (row.x > 1)
    say(
        f"- {row.x} GPU{'s' * (row.x > 1)}, modelled for {profile.name}: `async_zero_copy` is"
        f" **{row.y:.1f}** times as fast as `cpu_gather naive`{remark}."
    )
bounds = epochs[epochs["x"] == max(GPUS)].set_index("series")["bound"]
text = ", ".join(f"`{strategy}` {bound}" for strategy, bound in bounds.items())
say(f"- What bounds the modelled epoch on {max(GPUS)} GPUs: {text}.")
for run in ranked:
    for row in axis(run, "gpus").dropna(subset="efficiency").to_dict("records"):
        say(
            f"- {run.machine}, {row['family']}, {row['strategy']}, {row['value']} ranks: efficiency"
            f" **{row['efficiency']:.0%}**, {row['backend']}."
        )
    say(*(f"- {answer.workload}: {answer.text}" for answer in answers(run)))
if not any(run.has_gpu for run in ranked):
    say("- Several GPUs: **not measured yet**.")
