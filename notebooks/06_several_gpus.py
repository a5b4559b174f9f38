# %% [markdown]
# # 6. Several GPUs
#
# **Question.** What does zero-copy win when several GPUs share one host's processor and memory?
#
# **Claim checked.** Min et al. (PVLDB 14(11), 2021): in a multi-GPU setup training is 65 to 92 %
# faster than on the conventional path.

# %%
import pandas as pd

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.reference import published_range
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.figures.curves import CurveAxes, curves
from gatherbench.bench.show.views.axis import chart
from helpers.findings import open_findings
from helpers.reddit import (
    beside_published,
    measured_over_ranks,
    modelled_scaling,
    over_cpu_gather,
)
from helpers.shown import say, show

findings = open_findings()
GPUS = [1, 2, 4, 8]
profile = load_profile("rtx3090-pcie4")
epochs = modelled_scaling(findings.published, profile, GPUS)
absent = {"measured": "run a plan with `gpus = [1, 2, 4]` on a machine with as many GPUs"}
names = {"modelled": f"modelled, {profile.name}"}
measured = measured_over_ranks(findings, "cuda", "speedup")
if measured["place"].nunique() == 1:
    names["measured"] = f"measured, {measured['place'].iloc[0]}"
measured_epochs = measured_over_ranks(findings, "cuda", "epoch")
on_gpus, on_hosts = (findings.runs_of_ranks(backend) for backend in ("cuda", "host"))
ticks = sorted({*GPUS, *measured["x"]})


def beside(modelled: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One table of both; what is modelled has no interval."""
    return modelled if measured.empty else modelled.merge(measured, how="outer")


# %% [markdown]
# ## Against CPU gather on as many GPUs

# %%
ratios = over_cpu_gather(epochs)
show(
    curves(
        beside(ratios, measured),
        absent,
        CurveAxes("GPUs", "times as fast as CPU gather", ticks),
        title="Several GPUs: zero-copy against CPU gather",
        foot="Published: a range over graphs and numbers of GPUs that the table does not hold. "
        "Modelled: Reddit, minibatches and program costs fitted to the chart of one GPU (notebook "
        "5); each GPU has a port of its own. Measured: each strategy by its "
        "fastest variant on as many GPUs, with 95 % intervals.",
        roofs=published_range(findings.published),
        names=names,
    ),
    "Times as fast as CPU gather against the number of GPUs: published, modelled, measured.",
)

# %% [markdown]
# ## Epoch time

# %%
show(
    curves(
        beside(epochs, measured_epochs),
        absent,
        CurveAxes("GPUs", "time per epoch (s)", ticks),
        title="Several GPUs: one epoch, its minibatches shared",
        foot="Modelled as above, on Reddit. What does not get shorter with more GPUs is work of "
        "the shared host.",
        kinds=("modelled", "measured"),
        names=names,
    ),
    "Epoch time against the number of GPUs, modelled and measured, a curve a strategy.",
)

# %% [markdown]
# ## How far more GPUs help
#
# Scaling efficiency is the time for a seed node with one GPU over that with W GPUs, and over W.

# %%
for run in on_gpus:
    show(chart(run, "gpus", "efficiency"), f"Scaling efficiency over GPUs on {run.machine}.")
    say(*(f"- {one.workload}: {one.text}" for one in answers(run)))
if not on_gpus:
    say("**Not measured yet**: " + absent["measured"] + ".")

# %% [markdown]
# ## Ranks on a host
#
# Without GPUs ranks are processes that share one processor and its memory. What they show is how
# the processor's part of each path scales; they are no GPUs, and stand in no panel with them.

# %%
for run in on_hosts:
    for column, what in {"epoch": "Epoch time", "efficiency": "Scaling efficiency"}.items():
        drawn = chart(run, "gpus", column)
        show(drawn, f"{what} over ranks, which are processes on a host: {run.machine}.")
    say(*(f"- {one.workload}: {one.text}" for one in answers(run)))
if not on_hosts:
    say("**Not measured yet**: run a plan with `gpus = [1, 2]` on a machine without GPUs.")

# %% [markdown]
# ## What the data say

# %%
low, high = published_range(findings.published)["y"]
for row in ratios[ratios["series"] == "async_zero_copy"].itertuples():
    place = "inside" if low <= row.y <= high else "outside"
    beside_it = f", {place} the published {low:.2f} to {high:.2f} of several GPUs"
    say(
        f"- {row.x} GPU{'s' if row.x > 1 else ''}, modelled for {profile.name}: `async_zero_copy`"
        f" is **{row.y:.1f}** times as fast as `cpu_gather naive`{beside_it * (row.x > 1)}."
    )
bounds = epochs[epochs["x"] == max(GPUS)].set_index("series")["bound"]
said = ", ".join(f"`{strategy}` {bound}" for strategy, bound in bounds.items())
say(f"- What bounds the modelled epoch on {max(GPUS)} GPUs: {said}.")
say(
    "- The paper's graphs and numbers of GPUs are not those of the model here, so a ratio outside"
    " the published range refutes neither."
)
for sentence in beside_published(measured, [low, high]):
    say(sentence)
if measured.empty:
    say("- Several GPUs: **not measured yet**.")
