# %% [markdown]
# # 2. Requests on the link, and what alignment and order are worth
#
# **Figure.** Min et al. (PVLDB 14(11), 2021), requests and bandwidth of aligned and unaligned
# reads; Min et al., PyTorch-Direct (arXiv 2101.07956), rows that do not start on a line.
#
# **Question.** What does it cost to read rows that do not start on a 128 B line, and what do
# alignment, the width of an access and the order of the ids win back?
#
# **Claims checked.** A warp that starts in the middle of a line splits its reads into more and
# smaller requests, each with its header; a circular shift avoids it. Alignment is worth 5 to 10 %
# (dmlc/dgl #3254); sorting the ids was worth 4.3 times on 188 B rows (dmlc/dgl #5882, #6635).

# %%
import pandas as pd

from gatherbench.bench.read.derive import link_bytes
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import request_row, uniform_ids
from helpers import (
    ONE_PROCESS,
    compared,
    curves,
    known,
    middle,
    name_of,
    probed,
    published,
    say,
    show,
    within_rounds,
)

POINTS = probed()
READS = POINTS.query("case == 'sm_read'")["rate"]
SHOWN = ["unaligned", "aligned", "dgl", "pytorch-direct", "torch-quiver"]

# %% [markdown]
# ## Requests on the link, counted
#
# Counted from the addresses that every lane loads; no GPU is needed for it. *By policy of X* are
# X's lanes, access widths, shift and order on our kernel, as read in its source, and never X
# itself.

# %%
ids = uniform_ids(1 << 13)
kinds = {
    "rows of an odd multiple of 16 B": range(16, 2561, 96),
    "rows of an odd number of floats": range(12, 2561, 88),
}
counted = {
    kind: pd.DataFrame(
        [
            ("modelled", POLICIES[policy].label, width, row.requests_per_row)
            for policy in SHOWN
            for width in widths
            for row in [request_row(POLICIES[policy], width, 4, ids)]
        ],
        columns=["kind", "series", "x", "y"],
    )
    for kind, widths in kinds.items()
}
show(
    curves(counted, "row width (B)", "requests per row", title="What each policy asks of the link"),
    "Requests per row against row width, a curve a launch policy, for two kinds of rows.",
)

# %% [markdown]
# ## Payload per second
#
# Measured by `gatherbench probe`: medians over the rounds of one process, the best grid; whiskers
# from the slowest to the fastest round. Published: DGL on a table of 100 M × 47 float32.

# %%
order = published("alignment_and_order").query("metric == 'payload_in_one_second'")
order = order.assign(
    kind="published",
    series=["DGL," + variant.partition(",")[2] for variant in order["variant"]],
    x=188,
    y=order["value"] / 1e9,
)
gathers = POINTS.query("case == 'gpu_gather'")
gathers = gathers[gathers["span_bytes"] == gathers["span_bytes"].max()]
best = middle(gathers.groupby(["policy", "order", "row_bytes", "grid_percent"])["rate"])
best = best.sort_values("y").drop_duplicates(["policy", "order", "row_bytes"], keep="last")
best = best.rename(columns={"row_bytes": "x"}).assign(kind="measured")
best["series"] = [f"{POLICIES[p].label}, {o}" for p, o in best[["policy", "order"]].to_numpy()]
span = f"a table of {gathers['span_bytes'].max() / 2**30:g} GiB"
panels = {
    f"{policy}, over {span}": best[best["policy"] == policy] for policy in SHOWN[:3] if len(best)
}
show(
    curves(
        {"published": order[["kind", "series", "x", "y"]], **(panels or {"measured": best})},
        "row width (B)",
        "payload (GB/s)",
        title="Zero-copy: payload per second against row width",
        ticks=[16, 64, 256, 1024, 4096],
        limits={"a contiguous read": READS.max()} if len(READS) else {},
    ),
    "Payload per second against row width: published, and measured by policy and order.",
)

# %% [markdown]
# ## Pages
#
# Rows out of registered memory (pages of 4 KiB on the GPU) and out of managed memory (2 MiB).

# %%
spans = POINTS[POINTS["case"].isin(["span_registered", "span_managed", "managed_gather"])]
rates = middle(spans.groupby(["case", "row_bytes", "span_bytes"])["rate"])
rates = rates.assign(
    kind="measured", x=rates["span_bytes"] / 2**30, series=rates["case"].str.replace("span_", "")
)
show(
    curves(
        {f"rows of {width} B": points for width, points in rates.groupby("row_bytes")}
        or {"measured": rates},
        "size of the table (GiB)",
        "payload (GB/s)",
        title="Random rows by the size of the table, by kind of memory",
    ),
    "Payload per second against the size of the table, registered and managed memory.",
)

# %% [markdown]
# ## What the data say

# %%
for width in (400, 2408):
    plain, shifted = (
        request_row(POLICIES[name], width, 4, ids).requests_per_row
        for name in ("unaligned", "aligned")
    )
    say(
        f"- Rows of {width} B, counted: {plain:.2f} requests unaligned, {shifted:.2f} aligned"
        f" ({1 - shifted / plain:.0%} fewer)."
    )
dgl = order.set_index("series")["y"]
say(f"- Published: with sorted ids DGL gathered {dgl.max() / dgl.min():.1f} times as fast (188 B).")
pairs = {
    "`aligned` is as fast as `unaligned`": (("aligned", "given"), ("unaligned", "given")),
    "sorted ids are as fast as given ones": (("aligned", "sorted"), ("aligned", "given")),
    "`aligned` is as fast as the policy of DGL, both sorted": (
        ("aligned", "sorted"),
        ("dgl", "sorted"),
    ),
}
rows = gathers.set_index(["policy", "order", "row_bytes"]).sort_index()
for claim, (upper, lower) in pairs.items():
    texts = []
    for width in sorted(set(gathers["row_bytes"])):
        if (*upper, width) in rows.index and (*lower, width) in rows.index:
            ratio = within_rounds(rows.loc[(*upper, width)], rows.loc[(*lower, width)])
            texts.append(f"{compared(ratio)} at {width} B")
    say(
        f"- Measured over {span}, times that {claim}: {'; '.join(texts) or '**not measured yet**'}."
    )
theirs = POINTS.query("case == 'peer_gather'").groupby(["row_bytes", "policy", "order"])["rate"]
for (width, policy, how), rate in theirs.median().items():
    if policy != "aligned":
        ours = theirs.median()[width, "aligned"].round(1).to_dict()
        say(f"- {policy} itself, rows of {width} B: {rate:.1f} GB/s ({how}); ours in turn: {ours}.")
requests = POINTS[POINTS["case"].isin(["counted_requests", "expected_requests_128"])]
both = requests.pivot_table("amount", ["row_bytes", "policy"], "case").dropna()
for (width, policy), row in both.iterrows():
    ratio = row["counted_requests"] / row["expected_requests_128"]
    say(f"- Requests of `{policy}`, {width} B: the GPU counted {ratio:.3f} of those expected.")
traffic = known(link_bytes, "cuda")
traffic = traffic[traffic["strategy"].isin(["aligned_zero_copy", "unified_zero_copy"])]
for row in traffic.dropna(subset="link_128").itertuples() if len(traffic) else ():
    link, by_128, by_64 = (x / row.payload for x in (row.median, row.link_128, row.link_64))
    say(
        f"- {row.graph}: `{name_of(row)}` put **{link:.2f} B** on the link for a byte it wanted"
        f" (counted {by_128:.2f}, or {by_64:.2f} with reads of 64 B)."
    )
say(f"- {ONE_PROCESS}" if len(gathers) else "- Gathers on a GPU: **not measured yet**.")
