"""Asking an actor: its own exceptions come back plain, and one that gives no answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ray.exceptions

CLOSE_LIMIT_S = 10.0
"""For an actor to tidy up before it is ended."""


class LostError(Exception):
    """A remote call got no answer: the actor or its node died, or it took too long."""


async def ask(
    method: Any, *args: Any, died: Callable[[str], Exception], limit_s: float | None = None, **kwargs: Any
) -> Any:
    """Awaits `method.remote(...)`: its own exceptions come back plain, a lost or silent actor as `died`."""
    reference: Awaitable[Any] = method.remote(*args, **kwargs)
    try:
        return await asyncio.wait_for(reference, limit_s)
    except TimeoutError as error:
        raise died(f"no answer within {limit_s:g} s") from error
    except ray.exceptions.RayTaskError as error:
        raise cause(error) from None
    except ray.exceptions.RayError as error:
        raise died(summary(error)) from error


def cause(error: ray.exceptions.RayTaskError) -> Exception:
    """The exception that the remote method raised: what callers catch, without Ray's own class around it."""
    return error.cause if isinstance(error.cause, Exception) else error


def summary(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"
