"""`jaxagent watch`: a run's essentials in the terminal, again and again until it has finished."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from jaxagent.report.watch_view import view
from jaxagent.report.watched import RunWatcher


def watch(root: Path, *, interval_s: float, once: bool, console: Console | None = None) -> None:
    """Returns when the run has finished, or at once with `once`. Raises ConfigError, StoreError."""
    console = console or Console()
    watcher = RunWatcher(root)
    try:
        snapshot = watcher.snapshot()
        if once or snapshot.finished or not console.is_terminal:
            console.print(view(snapshot, width=console.width))
            return
        with Live(view(snapshot, width=console.width), console=console, screen=True, auto_refresh=False) as live:
            while not snapshot.finished:
                time.sleep(interval_s)
                snapshot = watcher.snapshot()
                live.update(view(snapshot, width=console.width), refresh=True)
        console.print(view(snapshot, width=console.width))
    finally:
        watcher.close()
