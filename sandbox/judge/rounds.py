"""The timed rounds of one judgement: candidate and eager on the same fresh inputs, and all that keeps an eye on them.

round:   [watched batch] and [candidate batch][eager batch] in random order

Rounds come in two lots, since everything else waits while they go on. The second is left out where the first says
enough: on a GPU where its rounds agree (timing.is_settled), on a CPU, whose rounds seldom do, where no round leaves a
doubt about the reward (timing.is_clear). Of each lot one round, which nobody can foresee, has an observed batch as
well, and outputs of others are kept to be compared in full: a candidate that counts rounds learns nothing.
"""

from __future__ import annotations

import functools
import math
import secrets
from typing import Any

import numpy as np

from sandbox.config import JudgeConfig
from sandbox.judge import timing
from sandbox.judge.arena import MemoryAccessError
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.clocks import ClocksReport, compare_clocks
from sandbox.judge.contenders import candidate_contender, oracle_contender
from sandbox.judge.fresh import make_slots
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.rejection import RejectedError
from sandbox.judge.shares import WANTED, Shares
from sandbox.judge.spots import SpotChecks
from sandbox.judge.timed_outputs import TimedOutputs
from sandbox.types import Outcome

_FIRST_LOT = 5
"""Rounds after which times may say enough."""
_VERIFIED_OUTPUTS = 2
"""Of a lot."""
_OBSERVED_CALLS, _OBSERVED_S, _OBSERVED_BYTES = 5, 0.1, 256 << 20
"""At least so many where they take no longer and their results no more memory: a few buffers that take turns show also
where a batch is one or two calls."""
_WATCHED = 3
"""Rounds of a lot in which somebody looks whose code runs, at moments that nobody can foresee."""
_WATCHED_BATCHES, _MORE_WATCHED, _MORE_WHEN_FEW = 5, 20, 4
"""At most in a round; and as often again afterwards where it looks like somebody else's work, or where there are few
samples and nothing else is to be said."""


class Rounds:
    """Runs them, and keeps what is to be verified afterwards."""

    def __init__(
        self,
        config: JudgeConfig,
        oracle: OracleSide,
        candidate: CandidateSide,
        outputs: TimedOutputs,
        *,
        mutates: bool,
        shares: Shares | None,
    ) -> None:
        """`mutates`: the reference itself changes its inputs, so the candidate may."""
        self._config = config
        self._oracle = oracle
        self._candidate = candidate
        self._outputs = outputs
        self._shares = shares
        self._mutates = mutates
        self._slots = make_slots(oracle, candidate, rounds=config.timed_rounds)
        self._every: list[int] = []
        """Slots that the calls of a round take some of."""
        self._eager, self._timed = oracle_contender(oracle, "eager"), candidate_contender(candidate, oracle)
        self.snapshots: list[tuple[int, list[np.ndarray]]] = []
        """Inputs in the oracle and outputs of timed calls, to be compared in full."""
        self.nodes: list[tuple[int, dict[str, Any]]] = []
        """The same of outputs in which there are numbers."""
        self.spots: SpotChecks | None = None
        self.clocks: ClocksReport | None = None
        """On a GPU."""

    def get_ready(self) -> None:
        """What can be done while others still use the device. Raises RejectedError, DeviceError."""
        self._slots.fill()

    def make_first_calls(self) -> None:
        """As `get_ready`, and after it."""
        if self._oracle.device == "cuda":
            timing.first_calls([self._timed, self._eager], self._slots)

    def run(self, compile_ratio: float) -> tuple[timing.Series, timing.Series]:
        """Times of candidate and eager, a value a round; `compile_ratio` as of timing.is_clear. Raises RejectedError,
        DeviceError."""
        eager, candidate = self._eager, self._timed
        if not self._mutates and self._outputs.leaves:
            self.spots = SpotChecks(self._oracle, self._candidate)
        timing.warm_up([candidate, eager], self._slots, warmup_ms=self._config.warmup_ms)
        self._every = self._slots.for_calls(max(candidate.num_calls, eager.num_calls, _OBSERVED_CALLS))
        rounds = timing.plan_rounds(self._config.timed_rounds, 3 * timing.TARGET_BATCH_S)
        first = min(rounds, _FIRST_LOT)
        self._lot(candidate, eager, first)
        if first < rounds and not self._say_enough(candidate.series, eager.series, compile_ratio):
            self._lot(candidate, eager, rounds - first)
        if self._shares is not None:
            self._decide_whose_work(candidate, self._shares)
        if self._oracle.device == "cuda":
            self.clocks = compare_clocks(candidate, eager)
        return candidate.series, eager.series

    def _say_enough(self, candidate: timing.Series, eager: timing.Series, compile_ratio: float) -> bool:
        if self._oracle.device == "cuda":
            return timing.is_settled(candidate, eager)
        return timing.is_clear(candidate, eager, compile_ratio)

    def _lot(self, candidate: timing.Contender, eager: timing.Contender, rounds: int) -> None:
        observed = secrets.randbelow(rounds)
        verified = _some(rounds, _VERIFIED_OUTPUTS if self._outputs.leaves else rounds)  # nothing else sees numbers
        watched = _some(rounds, _WATCHED)
        for index in range(rounds):
            steps = [functools.partial(self._round, candidate, eager, verify=index in verified)]
            if index == observed:
                steps.append(functools.partial(self._observed_batch, candidate))
            if index in watched and self._shares is not None:
                wanted = math.ceil(WANTED / len(watched))
                steps.append(functools.partial(self._watched_batches, candidate, self._shares, wanted))
            for step in timing.shuffled(steps):
                step()

    def _round(
        self,
        candidate: timing.Contender,
        eager: timing.Contender,
        *,
        verify: bool,
    ) -> None:
        """Fresh inputs, both contenders in random order, one output of the candidate's kept for verification."""
        count = max(candidate.num_calls, eager.num_calls)
        used = secrets.SystemRandom().sample(self._every, count)
        self._slots.refresh(used)
        mine = used[: candidate.num_calls]
        # first the last call of a batch, where work put off to other threads is unfinished; then any call
        chosen = secrets.randbelow(len(mine)) if self.snapshots else len(mine) - 1
        key = self._oracle.adopt(mine[chosen]) if verify else None
        order = [candidate, eager] if self._mutates else timing.shuffled([candidate, eager])
        # any of the candidate's calls may be among eager's, whose answers the spot checks take
        theirs = used[: eager.num_calls] if self._mutates else secrets.SystemRandom().sample(used, eager.num_calls)
        if self.spots is not None:
            self.spots.begin(used, self._outputs.leaves)
        for contender in order:
            contender.series.values_ms.append(timing.time_batch(contender, mine if contender is candidate else theirs))
            if contender is candidate:
                self._after_batch(mine, chosen, key)
            elif self.spots is not None:
                self.spots.eager(theirs)
            contender.after()
        if self.spots is not None:
            self.spots.end()

    def _observed_batch(self, candidate: timing.Contender) -> None:
        """A batch among the timed ones that is not counted: here operators are recorded, as in the checks."""
        several = min(
            len(self._every),
            _OBSERVED_CALLS if self._oracle.device == "cpu" else 1,
            int(_OBSERVED_S / max(candidate.warm_s, 1e-6)),
            _OBSERVED_BYTES // max(1, self._outputs.num_bytes),
        )
        used = secrets.SystemRandom().sample(self._every, max(candidate.num_calls, several))
        self._slots.refresh(used, timed=False)
        self._candidate.worker.resume()
        self._candidate.prepare(self._oracle, used, observe=True)
        candidate.go()
        self._outputs.of_batch(len(used))
        self._candidate.observe()
        self._candidate.release()
        self._candidate.worker.stop()

    def _watched_batches(self, candidate: timing.Contender, shares: Shares, wanted: int) -> None:
        """Batches like those that are timed, looked at from outside until `wanted` more samples have been had.

        Every watched round gets its part, and which are watched nobody can foresee.
        """
        goal = shares.num_computing + wanted
        for _ in range(_WATCHED_BATCHES):
            used = secrets.SystemRandom().sample(self._every, candidate.num_calls)
            self._slots.refresh(used, timed=False)
            candidate.ready(used)
            self._candidate.go_watched("ModelNew.forward", shares, goal)
            candidate.after()
            if shares.num_computing >= goal:
                return

    def _decide_whose_work(self, candidate: timing.Contender, shares: Shares) -> None:
        """Raises RejectedError, to be judged once more, where it stays undecided and is suspect."""
        floor, call_ms = self._config.own_share_floor, min(candidate.series.values_ms)
        if not floor or self._config.protocol != "hardened":
            return
        for tries in range(_MORE_WATCHED):
            goes_on = shares.is_undecided if tries < _MORE_WHEN_FEW else shares.is_suspect
            if not goes_on(floor, call_ms):
                return
            self._watched_batches(candidate, shares, WANTED)
        if shares.is_suspect(floor, call_ms):
            raise RejectedError(
                Outcome.REFUSED,
                "what runs in ModelNew.forward looks like torch's libraries, and it is seen too seldom to be sure; do "
                "the work in kernels/, without waiting",
                device_trouble=True,
            )

    def _after_batch(self, batch: list[int], chosen: int, key: int | None) -> None:
        """Reads what was timed, before anything else of the candidate runs. `key`: what the chosen call was given."""
        if not self._mutates and not self._inputs_unchanged(batch, chosen, key):
            raise RejectedError(Outcome.WRONG, "a timed call of ModelNew.forward changed its inputs")
        if self.spots is not None:
            try:
                self.spots.candidate(batch, self._outputs.of_batch(len(batch)))
            except MemoryAccessError as error:
                text = f"a timed call's output cannot be read: {error}"
                raise RejectedError(Outcome.RUNTIME_ERROR, text) from error
        if key is not None:
            self.snapshots.append((key, self._outputs.snapshot(chosen, len(batch))))
            if self._outputs.has_values:
                self.nodes.append((key, self._outputs.node(chosen, len(batch))))

    def _inputs_unchanged(self, batch: list[int], chosen: int, key: int | None) -> bool:
        """On a GPU only of calls that are verified: all would take longer to copy than to time."""
        side = self._candidate
        if side.device == "cpu":
            return side.inputs_unchanged(self._oracle, batch)
        return key is None or side.mixed_inputs_unchanged(self._oracle, batch[chosen], key)


def _some(rounds: int, count: int) -> set[int]:
    return set(secrets.SystemRandom().sample(range(rounds), min(count, rounds)))
