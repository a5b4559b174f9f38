"""The file behind a map, and where in it the rows begin."""

import numpy as np
import pytest

from gatherbench.kernels import table_file
from gatherbench.kernels.table_file import TableFile, read_rows


@pytest.mark.parametrize("offset", [0, 64, 4096, 5000])
@pytest.mark.parametrize("part", [slice(None), slice(7, None), slice(7, 9)])
def test_rows_lie_where_it_says(tmp_path, offset, part):
    path, rows = tmp_path / "rows", np.arange(400, dtype=np.int32).reshape(50, 8)
    path.write_bytes(bytes(offset) + rows.tobytes())
    mapped = np.memmap(path, np.int32, "r", offset, (50, 8))[part]
    file = TableFile.of(mapped)
    assert (file.path, file.row_bytes, file.num_rows) == (path, 32, len(rows[part]))
    assert path.read_bytes()[file.offset : file.end] == rows[part].tobytes()


def test_what_is_no_map_of_rows_is_refused(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((5, 4)))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for wrong in (mapped[:, :2], mapped.T, mapped[0]):
        with pytest.raises(ValueError, match="expected rows"):
            TableFile.of(wrong)
    with pytest.raises(TypeError, match=r"numpy\.memmap of a file, got ndarray"):
        TableFile.of(np.zeros((5, 4)))  # type: ignore[arg-type]


def test_all_rows_are_read_whatever_the_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "_PIECE_BYTES", 48)
    path, rows = tmp_path / "rows", np.arange(404, dtype=np.uint8).reshape(101, 4)
    path.write_bytes(bytes(64) + rows.tobytes())
    file = TableFile(path, 64, 101, 4)
    out = np.zeros(404, np.uint8)
    read_rows(file, out)
    assert out.tobytes() == rows.tobytes()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(OSError, match="rows ends 5 B before the table does"):
        read_rows(file, out)
    read_rows(TableFile(path, 64, 0, 4), out[:0])
