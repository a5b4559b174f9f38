# %% [markdown]
# # 14. Sampling that remembers
#
# **Question.** What is gained, or lost, by drawing from a cache of neighbours?
#
# **Claim checked.** GraphSnapShot (NoakLiu/GraphSnapShot): at fan-outs 20, 20, 20 sampling takes
# 7.1 % (FCR) and 11.1 % (OTF) less time than plain sampling; its own README has an accuracy of
# 0.710 in place of 0.718.

# %%
from gatherbench.bench.show.views.structure import (
    STRUCTURE,
    structure_accuracy,
    structure_points,
)
from helpers.findings import open_findings
from helpers.shown import say, show

findings = open_findings()
runs = [run for run in findings.runs if STRUCTURE.applies(run)]
if not runs:
    say("**Not measured yet**: `gatherbench run structure`.")

# %% [markdown]
# ## Accuracy after as much time

# %%
for run in runs:
    chart = structure_accuracy(run)
    show(chart, chart.title)

# %% [markdown]
# ## What the data say

# %%
for run in runs:
    for point in structure_points(run):
        say(f"- {run.machine}: {point.text}")
if not runs:
    say("- Sampling that remembers: **not measured yet**.")
