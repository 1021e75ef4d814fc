"""Several jobs on one device: they share it, until one of them needs it alone.

    job A   load ─ check ─ check ─┬─── timed ───┬─ verify ─ end
    job B   load ─ check ─┐ waits │             └─ check ─ check ─ …
                          └───────┴─ its candidate is stopped

A job stops where it is ready to be stopped, between two pieces of work, when its limits of time are not running and
nothing that it has launched is unfinished. So whoever waits for the device waits for a piece of work, not for a job.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """Many may be inside at once, or one alone. Whoever waits to be alone goes before those who come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0
        self._taken = False

    @property
    def is_wanted(self) -> bool:
        """Somebody waits to be alone: those inside should let them."""
        return self._waiting > 0

    @property
    def is_taken(self) -> bool:
        """Somebody is alone inside."""
        return self._taken

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Within `shared`, by the same thread: outside for a while."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Not within `shared`: that would wait for itself."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._taken and not self._inside)
                self._taken = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken and not self._waiting)
            self._inside += 1

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
