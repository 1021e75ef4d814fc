"""A side's process: it makes its update functions, then runs one whenever a line asks for it, and says the seconds.

{"batch": "dense", "what": "update"}  ->  {"seconds": 1.23, "tokens": 4096}
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Update = Callable[[], Any]
"""Runs to the end, also of what the device computes."""


def serve(
    updates: dict[tuple[str, str], tuple[Update, int]], after: Callable[[], dict[str, Any]] = dict, **about: Any
) -> None:
    """`updates` by (batch, what), each with its number of real tokens. `after`, which is not timed, adds to each
    answer, and `about` describes the side."""
    out, sys.stdout = sys.stdout, sys.stderr  # libraries print
    print(json.dumps(about), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        update, tokens = updates[asked["batch"], asked["what"]]
        started = time.perf_counter()
        update()
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "tokens": tokens} | after()), file=out, flush=True)
