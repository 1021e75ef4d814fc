"""The two sides of a clock: how a batch is readied, run and cleared away in either's process."""

from __future__ import annotations

from sandbox.judge.batch import BatchTimes, run_batch
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.timing import Contender
from sandbox.judge.worker import WorkerError
from sandbox.types import DeviceError


def oracle_contender(oracle: OracleSide, model: str) -> Contender:
    """Eager or compiled reference in the oracle's process."""
    worker = oracle.worker

    def stop() -> None:
        if oracle.device == "cpu":  # on a GPU events tell, and all that is ours there waits for our word
            worker.stop()

    def ready(slots: list[int]) -> None:
        oracle.ask(oracle.batch(model, slots, observe=False))
        stop()

    def ready_blank(num_calls: int) -> None:
        oracle.ask({"op": "prepare", "blank": num_calls, "slots": [], "observe": False})
        stop()

    def go() -> BatchTimes:
        try:
            return run_batch(worker, 120.0)
        except WorkerError as error:
            raise DeviceError(
                f"task {oracle.task.task_id}: the reference failed while it was timed: {error}"
            ) from error

    def after() -> None:
        oracle.ask({"op": "release"})

    return Contender(worker, ready, go, after, ready_blank if oracle.device == "cuda" else None)


def candidate_contender(side: CandidateSide, oracle: OracleSide) -> Contender:
    """ModelNew in the candidate's process, which only runs in its own batches."""

    def ready(batch: list[int]) -> None:
        side.worker.resume()
        side.prepare(oracle, batch, observe=False)

    def ready_blank(num_calls: int) -> None:
        side.worker.resume()
        side.prepare_blank(num_calls)

    def go() -> BatchTimes:
        if side.device == "cuda":  # the oracle waits for our word, and its threads with it
            return side.go("ModelNew.forward, timed")
        oracle.worker.stop()
        try:
            return side.go("ModelNew.forward, timed")
        finally:
            oracle.worker.resume()

    def after() -> None:
        side.worker.resume()
        side.release()
        side.worker.stop()  # its threads may still spin, and eager is timed next

    return Contender(side.worker, ready, go, after, ready_blank if side.device == "cuda" else None)
