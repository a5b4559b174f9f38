"""Check graphs, ids and tables in memory before a sampler or a loader uses them.

`PygNeighborSampler.from_data`, `FeatureLoader`, `unified` and the import share these checks, so
that each refuses edges, ids and sizes in the same words. What is wrong raises ``ValueError``.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_MASKS = ("train_mask", "val_mask", "test_mask")


def edges_of(graph: Any, num_nodes: int | None = None) -> Tensor:
    """Return the edges of a PyG ``Data``, or of an ``edge_index`` (a tensor, an array, lists), as
    int64 ``[2, E]`` on the CPU; row 0 holds the sources. For a ``Data`` with ``adj_t`` they are its
    entries, column by column of the adjacency, as `ToSparseTensor` orders them. An edge to a node
    beyond ``num_nodes`` (by default those of the ``Data``) is refused, and so are several kinds of
    nodes.
    """
    import torch
    from torch_geometric.data import Data, HeteroData

    if isinstance(graph, HeteroData):
        remedy = "data.to_homogeneous() makes a Data of it"
        raise ValueError(f"HeteroData: one kind of nodes is sampled; {remedy}")
    label, edges = "edge_index", graph
    if isinstance(graph, Data):
        edges = graph.edge_index
        num_nodes = _num_nodes(graph) if num_nodes is None else num_nodes
        if edges is None and (transposed := graph.get("adj_t")) is not None:
            label, edges = "adj_t", _entries(transposed)
        if edges is None:
            held = ", ".join(graph.keys()) or "nothing"
            raise ValueError(f"data holds {held}; expected edge_index")
    kind = type(graph).__name__
    edges = _tensor(edges, f"{kind}: expected a Data or an edge_index, a tensor [2, E]")
    if edges.layout != torch.strided:
        raise ValueError(f"{label}: a sparse tensor; give its entries: x.to_sparse_coo().indices()")
    if edges.dim() != 2 or edges.shape[0] != 2:
        turned = edges.dim() == 2 and edges.shape[1] == 2
        remedy = "; edge_index.t().contiguous() turns it" if turned else ""
        raise ValueError(f"{label}: has shape {list(edges.shape)}, expected [2, E]{remedy}")
    if edges.dtype == torch.bool or edges.is_floating_point() or edges.is_complex():
        raise ValueError(f"{label}: holds {edges.dtype}, expected whole numbers; edge_index.long()")
    edges = edges.cpu().long()
    if num_nodes is not None and (bad := ((edges < 0) | (edges >= num_nodes)).any(dim=0)).any():
        at = int(bad.int().argmax())
        source, target = edges[:, at].tolist()
        nodes = f"there are {num_nodes} nodes, numbered from 0"
        raise ValueError(f"{label}: edge {at} goes from {source} to {target}, and {nodes}")
    return edges


def _entries(transposed: Any) -> Tensor:
    """Return sources and targets of ``adj_t`` (torch's or torch_sparse's; its rows: targets)."""
    import torch

    if isinstance(transposed, torch.Tensor):
        entries: Tensor = transposed.to_sparse_coo().coalesce().indices()  # type: ignore[no-untyped-call]
        return entries.flip(0)
    target, source, _ = transposed.coo()
    return torch.stack([source, target])


def _tensor(value: Any, wanted: str) -> Tensor:
    import torch

    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{wanted} ({error})") from error


def ids_of(ids: Any, num_nodes: int, what: str) -> Tensor:
    """Return node ids, int64 ``[n]`` on the CPU, from ids or a mask ``[num_nodes]``: a tensor, an
    array, a list; the error for a wrong shape or dtype, or a missing node, names ``what``."""
    import torch

    nodes = _tensor(ids, f"{what}: expected node ids or a mask").cpu()
    is_mask = nodes.dtype == torch.bool
    if nodes.dtype == torch.uint8 and len(nodes) == num_nodes > 2 and int(nodes.max()) < 2:
        raise ValueError(f"{what}: uint8, ids or a mask? {what}.bool() is a mask, .long() are ids")
    if nodes.dim() != 1 or (is_mask and len(nodes) != num_nodes):
        wanted = f"expected ids [n] or a mask [{num_nodes}]"
        raise ValueError(f"{what}: has shape {list(nodes.shape)}, {wanted}")
    if nodes.is_floating_point() or nodes.is_complex():
        raise ValueError(f"{what}: holds {nodes.dtype}, expected whole numbers")
    nodes = nodes.nonzero()[:, 0] if is_mask else nodes.long()
    if len(bad := nodes[(nodes < 0) | (nodes >= num_nodes)]):
        raise ValueError(f"{what}: names node {int(bad[0])}, and there are {num_nodes} nodes")
    return nodes


def sizes_of(data: Any) -> dict[str, int]:
    """Return the number of nodes of a ``Data`` by each field that has a row for every node; a ``y``
    that is one label for the graph, or one for each edge, is none."""
    sizes = {"data.num_nodes": _num_nodes(data) or 0}
    edges = 0 if data.edge_index is None else data.edge_index.shape[-1]
    for name in ("x", "y", *_MASKS):
        value = data.get(name)
        if getattr(value, "ndim", 0) and (name != "y" or len(value) not in (1, edges)):
            sizes[f"data.{name}"] = len(value)
    return sizes


def check_nodes(data: Any, features: int | None = None) -> int:
    """Return the number of nodes of a ``Data``, on which all its fields and the features agree:
    else PyG would treat labels as those of the graph, and give each batch all of them."""
    remedy = "set data.num_nodes to the number of rows of the features, labels and masks"
    return same_nodes({"features": features, **sizes_of(data)}, remedy) or 0


def _num_nodes(data: Any) -> int | None:
    """Return PyG's number of nodes; hide its warning for a guess, because callers compare it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        nodes = data.num_nodes
    try:
        return None if nodes is None else operator.index(nodes)
    except (TypeError, RuntimeError, ValueError):
        raise ValueError(f"data.num_nodes = {nodes!r}: expected a whole number") from None


def same_nodes(sizes: Mapping[str, int | None], remedy: str = "") -> int | None:
    """Return the one number of nodes on which all ``sizes`` agree; ``None`` if none has one. If
    they differ, the message ends with the ``remedy``."""
    known_sizes = {name: nodes for name, nodes in sizes.items() if nodes is not None}
    if len(set(known_sizes.values())) > 1:
        claims = ", ".join(f"{name} says {nodes}" for name, nodes in known_sizes.items())
        raise ValueError(f"how many nodes? {claims}{remedy and f'; {remedy}'}")
    return next(iter(known_sizes.values()), None)
