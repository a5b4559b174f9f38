"""A table without a graph: every row once, by seed, and sizes that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.store import open_dataset
from gatherbench.datasets.uniform import ROWS, UniformSource


def test_every_row_is_a_training_node_without_neighbours(tmp_path: Path) -> None:
    data = open_dataset(prepare_dataset("uniform", 1e-5, tmp_path), check="full")
    rows = round(ROWS * 1e-5)
    assert data.features.shape == (rows, 100)
    assert data.spec.row_bytes == 400
    assert data.spec.num_edges == len(data.indices) == 0
    assert not data.indptr.any()
    np.testing.assert_array_equal(data.train_ids, np.arange(rows))
    assert len(np.unique(data.features[:, 0])) == rows, "no two rows are alike"
    assert data.labels.max() < data.spec.num_classes
    again = open_dataset(prepare_dataset("uniform", 1e-5, tmp_path / "again"))
    np.testing.assert_array_equal(again.features, data.features)


def test_at_scale_1_it_is_8_gib() -> None:
    assert UniformSource().estimate(1).table_bytes == pytest.approx(8 << 30, abs=400)


@pytest.mark.parametrize("scale", [1e-9, 1000])
def test_a_scale_without_rows_or_with_too_many_is_refused(scale: float) -> None:
    with pytest.raises(DatasetError, match="rows, not 1 to"):
        UniformSource().estimate(scale)
