"""What was worked out lately, as long as there is room for it.

A `Keeper` belongs to a call, and never changes what the call returns.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Keeper(Generic[_Key, _Value]):
    """Keeps values by their keys; those that were not asked for the longest go first.

    Parameters
    ----------
    size
        Bytes that a key and its value take, about.
    room
        Bytes that all of them may take; the latest is kept whatever it takes.
    """

    def __init__(self, size: Callable[[_Key, _Value], int], room: int) -> None:
        self._size, self._room = size, room
        self._values: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._taken = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, made if it is not kept."""
        if key not in self._values:
            value = make()
            self._values[key] = value, self._size(key, value)
            self._taken += self._values[key][1]
            while self._taken > self._room and len(self._values) > 1:
                self._taken -= self._values.popitem(last=False)[1][1]
        self._values.move_to_end(key)
        return self._values[key][0]
