# %% [markdown]
# # 11. Tables larger than memory
#
# **Question.** The feature table does not fit in host memory. What does a row cost off the disk,
# and by which way does it come?
#
# **Claim checked.** GraphBolt's example of features on a disk (dmlc/dgl,
# `examples/graphbolt/disk_based_feature`): an epoch on papers100M with a cache of 10 GB takes from
# 97.0 s (SIEVE) to 138.4 s (LRU), so the policy of the cache alone is worth a factor of 1.4.

# %%
import numpy as np

from gatherbench.bench.read.disk_reads import disk_strategies
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.views.axis import chart
from gatherbench.kernels.disk_read import reads_of
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.disk_direct import NOWHERE
from helpers.findings import open_findings
from helpers.shown import say, show

findings = open_findings()
runs = [run for run in findings.runs if disk_strategies(run)]
if not runs:
    say("**Not measured yet**: `gatherbench run disk`, on a GPU or without one.")

# %% [markdown]
# ## What a row costs
#
# A disk is read in whole blocks of 4096 B. Rows that are asked for together share a block only
# where the minibatch is large beside the table.

# %%
ids, rows = 500_000, 111_059_956
drawn = np.random.default_rng(0).choice(rows // 125, ids // 125, replace=False)
for row_bytes in (400, 512, 4096):
    table = TableFile(NOWHERE, 0, rows // 125, row_bytes)
    read = reads_of(drawn.astype(np.int64), table, True)[0] / (len(drawn) * row_bytes)
    say(
        f"- Of papers100M's many random rows of {row_bytes} B, **{read:.1f} B** are read for each"
        " byte, although rows of a block share reads (computed)."
    )
for run in runs:
    show(chart(run, "path", "amplification"), "Bytes read off the disk for each byte of the rows.")

# %% [markdown]
# ## Epochs

# %%
published = findings.published[findings.published["table"] == "disk_epochs"]
caches = published[published["strategy"] == "disk_cached"].set_index("variant")["value"]
lines = [
    Line("disk_cached", policy, "published", {"disk_cached": time}, text=f"{time:.1f} s")
    for policy, time in caches.items()
]
panel = Panel("GraphBolt, papers100M", lines, Axis("s", float(caches.max())))
reading = "Published, on another machine. Shorter is faster."
by_policy = Chart("published-caches", "Epochs by cache policy", reading, "epoch", [panel])
show(by_policy, "Epochs by the policy of a cache in memory, as published.")
for run in runs:
    show(chart(run, "path"), "Epoch time of each path that reads a disk.")

# %% [markdown]
# ## Caches in memory

# %%
for run in runs:
    show(chart(run, "path", "in_memory"), "Rows found in memory, by path.")
    show(chart(run, "path", "iops"), "Reads of the disk per second, by path.")

# %% [markdown]
# ## What the data say

# %%
say(
    f"- Published: with the cache `lru` an epoch takes **{caches['lru'] / caches['sieve']:.2f}**"
    f" times as long as with `sieve`, with `s3-fifo` {caches['s3-fifo'] / caches['sieve']:.2f},"
    f" with `clock` {caches['clock'] / caches['sieve']:.2f}. Their disk is the bound: fewer hits"
    " are more reads."
)
for run in runs:
    for one in answers(run):
        say(f"- {run.machine}, {one.workload}: {one.text}")
if not runs:
    say("- Epochs with the table on a disk: **not measured yet**.")
