"""ogbn-mag from a tiny folder in OGB's own layout, read by OGB's own code, with no network."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from gatherbench.datasets.ogb_source import MagSource
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset

from .edges import kinds_of

pytest.importorskip("ogb")

#: Three papers, two authors, a field.
COUNTS = {"author": 2, "field_of_study": 1, "paper": 3}
EDGES = {
    ("author", "writes", "paper"): [[0, 0, 1], [0, 1, 2]],
    ("paper", "cites", "paper"): [[0, 1], [1, 0]],
    ("paper", "has_topic", "field_of_study"): [[2], [0]],
}
ROWS = np.arange(384, dtype=np.float32).reshape(3, 128) / 8


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write(text)


def lines(values: object) -> str:
    rows = np.atleast_2d(np.asarray(values))
    return "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw" / "ogbn_mag"
    raw = folder / "raw"
    write(raw / "num-node-dict.csv.gz", ",".join(COUNTS) + "\n" + lines([*COUNTS.values()]))
    write(raw / "triplet-type-list.csv.gz", lines([*EDGES]))
    for triplet, edges in EDGES.items():
        place = raw / "relations" / "___".join(triplet)
        write(place / "edge.csv.gz", lines(np.array(edges).T))
        write(place / "num-edge-list.csv.gz", lines(len(edges[0])))
    write(raw / "node-feat" / "paper" / "node-feat.csv.gz", lines(ROWS))
    has = ",".join(COUNTS) + "\nFalse,False,True\n"
    write(raw / "nodetype-has-label.csv.gz", has)
    write(raw / "node-label" / "paper" / "node-label.csv.gz", lines([[4], [348], [0]]))
    split = folder / "split" / "time"
    write(split / "nodetype-has-split.csv.gz", has)
    for part, ids in {"train": [[0]], "valid": [[1]], "test": [[2]]}.items():
        write(split / "paper" / f"{part}.csv.gz", lines(ids))
    (folder / "RELEASE_v2.txt").touch()
    return folder


def test_types_follow_one_another_and_edges_go_both_ways(raw, tmp_path):
    folder = tmp_path / "ogbn-mag"
    MagSource("ogbn-mag").prepare(folder, 1.0, silent)
    data = open_dataset(folder)
    # Papers have the labels, so they come first: 0 to 2; authors 3 and 4; the field 5.
    assert data.spec.node_types == (("paper", 3), ("author", 2), ("field_of_study", 1))
    assert data.labels.tolist() == [4, 348, 0, -1, -1, -1]
    assert data.train_ids.tolist() == [0]
    assert (data.val_ids.tolist(), data.test_ids.tolist()) == ([1], [2])
    assert kinds_of(data) == {
        (3, 0): "writes",
        (3, 1): "writes",
        (4, 2): "writes",
        (0, 3): "inverse writes",
        (1, 3): "inverse writes",
        (2, 4): "inverse writes",
        (0, 1): "cites",  # also an inverse: the first of both kinds
        (1, 0): "cites",
        (2, 5): "has_topic",
        (5, 2): "inverse has_topic",
    }
    assert np.array_equal(data.features[:3], ROWS)
    assert np.array_equal(data.features[3], (ROWS[0] + ROWS[1]) / 2)
    assert np.array_equal(data.features[4], ROWS[2])
    assert np.array_equal(data.features[5], ROWS[2])
