"""BaselineStore: measured once, whoever asks."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest

from sandbox.baselines import Baseline, BaselineStore
from sandbox.types import Task

TASK = Task(task_id="one", code="class Model: ...")


def baseline(eager_ms: float = 2.0) -> Baseline:
    return Baseline(
        eager_ms=eager_ms, compile_ms=1.0, eager={"p25_ms": 1.9}, compile={"p25_ms": 0.9}, compile_s=3.0, seconds=4.0
    )


def slow_measure(folder: str, counter: str) -> None:
    def measure() -> Baseline:
        with open(counter, "a") as file:
            file.write("x")
        time.sleep(0.3)
        return baseline()

    BaselineStore(Path(folder), threads=2).get_or_measure(TASK, measure)


def test_a_baseline_is_measured_once_and_read_back_by_another_store(tmp_path):
    calls = []
    store = BaselineStore(tmp_path, threads=2)
    assert not store.has(TASK)
    for _ in range(2):
        assert store.get_or_measure(TASK, lambda: calls.append(1) or baseline()) == baseline()
    other = BaselineStore(tmp_path, threads=2)
    assert other.has(TASK)
    assert other.get_or_measure(TASK, lambda: pytest.fail("measured again")) == baseline()
    assert calls == [1]


def test_two_processes_measure_it_only_once(tmp_path):
    counter = tmp_path / "counter"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=slow_measure, args=(str(tmp_path), str(counter))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert counter.read_text() == "x"


def test_code_and_threads_make_another_baseline_but_the_name_does_not(tmp_path):
    store = BaselineStore(tmp_path, threads=2)
    store.get_or_measure(TASK, baseline)
    assert store.has(Task(task_id="renamed", code=TASK.code))
    assert not store.has(Task(task_id="one", code=TASK.code + " "))
    assert not BaselineStore(tmp_path, threads=1).has(TASK)


def test_fresh_measures_again_and_replaces_the_file(tmp_path):
    store = BaselineStore(tmp_path, threads=2)
    store.get_or_measure(TASK, baseline)
    store.get_or_measure(TASK, lambda: baseline(5.0), fresh=True)
    (file,) = (tmp_path / "times").glob("*.json")
    assert json.loads(file.read_text())["eager_ms"] == 5.0
    assert not list((tmp_path / "times").glob("*.part"))


def test_a_failed_measurement_leaves_nothing_behind(tmp_path):
    store = BaselineStore(tmp_path, threads=2)
    with pytest.raises(RuntimeError):
        store.get_or_measure(TASK, lambda: (_ for _ in ()).throw(RuntimeError("no compiler")))
    assert not store.has(TASK)
    assert store.get_or_measure(TASK, baseline) == baseline()
