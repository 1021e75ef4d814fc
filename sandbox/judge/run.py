"""One judgement's phases: load, check, time, and verify what was timed."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sandbox.config import JudgeConfig
from sandbox.judge import timing
from sandbox.judge.arena import Arena
from sandbox.judge.candidate_side import CandidateSide, RejectedError
from sandbox.judge.checks import Checker, CheckReport
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.worker import WorkerError
from sandbox.types import Artifact, DeviceError, Outcome

_MAX_VERIFIED_OUTPUTS = 2
_BASELINE_ROUNDS = 11
_BASELINE_WARMUP_MS = 150.0
_BASELINE_ATTEMPTS = 3
_GPU_WARMUP_MS = 300.0
_CLOCKS_AGREE, _CLOCK_SLACK_MS = 0.8, 0.03
"""Events and the supervisor's clock may differ by so much, and by what a round trip varies."""
_FLOOR_MARGIN, _LEAST_FLOOR_BYTES = 1.2, 4 << 20
"""Below so many bytes a copy's time is that of its launch."""
_CALM = 1.25
"""Upper over lower quartile of the rounds below which a baseline is not timed again."""


class Run:
    """The phases of one judgement; their seconds go into `phases`."""

    def __init__(
        self, config: JudgeConfig, oracle: OracleSide, candidate: CandidateSide, phases: dict[str, float]
    ) -> None:
        self._config = config
        self._oracle = oracle
        self._candidate = candidate
        self._phases = phases
        self._checker = Checker(oracle, candidate, num_checks=config.num_checks)
        self._snapshots: list[tuple[int, list[np.ndarray]]] = []
        self._mutates = False
        self.outside_ms: dict[str, dict[str, float]] = {}
        """On a GPU, times by the supervisor's clock, for Judgement.details."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.monotonic() - began

    def load(self, scratch: Path, artifact: Artifact, extension_module: str) -> None:
        """Builds the reference while the candidate loads, then ModelNew with the reference's weights."""
        candidate, oracle = self._candidate, self._oracle
        with self.phase("load_s"):
            oracle.build(perturb=self._config.protocol == "hardened")
            candidate.ask(
                {
                    "op": "load",
                    "protocol": self._config.protocol,
                    "extension_module": extension_module,
                    "model_new": str(scratch / "model_new.py"),
                    "interface": artifact.interface,
                    "shared_object": str(scratch / "extension.so") if artifact.shared_object else "",
                },
                "loading model_new.py",
            )
            self._share_arena()
            leaves = self._checker.write_weights(perturb=self._config.protocol == "hardened")
            construct = {
                "op": "construct",
                "init": oracle.facts["init"],
                "weights": leaves,
                "init_tensors": oracle.facts["init_tensors"],
                "seed": secrets.randbits(31),
            }
            candidate.ask(construct, "building ModelNew")

    def _share_arena(self) -> None:
        facts, layout = self._oracle.facts, self._oracle.layout
        try:
            self._candidate.worker.map(
                Arena.create(layout.size),
                inputs=facts["inputs"],
                leaves=facts["leaves"],
                slots=layout.slots,
                deadline=time.monotonic() + self._config.timeout_s,
            )
        except WorkerError as error:
            raise self._candidate.rejection(error, "loading model_new.py") from error

    def check(self) -> CheckReport:
        with self.phase("check_s"):
            report = self._checker.run()
            self._mutates = self._checker.mutates
            return report

    def time(self) -> tuple[timing.Series, timing.Series]:
        """Interleaved rounds of candidate and eager."""
        with self.phase("time_s"):
            self._oracle.ask({"op": "settle"})
            slots = timing.Slots(self._oracle, rounds=self._config.timed_rounds)
            every = list(range(len(self._oracle.layout.slots)))
            eager = timing.oracle_contender(self._oracle, "eager")
            candidate = self._contender()
            slots.fill_all()
            for contender in (candidate, eager):
                timing.measure_overhead(contender)
            timing.warm_up([candidate, eager], every, warmup_ms=self._warmup_ms())
            rounds = timing.plan_rounds(self._config.timed_rounds, 3 * timing.TARGET_BATCH_S)
            observed = secrets.randbelow(rounds)
            verified = set(secrets.SystemRandom().sample(range(rounds), min(_MAX_VERIFIED_OUTPUTS, rounds)))
            for index in range(rounds):
                if index == observed:
                    self._observed_batch(candidate, slots, every)
                self._round(candidate, eager, slots, every, verify=index in verified)
            if self._oracle.device == "cuda":
                self._compare_clocks(candidate, eager)
            return candidate.series, eager.series

    def _warmup_ms(self) -> float:
        """A GPU's clock frequency takes longer to rise than a core's."""
        return max(self._config.warmup_ms, _GPU_WARMUP_MS if self._oracle.device == "cuda" else 0.0)

    def _compare_clocks(self, candidate: timing.Contender, eager: timing.Contender) -> None:
        """The device's events against the supervisor's clock, which sees all that the device does.

        Raises DeviceError where they cannot both be right, RejectedError where a candidate's calls take longer than
        torch's current stream knows of.
        """
        self.outside_ms = {"candidate": candidate.outside.to_json(), "eager": eager.outside.to_json()}
        for contender in (eager, candidate):
            outside, device = contender.outside.median_ms, contender.series.median_ms
            if outside < _CLOCKS_AGREE * device - _CLOCK_SLACK_MS:
                raise DeviceError(f"the supervisor's clock says {outside:.4g} ms a call, the device's {device:.4g} ms")
        # the fastest round: a busy host makes some slow, work that events do not see makes all slow
        outside, device = min(candidate.outside.values_ms), candidate.series.median_ms
        if outside > device / _CLOCKS_AGREE + _CLOCK_SLACK_MS:
            raise RejectedError(
                Outcome.REFUSED,
                f"a call takes {outside:.4g} ms until the device is idle, and {device:.4g} ms on torch's current "
                "stream; enqueue all work on that stream",
                device_trouble=True,
            )

    def check_floor(self, candidate: timing.Series) -> dict[str, float]:
        """Raises RejectedError where a candidate is faster than its inputs and outputs can be moved."""
        with self.phase("floor_s"):
            key, _ = self._oracle.draw()
            num_bytes, rate = self._oracle.footprint(key)
            self._oracle.forget([key])
        if rate is None or num_bytes < _LEAST_FLOOR_BYTES:
            return {"bytes": num_bytes}
        floor_ms = num_bytes / (_FLOOR_MARGIN * rate)
        if candidate.median_ms < floor_ms:
            raise RejectedError(
                Outcome.REFUSED,
                f"{candidate.median_ms:.4g} ms is faster than the {num_bytes / 1e6:.4g} MB that every right answer has "
                f"to move can be copied ({floor_ms:.4g} ms); no kernel does that, so the work is not done in the call",
            )
        return {"bytes": num_bytes, "floor_ms": floor_ms, "copy_gb_s": rate / 1e6}

    def _round(
        self,
        candidate: timing.Contender,
        eager: timing.Contender,
        slots: timing.Slots,
        every: list[int],
        *,
        verify: bool,
    ) -> None:
        """Fresh inputs, both contenders in random order, one output of the candidate's kept for verification."""
        count = max(candidate.num_calls, eager.num_calls)
        used = secrets.SystemRandom().sample(every, count)
        slots.refresh(used)
        mine = used[: candidate.num_calls]
        # first the last call of a batch, where work put off to other threads is unfinished; then any call
        chosen = secrets.randbelow(len(mine)) if self._snapshots else len(mine) - 1
        key = self._oracle.adopt(mine[chosen]) if verify else None
        order = [candidate, eager] if self._mutates else timing.shuffled([candidate, eager])
        for contender in order:
            batch = mine if contender is candidate else used[: eager.num_calls]
            contender.series.values_ms.append(timing.time_batch(contender, batch))
            if contender is candidate:
                self._after_batch(mine, chosen, key)
            contender.after()

    def _observed_batch(self, candidate: timing.Contender, slots: timing.Slots, every: list[int]) -> None:
        """A batch among the timed ones that is not counted: here operators are recorded, as in the checks."""
        used = secrets.SystemRandom().sample(every, candidate.num_calls)
        slots.refresh(used)
        self._candidate.worker.resume()
        self._candidate.prepare(self._oracle, used, observe=True)
        candidate.go()
        self._candidate.describe()
        self._candidate.release()
        self._candidate.worker.stop()

    def _contender(self) -> timing.Contender:
        side, oracle = self._candidate, self._oracle

        def ready(batch: list[int]) -> None:
            side.worker.resume()
            side.prepare(oracle, batch, observe=False)

        def ready_blank(num_calls: int) -> None:
            side.worker.resume()
            side.prepare_blank(num_calls)

        def go() -> tuple[float, list[float]]:
            oracle.worker.stop()
            try:
                return side.go("ModelNew.forward, timed"), side.device_ms
            finally:
                oracle.worker.resume()

        def after() -> None:
            side.worker.resume()
            side.release()
            side.worker.stop()  # its threads may still spin, and eager is timed next

        return timing.Contender(side.worker, ready, go, after, ready_blank if side.device == "cuda" else None)

    def _after_batch(self, batch: list[int], chosen: int, key: int | None) -> None:
        """Reads what was timed, while the candidate is stopped."""
        side = self._candidate
        looked_at = [batch[chosen]] if side.device == "cuda" else batch  # all would take longer to copy than to time
        if not self._mutates and not side.inputs_unchanged(self._oracle, looked_at):
            raise RejectedError(Outcome.WRONG, "a timed call of ModelNew.forward changed its inputs")
        if key is not None:
            self._snapshots.append((key, self._checker.snapshot(chosen, len(batch))))

    def verify_timed(self) -> None:
        """Compares the outputs kept from timed calls with the reference's."""
        with self.phase("verify_s"):
            for key, outputs in self._snapshots:
                answer = self._oracle.answer(key, self._config.protocol)
                self._checker.compare_snapshot(outputs, answer)


def time_pair(oracle: OracleSide) -> tuple[timing.Series, timing.Series]:
    """Eager and compiled reference in one process, interleaved; the calmest of a few series of rounds."""
    eager, compiled = (timing.oracle_contender(oracle, name) for name in ("eager", "compile"))
    slots, every = timing.Slots(oracle, rounds=_BASELINE_ROUNDS), list(range(len(oracle.layout.slots)))
    slots.fill_all()
    for contender in (eager, compiled):
        timing.measure_overhead(contender)
    warmup_ms = max(_BASELINE_WARMUP_MS, _GPU_WARMUP_MS if oracle.device == "cuda" else 0.0)
    timing.warm_up([compiled, eager], every, warmup_ms=warmup_ms)
    taken: list[tuple[timing.Series, timing.Series]] = []
    for _ in range(_BASELINE_ATTEMPTS):
        eager.series, compiled.series = timing.Series(), timing.Series()
        _time_rounds(eager, compiled, slots, every)
        taken.append((eager.series, compiled.series))
        if _unrest(taken[-1]) < _CALM:
            break
    return min(taken, key=_unrest)


def _time_rounds(eager: timing.Contender, compiled: timing.Contender, slots: timing.Slots, every: list[int]) -> None:
    for _ in range(_BASELINE_ROUNDS):
        used = secrets.SystemRandom().sample(every, max(eager.num_calls, compiled.num_calls))
        slots.refresh(used)
        for contender in timing.shuffled([eager, compiled]):
            contender.series.values_ms.append(timing.time_batch(contender, used[: contender.num_calls]))
            contender.after()


def _unrest(pair: tuple[timing.Series, timing.Series]) -> float:
    return max(series.spread for series in pair)
