# %% [markdown]
# # 3. Zero-copy beside training, by its share of the multiprocessors
#
# **Figure.** Min et al. (PVLDB 14(11), 2021), splits of the multiprocessors by CUDA MPS.
#
# **Question.** How many of the GPU's multiprocessors does a gather need, and what does training
# lose to a gather beside it?
#
# **Claims checked.** On an RTX 3090 a split of 15:85 between gather and training saturates PCIe,
# and 10:90 made no visible difference end to end.

# %%
import re

import numpy as np
import pandas as pd

from gatherbench.stats.interval import interval_of
from helpers import (
    ONE_PROCESS,
    compared,
    curves,
    middle,
    name_of,
    probed,
    published,
    runs,
    say,
    show,
)

POINTS = probed()
shares = published("overlap").set_index("metric")["value"]


def swept(quantity: str, over: str) -> pd.DataFrame:
    """What a path tried when it was opened: ``what`` at each share, over its best or a column.

    Means over the repeats with 95 % intervals; ``x`` is the share, per cent.
    """
    lines = []
    for run in runs():
        cases = run.cases.query("backend == 'cuda' and basis == 'measured'")
        columns = {
            int(match[1]): name
            for name in cases
            if (match := re.fullmatch(rf"setup_budget_(\d+)_{quantity}_s", name))
        }
        if not columns:
            continue
        tried = cases[list(columns.values())]
        base = cases[over] if over in cases else tried.min(axis=1)
        for (strategy, variant, workload), opened in cases.groupby(
            ["strategy", "variant", "workload"]
        ):
            path = name_of(pd.Series({"strategy": strategy, "variant": variant}))
            for share, column in columns.items():
                ratio = (opened[column] / base[opened.index]).dropna()
                if len(ratio):
                    interval = interval_of(np.log(ratio))
                    series = f"{path}, {run.names[workload].partition(' ')[0]}"
                    lines.append(("measured", series, share, *interval.ends, interval))
    columns = ["kind", "series", "x", "y", "low", "high", "interval"]
    return pd.DataFrame(lines, columns=columns).drop_duplicates(["series", "x"])


gather, step = swept("gather", ""), swept("step", "setup_train_alone_step_s")
gather[["y", "low", "high"]] = 1 / gather[["y", "high", "low"]].to_numpy()

# %% [markdown]
# ## As the path itself tries it
#
# `async_zero_copy` tries shares beside the training step; these runs did so alone, too. Means over
# the repeats, whiskers: 95 % intervals. The published shares are the vertical ends of the axis: 10
# and 15 %.

# %%
TICKS = [1, *(100 * share for share in sorted(shares[shares < 1])), 25, 50]
for title, frame in {
    "A gather alone: its rate over the best": gather,
    "A training step with a gather beside it, over training alone": step,
}.items():
    show(
        curves(
            {title: frame},
            "share of the multiprocessors for the gather (%)",
            "ratio",
            title="What share of the multiprocessors a gather needs",
            ticks=TICKS,
            limits={"": 1.0},
        ),
        f"{title}, against the share of the multiprocessors for the gather.",
    )

# %% [markdown]
# ## By the probe
#
# Loads that are like training in one way each, and a gather beside them; round by round over the
# load alone.

# %%
alone = POINTS.query("case == 'train_alone'").set_index(["load", "round"])["time_s"]
both = POINTS.query("case == 'train_and_fetch'").join(alone.rename("alone_s"), ["load", "round"])
both = both.assign(over=both["time_s"] / both["alone_s"])
beside = middle(both.groupby(["load", "provider", "grid_percent"])["over"])
beside = beside.assign(
    kind="measured",
    x=beside["grid_percent"].astype(float),
    series=beside["load"].str.replace("_", " ") + ", " + beside["provider"],
)
show(
    curves(
        {"A load with a gather beside it, over the load alone": beside},
        "share of the GPU for the gather (%)",
        "ratio",
        title="A gather beside loads that stand for training",
    ),
    "Time of a load with a gather beside it over the load alone, by the gather's share.",
)

# %% [markdown]
# ## What the data say

# %%
enough = shares["sm_share_saturating_link"], shares["sm_share_sufficient_end_to_end"]
say(
    f"- Published: {enough[0]:.0%} saturates PCIe, {enough[1]:.0%} is enough end to end (RTX 3090)."
)
for series, line in gather.groupby("series", sort=False):
    tried = line[line["y"] >= 0.97].sort_values("x")
    text = f"{tried['x'].iloc[0]:g} % of the threads" if len(tried) else "none of those tried"
    say(f"- {series}: 97 % of the gather's best rate with **{text}**.")
for series, line in step.groupby("series", sort=False):
    best = line.loc[line["y"].idxmin()]
    say(
        f"- {series}: the shortest step with a gather beside it ({best['x']:g} %) takes"
        f" {compared(best['interval'], 'the time of training alone')}."
    )
for series, line in beside.groupby("series", sort=False):
    best = line.loc[line["y"].idxmin()]
    ends = f"{best['low']:.2f}–{best['high']:.2f}"
    say(f"- {series}: {best['y']:.2f} ({ends}) times the load alone, at {best['x']:g} %.")
say(f"- {ONE_PROCESS}" if len(beside) else "- Gathers beside training: **not measured yet**.")
