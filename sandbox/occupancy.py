"""How much of a pool is in use, summed over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Occupancy:
    """Counts users of something, and the seconds that they used it together. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._users, self._seconds, self._since = 0, 0.0, clock()

    @contextmanager
    def use(self) -> Iterator[None]:
        self._change(+1)
        try:
            yield
        finally:
            self._change(-1)

    @property
    def seconds(self) -> float:
        """User-seconds so far, those under way included: two users for three seconds are six."""
        return self._seconds + self._users * (self._clock() - self._since)

    def _change(self, by: int) -> None:
        self._seconds, self._since = self.seconds, self._clock()
        self._users += by
