"""Check that the newest run below a results folder is complete: every case, metric and picture."""

from __future__ import annotations

import sys
from pathlib import Path

from gatherbench.bench.model.predict import is_prediction
from gatherbench.bench.read.tables import newest_run
from gatherbench.bench.run.part import key_of
from gatherbench.bench.run.store import RunStore
from gatherbench.strategies.registry import STRATEGIES, role_of

PER_EPOCH = {
    ("sample", "wall_time"),
    ("fetch", "wall_time"),
    ("fetch", "payload"),
    ("train", "wall_time"),
    ("train", "loss"),
    ("epoch", "wall_time"),
    ("epoch", "cpu_user"),
    ("epoch", "cpu_system"),
}
PICTURES = ("epoch_breakdown.png", "speedup.png", "cpu_seconds.png")


def main(root: Path) -> None:
    folder = newest_run(root)
    store = RunStore.open(folder)
    plan, rows = store.plan(), store.rows()
    problems = []
    for case in plan["cases"]:
        key = (case["workload"], case["strategy"], case["variant"], case["repeat"])
        rows_of_key = [r for r in rows if key_of(r) == key]
        ends = [r for r in rows_of_key if r.stage == "case"]
        if [r.status for r in ends] != ["ok"]:
            problems.append(f"{key}: ended {[(r.status, r.reason) for r in ends]}")
        for epoch in range(plan["measure"]["epochs"]):
            have = {
                (r.stage, r.metric) for r in rows_of_key if r.epoch == epoch and r.status == "ok"
            }
            # Without a fetch it trains on rows that nobody asked for: its loss says nothing.
            needless = {("train", "loss")} if role_of(*key[1:3]) == "no_fetch" else set()
            lacking = sorted(PER_EPOCH - needless - have)
            problems += [f"{key}: epoch {epoch} lacks {m}" for m in lacking]
    wanted = {(s.name, m) for s in STRATEGIES if "file" not in s().needs for m in ("sage", "gat")}
    seen = {(c["strategy"], plan["workloads"][c["workload"]]["model"]) for c in plan["cases"]}
    problems += [f"no case for {missing}" for missing in sorted(wanted - seen)]
    predicted = {key_of(r)[:3] for r in rows if is_prediction(r) and r.metric == "wall_time"}
    planned = {(c["workload"], c["strategy"], c["variant"]) for c in plan["cases"]}
    problems += [f"no prediction for {series}" for series in sorted(planned - predicted)]
    unknown = {key_of(r)[:3] for r in rows if is_prediction(r) and r.status != "ok"}
    # No profile has a rate for copies of single rows: what is copied so is unknown, and says why.
    batched = {key_of(r)[:3] for r in rows if r.metric == "copy_engine_copies"}
    problems += [f"predicted as unknown: {series}" for series in sorted(unknown - batched)]
    problems += [f"no picture {p}" for p in PICTURES if not (folder / "figures" / p).is_file()]
    if problems:
        sys.exit("incomplete: " + "\n".join(problems))
    print(f"complete: {len(plan['cases'])} cases, {len(rows)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
