"""Rows of a table that is spread over ranks, brought by collective calls of ``torch.distributed``.

Row ``i`` of the table lies with rank ``i % world``, as row ``i // world`` of what that rank has. A
minibatch asks for each distinct row once. The ranks tell each other how many rows they ask of whom,
so all know how many rounds there will be; in a round ids go out and rows come back. It carries a
bounded number of bytes between two ranks: larger messages of uneven sizes have made gloo end the
process (pytorch/gloo #334).

The calls run in a group of their own, in the same order on all ranks. In the default group, fetches
that run ahead would mix with the gradients' exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_group

from gatherbench.kernels.reference import byte_rows
from gatherbench.strategies.knowledge import Ranks

#: Bytes of rows that one rank sends another in a round, at most; one row where a row has more.
ROUND_BYTES = 16 << 20

#: How many rows this rank gets from each rank, and gives to each, in one round.
Round = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The distinct rows of a minibatch, in the order in which they are brought.

    Attributes:
        rows: int64 ``[R]``, each row's number where it lies. First those of other ranks, round by
            round and by rank within a round, then ``own`` of this rank, then ``hot`` kept ones.
        expand: int64 ``[B]``, for each place of the minibatch which of the rows stands there.
        counts: int64 ``[world]``, how many rows each other rank has; 0 of this one.
    """

    rows: Tensor
    expand: Tensor
    counts: Tensor
    sent: int
    own: int
    hot: int

    @property
    def parts(self) -> tuple[slice, slice, slice]:
        """Where the rows of others, the own and the hot ones stand."""
        own, hot = self.sent, self.sent + self.own
        return slice(own), slice(own, hot), slice(hot, hot + self.hot)

    def on_device(self, own_too: bool) -> int:
        """How many places of the minibatch have rows of the device: hot, repeated, maybe own."""
        return len(self.expand) - self.sent - (0 if own_too else self.own)


def split(ids: Tensor, ranks: Ranks, rows_a_round: int, slots: Tensor | None = None) -> Asked:
    """Who has the rows ``ids`` (``[B]``, int32 or int64, any device); there the host waits for it.

    Args:
        rows_a_round: of one rank.
        slots: int32 ``[N]``, where rows are kept by every rank; -1 for those that are not.
    """
    world = ranks.world
    distinct, expand = torch.unique(ids.long(), return_inverse=True)
    rows, holder = distinct // world, distinct % world
    holder[holder == ranks.rank] = world
    if slots is not None:
        kept = slots[distinct].long()
        rows, holder = torch.where(kept < 0, rows, kept), torch.where(kept < 0, holder, world + 1)
    order = torch.argsort(holder, stable=True)
    counts = torch.bincount(holder, minlength=world + 2)
    *of_others, own, hot = counts.tolist()
    sent = sum(of_others)
    if max(of_others) > rows_a_round:
        first = order[:sent]
        nth = torch.arange(sent, device=ids.device) - (counts.cumsum(0) - counts)[holder[first]]
        order[:sent] = first[torch.argsort(nth // rows_a_round, stable=True)]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=ids.device)
    return Asked(rows[order], place[expand], counts[:world], sent, own, hot)


class Exchange:
    """Brings rows from the ranks that have them; made by all ranks at the same time.

    Its calls raise when another rank has died, or has not answered for as long as the default
    group's timeout; after that nothing can be fetched any more.

    Args:
        ranks: of one rank there is no group, and nothing to bring.
        device: where the rows lie and go to.
        row_bytes: of a row.
    """

    def __init__(self, ranks: Ranks, device: torch.device, row_bytes: int) -> None:
        self.ranks = ranks
        self.rows_a_round = max(1, ROUND_BYTES // row_bytes)
        self._group: dist.ProcessGroup | None = None
        if ranks.world > 1:
            backend = _get_default_group()._get_backend(device)
            # Of its own accord a new group waits for half an hour, whatever the default group does.
            self._group = dist.new_group(timeout=backend.options._timeout)
            #: gloo sends from host memory.
            self._staged = device.type != "cpu" and backend.name() == "gloo"
            # Whoever gets an answer knows that all have joined: with gloo a rank that leaves before
            # makes another's joining fail. NCCL makes its connections now, not in the first fetch.
            try:
                self._told(torch.zeros(ranks.world, dtype=torch.int64, device=device))
            except BaseException:
                self.close()
                raise

    def split(self, ids: Tensor, slots: Tensor | None) -> Asked:
        """See :func:`split`."""
        return split(ids, self.ranks, self.rows_a_round, slots)

    def rounds(self, asked: Asked) -> list[Round]:
        """Agree on the rounds; the host waits for the other ranks to ask."""
        if self._group is None:
            return []
        rank, step = self.ranks.rank, self.rows_a_round
        matrix = self._told(asked.counts)
        most = max(max(line) for line in matrix)
        return [
            (
                [min(max(count - begin, 0), step) for count in matrix[rank]],
                [min(max(line[rank] - begin, 0), step) for line in matrix],
            )
            for begin in range(0, most, step)
        ]

    def _told(self, counts: Tensor) -> list[list[int]]:
        """The ``counts`` (int64 ``[world]``) of each rank, a list for each."""
        counts = counts.cpu() if self._staged else counts
        every = [torch.empty_like(counts) for _ in range(self.ranks.world)]
        dist.all_gather(every, counts, self._group)
        told: list[list[int]] = torch.stack(every).tolist()
        return told

    def bring(
        self, asked: Asked, rounds: list[Round], out: Tensor, serve: Callable[[Tensor], Tensor]
    ) -> None:
        """Write the rows of other ranks to the first ``asked.sent`` rows of ``out`` (``[R, D]``).

        Args:
            rounds: of this minibatch.
            serve: gives rows of this rank, by their numbers here (int64 ``[n]``): ``[n, D]``. They
                are sent before it is called again.
        """
        begin = 0
        for get, give in rounds:
            part = slice(begin, begin + sum(get))
            wanted = asked.rows.new_empty(sum(give))
            self._send(asked.rows[part], get, wanted, give)
            self._send(byte_rows(serve(wanted)), give, byte_rows(out)[part], get)
            begin = part.stop

    def _send(self, given: Tensor, give: list[int], got: Tensor, get: list[int]) -> None:
        """Send ``give[r]`` items of ``given`` to rank ``r``, and get ``get[r]`` from it."""
        if self._staged:
            arrived = torch.empty_like(got, device="cpu")
            dist.all_to_all_single(arrived, given.cpu(), get, give, self._group)
            got.copy_(arrived)
        else:
            dist.all_to_all_single(got, given, get, give, self._group)

    def close(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():  # else it has ended with the default group
            dist.destroy_process_group(group)
