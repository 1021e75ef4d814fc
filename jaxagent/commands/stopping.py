"""SIGINT and SIGTERM end a command in order: what it has begun is closed, and the reader hears how to go on.

Ray answers SIGTERM with a dump of its stack, and `ray job stop` kills three seconds after it, so the words come first.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StoppedError(Exception):
    """The command was told to stop."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.exit_code = 128 + number


@contextmanager
def stop_in_order(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Around the body of the running task, once Ray has set handlers of its own: a signal cancels the task.

    Raises StoppedError then. A second signal does what it does elsewhere: it ends the process at once.
    """
    loop, task, received = asyncio.get_running_loop(), asyncio.current_task(), []
    assert task is not None
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop(number: signal.Signals) -> None:
        received.append(number)
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        print(f"stopped by {number.name}; {how_to_go_on()}", file=sys.stderr, flush=True)
        task.cancel()

    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        task.uncancel()
        raise StoppedError(received[0]) from None
    finally:
        if not received:
            for number in signals:
                loop.remove_signal_handler(number)
