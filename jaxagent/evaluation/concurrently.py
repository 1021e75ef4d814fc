"""Many coroutines at once, of which none goes on once one has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def concurrently(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all; raises the first failure as it is (no group), the others are cancelled."""
    jobs = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*jobs)
    finally:
        for job in jobs:  # those that are done do not mind
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
