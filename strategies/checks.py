"""What every data path refuses before it does anything: tables and ids that it could not read."""

from __future__ import annotations

import torch
from torch import Tensor


def check_features(features: Tensor) -> None:
    """Refuse a table that no data path could read row by row.

    Raises:
        TypeError: not a tensor.
        ValueError: not two-dimensional, not contiguous, not in host memory, rows of 0 bytes, or a
            tensor whose memory does not hold its values: sparse, quantized, or a lazy view.
    """
    if not isinstance(features, Tensor):
        raise TypeError(
            f"features: expected a torch tensor, got {type(features).__name__}"
            + ("; torch.from_numpy makes one" if type(features).__name__ == "ndarray" else "")
        )
    if features.layout != torch.strided or features.is_quantized:
        kind = features.dtype if features.is_quantized else features.layout
        raise ValueError(f"features: expected a plain dense tensor, got {kind}")
    if features.dim() != 2:
        raise ValueError(f"features: expected shape [N, D], got {tuple(features.shape)}")
    if features.device.type != "cpu":
        raise ValueError(
            f"features: the table must lie in host memory, got {features.device}; call .cpu() first"
        )
    if features.shape[1] == 0:
        raise ValueError("features: rows of width 0 have nothing to fetch")
    if not features.is_contiguous():
        raise ValueError("features: the table must be contiguous; call .contiguous() first")
    # Such a view has the memory of another tensor and is conjugated or negated only when torch
    # reads it: whoever moves bytes would bring the other tensor's values.
    if features.is_conj() or features.is_neg():
        raise ValueError(
            "features: a lazy conjugate or negative; call .resolve_conj().resolve_neg() first"
        )


def check_ids(ids: Tensor, num_rows: int, device: torch.device) -> None:
    """Refuse ids that would read outside the table; see ``Fetcher.submit``."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids: expected a torch tensor, got {type(ids).__name__}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids: expected int32 or int64, got {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"ids: expected shape [B], got {tuple(ids.shape)}")
    if ids.device.type != device.type:
        raise ValueError(f"ids: expected on {device}, got {ids.device}; move them first")
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= num_rows:
        where = int(((ids < 0) | (ids >= num_rows)).nonzero()[0])
        raise IndexError(
            f"ids[{where}] = {int(ids[where])}: the table has "
            + (f"rows 0..{num_rows - 1}" if num_rows else "no rows")
        )
