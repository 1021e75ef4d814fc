"""What goes wrong: a process is killed, stopped for a while, or starved; the disk is full; a socket is gone.

Which fault comes when is drawn from a seed; which of several processes it hits is too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jaxagent.chaos.targets import Kind, sockets

STOP_S = (4.0, 12.0)
"""A stopped process goes on after so long: as after a migration, a paused container, a frozen terminal."""
STARVE_S = 8.0
_STARVED_SHARE = 0.05
_SLICE_S = 0.4


class Act(StrEnum):
    KILL = "kill"
    STOP = "stop"
    STARVE = "starve"
    FILL = "fill"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, `after_s` seconds after the one before it. `pick` in [0, 1) chooses the process."""

    kind: Kind
    act: Act
    after_s: float
    pick: float
    length_s: float


_ACTS = {Kind.DISK: (Act.FILL,), Kind.SOCKET: (Act.DROP,)}
DEFAULT_KINDS = tuple(kind for kind in Kind if kind is not Kind.DOCKER_ENGINE)


def plan(seed: int, *, kinds: Sequence[Kind] = DEFAULT_KINDS, mean_gap_s: float) -> Iterator[Fault]:
    """Faults without end: every kind once in a shuffled round, its acts by turns; gaps are exponential."""
    chance = random.Random(f"chaos/{seed}")
    rounds = 0
    while True:
        order = list(kinds)
        chance.shuffle(order)
        for kind in order:
            acts = _ACTS.get(kind, (Act.KILL, Act.STOP, Act.STARVE))
            yield Fault(
                kind=kind,
                act=acts[(rounds + list(Kind).index(kind)) % len(acts)],
                after_s=chance.expovariate(1.0 / mean_gap_s),
                pick=chance.random(),
                length_s=chance.uniform(*STOP_S),
            )
        rounds += 1


async def inflict(fault: Fault, pids: Sequence[int], *, store: Path) -> int:
    """Does it to one of `pids`, and undoes what is meant to pass. Returns the process that was hit.

    `store`: of the run, whose disk is full for a while: the kernel refuses its writer to make its newest file longer.
    """
    pid = pids[int(fault.pick * len(pids))]
    with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
        if fault.act is Act.KILL:
            os.kill(pid, signal.SIGKILL)
        elif fault.act is Act.STOP:
            await _stop(pid, fault.length_s)
        elif fault.act is Act.STARVE:
            await _starve(pid)
        elif fault.act is Act.FILL:
            await _fill_disk(pid, store, fault.length_s)
        else:
            for path in sockets(pid):
                path.unlink(missing_ok=True)
    return pid


async def _stop(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _starve(pid: int) -> None:
    """The process gets a twentieth of the time: stopped and let go in turns, which needs no other load."""
    for _ in range(int(STARVE_S / _SLICE_S)):
        await _stop(pid, _SLICE_S * (1 - _STARVED_SHARE))
        await asyncio.sleep(_SLICE_S * _STARVED_SHARE)


async def _fill_disk(pid: int, store: Path, seconds: float) -> None:
    newest = max(store.glob("log-*.bin"), default=None)
    limit = (newest.stat().st_size if newest else 0) + 64  # the next record does not fit
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        await asyncio.sleep(seconds)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
