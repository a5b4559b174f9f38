# %% [markdown]
# # 8. Neighbours: activations, kinds of edges, sampling that remembers, partitions
#
# **Figure.** The headline figures of four other systems: SSDTrain (Wu et al., arXiv 2408.10013),
# PIGEON (Wu et al., arXiv 2301.06284), GraphSnapShot and MariusGNN.
#
# **Question.** What does each cost and win beside a path that fetches features?
#
# **Claims checked.** SSDTrain: peak memory of activations 47 % lower with a disk, and no slower a
# step, for language models. PIGEON: on full graphs compact materialisation and reordering train up
# to 3.8 times as fast as without them. GraphSnapShot: training takes 7 to 30 % less time.

# %%
import pandas as pd

from gatherbench.bench.read.axis import AXES, axis
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.views.axis import chart
from helpers import bars, published, runs, say, show

#: Field of an axis → what its chart shows, and the plan that measures it.
FIELDS = {
    "around_step": (("peak", "epoch"), "activations"),
    "model": (("train", "peak"), "relations"),
    "sampler": (("epoch", "then"), "structure"),
}

# %% [markdown]
# ## As published
#
# On the machines and graphs of their authors.

# %%
remembers = published("sampling_that_remembers").query("metric == 'wall_time_change'")
published_rows = pd.DataFrame(
    [
        ("SSDTrain: peak memory of activations, over keeping them", "kept", 1.0),
        ("SSDTrain: peak memory of activations, over keeping them", "on a disk", 0.53),
        ("PIGEON: training, times as fast", "neither optimisation", 1.0),
        ("PIGEON: training, times as fast", "compact and reordered, at most", 3.8),
        *(
            (f"GraphSnapShot: training time, {row.workload}", row.variant, 1 + row.value)
            for row in remembers.itertuples()
        ),
    ],
    columns=["panel", "name", "value"],
)
show(
    bars(published_rows.assign(look="published", colour="blue"), "As published", "ratio", "×"),
    "Headline figures of SSDTrain, PIGEON and GraphSnapShot, as published.",
)

# %% [markdown]
# ## As measured here

# %%
measured = {field: [run for run in runs() if len(axis(run, field))] for field in FIELDS}
relational = set(AXES["model"].over)
measured["model"] = [r for r in runs() if axis(r, "model")["value"].isin(relational).any()]
for field, (columns, plan) in FIELDS.items():
    for run in measured[field]:
        for column in columns:
            show(chart(run, field, column), f"{column} by {field}, {run.machine}.")
    if not measured[field]:
        say(f"**Not measured yet**: `gatherbench run {plan}`, on a GPU or without one.")

# %% [markdown]
# ## What the data say

# %%
for field, compared in measured.items():
    for run in compared:
        for line in axis(run, field).dropna(subset="ratio").to_dict("records"):
            ends = f" ({line['ratio_low']:.3g}–{line['ratio_high']:.3g})"
            say(
                f"- {run.machine}, {line['family']}, {field} {line['value'] or 'plain'}: an epoch"
                f" takes **{line['ratio']:.3g}×**{ends} that of the first value."
            )
        say(*(f"- {answer.workload}: {answer.text}" for answer in answers(run)))
    if not compared:
        say(f"- {field}: **not measured yet**.")
