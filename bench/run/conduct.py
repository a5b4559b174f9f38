"""Does a path work where no fetch is timed? What a run can ask of that beside a training.

Facts come from :mod:`gatherbench.strategies.untold`; docs/your-own-data-path.md lists what nobody
asks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor

from gatherbench.bench.meters.threads import helpers_cpu_s
from gatherbench.bench.run.check import WrongConductError
from gatherbench.bench.run.loop import Watch
from gatherbench.strategies.base import Fetcher, Strategy
from gatherbench.strategies.by_type import Rows
from gatherbench.strategies.untold import Children, changed_clock

#: What a path's threads may take of the processor beside training: a share of the steps, and
#: seconds a step, to go to sleep.
_SHARE, _TICK_S = 0.1, 0.0005


def require_clocks() -> None:
    """
    Raises:
        WrongConductError: a clock is no longer the system's.
    """
    if (name := changed_clock()) is not None:
        raise WrongConductError(f"{name} has been replaced: nothing that it timed holds")


def require_nobody_left(children: Children) -> None:
    """
    Raises:
        WrongConductError: a process is there that began with the path, which is closed.
    """
    if (left := children.left()) is not None:
        raise WrongConductError(f"it left a process behind when it was closed: {left}")


class Conduct:
    """What one path does beside its fetches; to be made before it opens.

    Args:
        others: threads that are not the path's work beside the training, too.
    """

    def __init__(self, strategy: Strategy, *, others: bool = False) -> None:
        chosen = strategy.role == "choice"  # other paths are opened meanwhile
        self._busy = others or chosen or "file" in strategy.needs

    @contextmanager
    def resting(self, fetcher: Fetcher, watched: AbstractContextManager[Watch]) -> Iterator[Watch]:
        """As ``watched``, with an eye on the path's threads while there is nothing to fetch.

        Where nothing is fetched ahead, on the host, and only threads that Python knows: torch's own
        train.

        Raises:
            WrongConductError: they worked beside the training.
        """
        with watched as watch:
            ahead = fetcher.lookahead or fetcher.announced or self._busy
            if ahead or fetcher.device.type != "cpu":
                yield watch
                return
            rest = _Rest(watch)
            yield rest
        if rest.beside_s > _SHARE * rest.steps_s + rest.steps * _TICK_S:
            raise WrongConductError(
                f"its threads worked {rest.beside_s:.4f} s beside {rest.steps_s:.4f} s of training,"
                " when nothing was being fetched"
            )


class _Rest(Watch):
    """Another watch, and what the path's threads do beside the steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.steps, self.steps_s, self.beside_s = 0, 0.0, 0.0

    def handed(self, number: int, ids: Tensor) -> None:
        self._watch.handed(number, ids)

    @contextmanager
    def looked_at(self, number: int, ids: Tensor, x: Rows) -> Iterator[None]:
        with self._watch.looked_at(number, ids, x):
            del x  # to be freed by the step, as ever
            before, begin = helpers_cpu_s(), time.perf_counter()
            yield
            self.steps_s += time.perf_counter() - begin
            after = helpers_cpu_s()
            self.steps += 1
            self.beside_s += sum(s - before.get(thread, 0.0) for thread, s in after.items())
