"""Rows found on the device and the share that is kept: by hand from rows that were made up."""

import json
from pathlib import Path

import pytest

from gatherbench.bench.read.axis import axis
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.views.requests import data_path

from ..written_run import write_run
from .gpu_rows import add_rows, declare_path
from .test_show import all_of

CACHED = "cached_zero_copy"
#: Strategy, variant, parameters, bytes kept of the table of 1000 B, rows of 10 B found of 100.
SERIES = [
    ("cpu_gather", "naive", {"mode": "naive"}, 0, None),
    ("aligned_zero_copy", "given", {}, 0, None),
    (CACHED, "presampled,10%,0", {}, 100, 25),
    (CACHED, "presampled,50%,0", {"share": "50%"}, 500, 80),
    (CACHED, "oracle,10%,0", {"policy": "oracle"}, 100, 30),
    ("all_in_gpu", "default", {}, 1000, None),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPU's run with an epoch of 1.7 s and 0.1 s less for each series after the first."""
    times = [(s, v, (0.2, 1.0 - 0.1 * i, 0.49)) for i, (s, v, *_) in enumerate(SERIES)]
    folder = tmp_path_factory.mktemp("results") / "nvidia-h200" / "20261121-gpu-aaaaaa"
    write_run(folder, series=times, backend="cuda", machine="nvidia-h200", epochs=1)
    plan = json.loads((folder / "plan.json").read_text())
    params = {(s, v): given for s, v, given, *_ in SERIES}
    for case in plan["cases"]:
        case["params"] = params[case["strategy"], case["variant"]]
    (folder / "plan.json").write_text(json.dumps(plan))
    for strategy, variant, _, kept, found in SERIES:
        case = {"strategy": strategy, "variant": variant}
        table = {"stage": "setup", "metric": "table", "unit": "B", "value": 1000}
        add_rows(folder, [table], **case)
        reads = 0 if strategy == "cpu_gather" else 1000 - 10 * (found or kept / 10)
        facts = {"row": 10.0, "gpu_table": kept, "gpu_link_read": reads, "copy_engine": 8}
        facts["gpu_memory_read"] = 0 if strategy == "cpu_gather" else 1000 - reads
        declare_path(folder, strategy, variant, **facts)
        hits = {"stage": "fetch", "metric": "rows_on_device", "unit": "1", "value": found}
        if found is not None:  # of the 200 M rows in the 2 GB of an epoch of `write_run`
            hits["value"] = found * 2e6 + 1e6
            add_rows(folder, [hits | {"repeat": n} for n in range(3)], epoch=0, **case)
    return folder


def test_found_rows_are_counted_beside_declared(folder):
    run = load_run(folder)
    columns = ["counted_on_device", "declared_on_device"]
    found = run.medians[columns].droplevel(["workload", "backend", "basis"])
    assert found.loc[(CACHED, "presampled,10%,0")].tolist() == pytest.approx([0.255, 0.25])
    assert found.loc[("all_in_gpu", "default"), "declared_on_device"] == 1
    assert found["counted_on_device"].notna().sum() == 3, "nobody counts the others"
    text = all_of(folder, 100).partition("Rows kept on the device: wordnet GraphSAGE")[2]
    assert "10% 1.50 1.00 25.5 25.0 758" in " ".join(text.split())
    shares = axis(run, "share")
    assert list(shares["value"]) == ["10%", "50%"], "of the oracle there is one share"
    assert shares["ratio"].tolist() == pytest.approx([1.0, 1.4 / 1.5])
    assert shares["link"].tolist() == [758, 208]
    policies = axis(run, "policy")
    assert list(policies["value"]) == ["presampled", "oracle"]
    table = data_path(run)
    columns = [column.field for column in table.columns]
    line = next(one for one in table.lines if "presampled,50%,0" in [c.value for c in one.cells])
    cells = dict(zip(columns, line.cells, strict=True))
    assert (cells["declared"].text, cells["counted"].text) == ("80.0", "80.5")


def test_paths_that_keep_nothing_have_no_table(make_run):
    folder = make_run(declared=True)
    run = load_run(folder)
    assert not {"declared", "counted"} & {column.field for column in data_path(run).columns}
    nothing = {"stage": "fetch", "metric": "rows_on_device", "unit": "1", "value": 0}
    path = {"strategy": "unified_zero_copy", "variant": "registered", "backend": "host"}
    path |= {"machine": "cpu-amd-epyc-2c"}
    add_rows(folder, [nothing | {"repeat": n} for n in range(3)], epoch=0, **path)
    assert load_run(folder).medians["counted_on_device"].notna().any()
    assert "Rows kept" not in all_of(folder)
