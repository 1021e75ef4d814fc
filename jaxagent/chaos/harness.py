"""Starts a run as a user would, breaks it, resumes it when its driver ends, until it is done.

start ─► wait ─► inflict ─► wait ─► inflict ─► … ─► done
  ▲                 │ the driver ended with an error, or was killed
  └──── --resume ◄──┘
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from jaxagent.chaos.faults import Fault, inflict
from jaxagent.chaos.targets import Kind, find
from jaxagent.flow.process_tree import tree

POLL_S = 0.5
ABSENT_S = 45.0
"""A kind that does not show up for so long is left out this time."""


class ChaosError(RuntimeError):
    """The run did not come to its end; the message says where its log is."""


@dataclass
class Inflicted:
    """What was done to a run, in order; also in its folder's chaos.jsonl, so that a harness can go on with it."""

    faults: list[dict[str, object]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    resumes: int = 0


class Harness:
    """One run under faults. `arguments` are those of `jaxagent train`; `root` is the folder that it will have."""

    def __init__(self, arguments: Sequence[str], root: Path, *, say: Callable[[str], None] = lambda _: None) -> None:
        self._arguments, self._root, self._say = list(arguments), root, say
        self._record = root.with_name(f"{root.name}.chaos.jsonl")
        self._log = root.with_name(f"{root.name}.log")
        self._driver: subprocess.Popen[bytes] | None = None
        self.inflicted = Inflicted(faults=self._earlier())

    async def run(self, faults: Iterator[Fault], *, number: int, limit_s: float, max_resumes: int) -> Inflicted:
        """Inflicts until `number` faults stand in the record, then lets the run end. Raises ChaosError.

        After `limit_s` the run is ended, and another harness may go on with it.
        """
        for _ in self.inflicted.faults:
            next(faults)
        try:
            async with asyncio.timeout(limit_s):
                self._start()
                while True:
                    if len(self.inflicted.faults) < number:
                        await self._next(next(faults))
                    else:
                        await asyncio.sleep(POLL_S)
                    if self._ended(max_resumes):
                        return self.inflicted
        except TimeoutError:
            raise ChaosError(
                f"{self._root} was not done after {limit_s:g} s and {len(self.inflicted.faults)} of {number} faults; "
                f"the same command goes on with it. Its log: {self._log}"
            ) from None
        finally:
            await asyncio.to_thread(self._end)

    async def _next(self, fault: Fault) -> None:
        """Waits for the fault's moment and for a process of its kind, then inflicts it."""
        await self._sleep(fault.after_s)
        began = None
        while self._running() and not (pids := find(fault.kind, self._pid)):
            if began is None and find(Kind.ROLLOUT_ACTOR, self._pid):  # from here on all kinds should come
                began = time.monotonic()
            if began is not None and time.monotonic() - began > ABSENT_S:
                self.inflicted.skipped.append(str(fault.kind))
                return
            await asyncio.sleep(POLL_S)
        if not self._running():
            return
        pid = await inflict(fault, pids, store=self._root / "store")
        entry = {"kind": str(fault.kind), "act": str(fault.act), "pid": pid, "time": time.time()}
        self.inflicted.faults.append(entry)
        with self._record.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self._say(f"{len(self.inflicted.faults)}: {fault.act} {fault.kind} ({pid})")

    async def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._running() and time.monotonic() < end:
            await asyncio.sleep(min(POLL_S, seconds))

    def _ended(self, max_resumes: int) -> bool:
        """Whether the run is done; one that ended otherwise is resumed. Raises ChaosError after too many times."""
        code = None if self._driver is None else self._driver.poll()
        if code is None:
            return False
        if code == 0:
            return True
        self.inflicted.resumes += 1
        if self.inflicted.resumes > max_resumes:
            raise ChaosError(f"the driver of {self._root} ended {self.inflicted.resumes} times; its log: {self._log}")
        self._say(f"the driver ended with {code}; resumed")
        self._end()
        self._start()
        return False

    def _start(self) -> None:
        is_new = not (self._root / "config.yaml").exists()
        arguments = self._arguments if is_new else ["--resume", str(self._root)]
        with self._log.open("ab") as log:
            self._driver = _train(arguments, log)

    def _end(self) -> None:
        """Ends the driver with everything it started: a killed driver's actors take a moment to notice."""
        if self._driver is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in tree(self._driver.pid)[::-1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._driver.wait()

    def _running(self) -> bool:
        return self._driver is not None and self._driver.poll() is None

    @property
    def _pid(self) -> int:
        assert self._driver is not None
        return self._driver.pid

    def _earlier(self) -> list[dict[str, object]]:
        if not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]


def _train(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jaxagent", "train", *arguments]
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
