"""What a wrong path may hand out in place of rows."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class WhenUsed(Tensor):
    """Rows that are gathered by the first operation on them."""

    gather: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gathered = [one.gather() if isinstance(one, WhenUsed) else one for one in args]
        return func(*gathered, **(kwargs or {}))
