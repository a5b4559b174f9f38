"""Check that the newest run below a results folder is complete: every case, metric and picture."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from gatherbench.bench.read.tables import newest_run
from gatherbench.bench.run.frames import among
from gatherbench.bench.run.store import RunStore
from gatherbench.strategies.registry import STRATEGIES, role_of

PER_EPOCH = {
    *("sample_s", "fetch_s", "fetch_payload_bytes", "train_s", "train_loss"),
    *("epoch_s", "cpu_user_s", "cpu_system_s"),
}
PICTURES = ("epoch_breakdown.png", "speedup.png", "cpu_seconds.png")


def main(root: Path) -> None:
    folder = newest_run(root)
    store = RunStore.open(folder)
    plan, frames = store.plan(), store.frames()
    problems = []
    for case in plan["cases"]:
        key = (case["workload"], case["strategy"], case["variant"], case["repeat"])
        own = frames.only(partial(among, cases={key}))
        measured = own.only(lambda table: table["basis"] == "measured")
        ends = measured.cases["status"].dropna().tolist()
        if ends != ["ok"]:
            problems.append(f"{key}: ended {ends}")
        for epoch in range(plan["measure"]["epochs"]):
            line = measured.epochs[measured.epochs["epoch"] == epoch].dropna(axis="columns")
            # Without a fetch it trains on rows that nobody asked for: its loss says nothing.
            needless = {"train_loss"} if role_of(*key[1:3]) == "no_fetch" else set()
            lacking = sorted(PER_EPOCH - needless - set(line if len(line) else ()))
            problems += [f"{key}: epoch {epoch} lacks {m}" for m in lacking]
    wanted = {(s.name, m) for s in STRATEGIES if "file" not in s().needs for m in ("sage", "gat")}
    seen = {(c["strategy"], plan["workloads"][c["workload"]]["model"]) for c in plan["cases"]}
    problems += [f"no case for {missing}" for missing in sorted(wanted - seen)]
    series = ["workload", "strategy", "variant"]
    predicted = frames.epochs[frames.epochs["basis"] == "predicted"].set_index(series)["epoch_s"]
    planned = {(c["workload"], c["strategy"], c["variant"]) for c in plan["cases"]}
    problems += [f"no prediction for {path}" for path in sorted(planned - {*predicted.index})]
    # No profile has a rate for copies of single rows: what is copied so is unknown, and says why.
    batched = frames.epochs.get("declared_copy_engine_copies", predicted.iloc[:0]).notna()
    batched = {*map(tuple, frames.epochs.loc[batched[batched].index, series].to_numpy())}
    unknown = {*predicted[predicted.isna()].index}
    problems += [f"predicted as unknown: {path}" for path in sorted(unknown - batched)]
    problems += [f"no picture {p}" for p in PICTURES if not (folder / "figures" / p).is_file()]
    if problems:
        sys.exit("incomplete: " + "\n".join(problems))
    print(f"complete: {len(plan['cases'])} cases, {len(frames.epochs)} epochs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
