# %% [markdown]
# # 6. Energy, power and processor time
#
# **Figure.** PyTorch-Direct (Min et al., arXiv 2101.07956), power and transfer time.
#
# **Question.** What does zero-copy give back besides time?
#
# **Claims checked.** Data transfer time −47.1 % on average and system power −12.4 to −17.5 %
# against CPU gather.

# %%
import pandas as pd

from gatherbench.bench.read.derive import gpu_energy
from gatherbench.bench.show.views.resources import cpu_core_seconds, gpu_energy_per_epoch
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

QUANTITIES = {
    "transfer time": lambda run: run.measured["fetch_s"],
    "processor time": lambda run: run.measured["cpu_s"],
    "power of the GPU": lambda run: run.ended[run.ended["used"]]["gpu_watts"],
    "energy of the GPU": lambda run: run.ended[run.ended["used"]]["gpu_joules"],
}
#: Paths whose wait is no transfer: these fetch ahead, or move nothing.
HIDDEN = ("async_zero_copy", "no_fetch", "all_in_gpu")


def changes(backend: str, quantity: str) -> pd.DataFrame:
    """Every path over ``cpu_gather (naive)``, by graph."""
    values = QUANTITIES[quantity]
    paths = known(lambda run: ratios(run, values(run)), backend)
    hidden = paths["strategy"].isin(HIDDEN) | (paths["variant"] == "prefetch")
    return paths[~hidden] if quantity == "transfer time" else paths


# %% [markdown]
# ## Change per epoch against CPU gather (naive)
#
# Published (outlined): PyTorch-Direct, of the whole system. Measured: ratios of means over
# repeats, with 95 % intervals where there are several. Transfer time is what the loop waited for
# rows: paths that fetch ahead, which hide it, are left out. Power and energy are the GPU's own
# (NVML), over windows of whole epochs.

# %%
published_rows = published("headlines")
published_rows = published_rows[
    published_rows["metric"].isin(["wall_time_change", "system_power_change"])
]
published_rows = published_rows.assign(
    panel=published_rows["metric"].map(
        {"wall_time_change": "transfer time", "system_power_change": "power of the GPU"}
    ),
    name="PyTorch-Direct (" + published_rows["variant"] + ")",
    look="published",
)
frames = [published_rows[["panel", "name", "value", "look", "strategy"]]]
for quantity in QUANTITIES:
    paths = changes("cuda", quantity)
    paths = paths[paths["workload"] == paths["workload"].iloc[0]] if len(paths) else paths
    ends = paths[["low", "high"]].to_numpy(float) - 1
    frames.append(
        pd.DataFrame(
            {
                "panel": quantity,
                "name": [
                    f"{name_of(row)}: {row.graph.partition(' ')[0]}" for row in paths.itertuples()
                ],
                "value": paths["ratio"] - 1,
                "low": ends[:, 0],
                "high": ends[:, 1],
                "look": "measured",
                "strategy": paths["strategy"],
            }
        )
    )
order = {name: place for place, name in enumerate(QUANTITIES)}
frame = pd.concat(frames).sort_values("panel", key=lambda names: names.map(order), kind="stable")
show(
    bars(frame, "Change per epoch against CPU gather", "change", "share"),
    "Change of transfer time, processor time, power and energy against CPU gather.",
)

# %% [markdown]
# ## Joules and core-seconds

# %%
for run in runs_on("cuda", having=lambda run: len(gpu_energy(run)) > 0):
    show(gpu_energy_per_epoch(run), f"Energy of the GPU per epoch by strategy, run {run.run_id}.")
for run in [*runs_on("cuda"), *runs_on("host")]:
    show(cpu_core_seconds(run), f"Core-seconds per epoch by strategy, run {run.run_id}.")

# %% [markdown]
# ## What the data say

# %%
for backend, where in {"cuda": "On a GPU", "host": "In host memory, no GPU"}.items():
    for quantity in QUANTITIES if backend == "cuda" else ("processor time",):
        paths = changes(backend, quantity)
        for graph, of_graph in paths.groupby("graph", sort=False):
            text = "; ".join(f"`{name_of(row)}` {change(row)}" for row in of_graph.itertuples())
            say(f"- {where}, {quantity} an epoch against `cpu_gather (naive)`, {graph}: {text}.")
        if paths.empty:
            say(f"- {where}, {quantity}: **not measured yet**.")
say(f"- In brackets 95 % intervals. {ONE_REPEAT} In host memory the same cores gather and train.")
