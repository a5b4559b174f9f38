# %% [markdown]
# # 7. Hot rows on the GPU, and tables larger than memory
#
# **Figure.** Data Tiering (Min et al., KDD 2022, arXiv 2111.05894), traffic and training time with
# hot rows in GPU memory; GraphBolt's example of features on a disk (dmlc/dgl).
#
# **Question.** What is it worth to keep the rows that are asked for often, and what does a row
# cost that does not fit in host memory?
#
# **Claims checked.** With hot rows in GPU memory 87 to 95 % less crosses the link, and training is
# 1.6 to 2.1 times as fast. An epoch on papers100M with a cache of 10 GB takes from 97.0 s (SIEVE)
# to 138.4 s (LRU), so the policy of the cache alone is worth a factor of 1.4.

# %%
import numpy as np

from gatherbench.bench.read.axis import axis, disk_strategies
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.views.axis import chart
from gatherbench.kernels.disk_read import reads_of
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.disk import NOWHERE
from helpers import (
    ONE_REPEAT,
    bars,
    compared,
    curves,
    known,
    name_of,
    published,
    ratios,
    runs,
    say,
    show,
)

tiering = published("headlines").query("run_id == 'published-data-tiering'")
faster = tiering.query("metric == 'speedup'").set_index("variant")["value"]
less = -tiering.query("metric == 'link_bytes_change'")["value"]

# %% [markdown]
# ## What a row that is found on the GPU is worth
#
# A row that is found in GPU memory does not cross the link. How much sooner the epoch ends then
# depends on what else it waits for. Over `aligned_zero_copy` out of registered memory, which keeps
# no row; whiskers: 95 % intervals. Dotted, published: the range of Data Tiering.


# %%
def gains(run):
    gain = ratios(run, run.measured["epoch_s"], ("aligned_zero_copy", "given"), inverse=True)
    return gain.join(run.medians["counted_on_device"].rename("counted"), on=SERIES).dropna(
        subset="counted"
    )


gained = known(gains, "cuda")
points = gained.assign(
    kind="measured", x=100 * gained.get("counted", np.nan), y=gained.get("ratio", np.nan)
)
points["series"] = [f"{name_of(row)}, {row.graph.partition(' ')[0]}" for row in gained.itertuples()]
show(
    curves(
        {"measured on a GPU": points},
        "rows found on the GPU (%)",
        "times as fast as with no row kept",
        title="What rows found on the GPU are worth: an epoch",
        limits={f"published, {name}: {value:g}×": value for name, value in faster.items()},
    ),
    "Times as fast as aligned zero-copy against the share of rows found on the GPU.",
)

# %% [markdown]
# ## How many rows, by which policy; paths off a disk
#
# From runs that kept several shares of a table, or had it on a disk.

# %%
COLUMNS = {
    "share": ("epoch", "link"),
    "path": ("epoch", "amplification", "in_memory", "iops"),
}
for run in runs():
    for field, columns in COLUMNS.items():
        if len(axis(run, field)):
            for column in columns:
                show(chart(run, field, column), f"{column} by {field}, {run.machine}.")

# %% [markdown]
# ## Caches in host memory, as published
#
# GraphBolt on papers100M, a cache of 10 GB before a disk.

# %%
caches = published("disk_epochs").query("strategy == 'disk_cached'").sort_values("value")
show(
    bars(caches.assign(look="published"), "Epochs by the policy of a cache", "epoch", "s"),
    "Epochs by the policy of a cache in memory, as published.",
)

# %% [markdown]
# ## What the data say

# %%
say(
    f"- Published: {less.min():.0%} to {less.max():.0%} less over the link, training"
    f" **{faster.min():g} to {faster.max():g}** times as fast."
)
for row in gained.itertuples():
    say(
        f"- {row.graph}: with {row.counted:.1%} of the rows found `{name_of(row)}` is"
        f" {compared(row.interval, 'as fast as `aligned_zero_copy`')}."
    )
if gained.empty or gained["low"].isna().any():
    say(f"- {ONE_REPEAT}" if len(gained) else "- Hot rows on a GPU: **not measured yet**.")
seconds = caches.set_index("variant")["value"]
text = ", ".join(f"`{name}` {value / seconds['sieve']:.2f}" for name, value in seconds.items())
say(f"- Published, an epoch by the policy of a cache, over `sieve`: {text}.")
ids, rows = 500_000, 111_059_956
drawn = np.random.default_rng(0).choice(rows // 125, ids // 125, replace=False)
for row_bytes in (400, 512, 4096):
    file = TableFile(NOWHERE, 0, rows // 125, row_bytes)
    read = reads_of(drawn.astype(np.int64), file, True)[0] / (len(drawn) * row_bytes)
    say(f"- Of papers100M's many random rows of {row_bytes} B, **{read:.1f} B** are read a byte.")
disks = [run for run in runs() if disk_strategies(run)]
for run in disks:
    say(*(f"- {run.machine}, {answer.workload}: {answer.text}" for answer in answers(run)))
if not disks:
    say("- Epochs with the table on a disk: **not measured yet**.")
