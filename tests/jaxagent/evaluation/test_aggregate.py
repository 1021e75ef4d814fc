"""The aggregator against the published table and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jaxagent.evaluation.aggregate import (
    Scores,
    best_of,
    bootstrap,
    mean_reward,
    outcome_shares,
    overall,
    paired_difference,
    score,
)
from sandbox.types import Judgement, Outcome

# The six rows of the CUDA Agent paper's main table: overall, then levels 1-3 with 100, 100 and 50 tasks;
# pass %, faster than eager %, faster than compile %, geomean vs eager, geomean vs compile.
PAPER_TABLE = {
    "Seed1.6": "74.0·43.6·27.2·0.95·0.69 | 90·63·51·1.65·1.25 | 74·40·16·0.68·0.50 | 42·12·2·0.60·0.40",
    "GLM 4.6": "75.6·44.8·19.2·0.78·0.57 | 86·57·32·0.99·0.73 | 76·43·11·0.60·0.42 | 54·24·10·0.83·0.62",
    "Kimi K2": "66.8·40.8·22.8·0.93·0.66 | 85·56·39·1.43·1.00 | 65·40·15·0.93·0.65 | 34·12·6·0.40·0.29",
    "Gemini 3 Pro": "91.2·87.6·69.6·1.92·1.42 | 95·90·72·1.99·1.51 | 93·91·76·2.03·1.46 | 80·76·52·1.58·1.17",
    "Claude Opus 4.5": "95.2·90.4·66.4·1.99·1.46 | 96·88·72·2.03·1.54 | 98·97·69·2.24·1.60 | 88·82·50·1.52·1.10",
    "CUDA Agent": "98.8·98.4·96.8·2.60·2.11 | 100·99·97·2.48·1.87 | 100·100·100·3.27·2.80 | 94·94·90·1.80·1.52",
}


def row(text: str, num_tasks: int) -> Scores:
    passed, eager, compiled, vs_eager, vs_compile = (float(x) for x in text.split("·"))
    return Scores(
        num_tasks=num_tasks,
        pass_rate=passed / 100,
        faster_than_eager=eager / 100,
        faster_than_compile=compiled / 100,
        geomean_vs_eager=vs_eager,
        geomean_vs_compile=vs_compile,
    )


@pytest.mark.parametrize("model", PAPER_TABLE)
def test_the_papers_overall_rows_come_out_of_its_level_rows(model):
    whole, *levels = PAPER_TABLE[model].split(" | ")
    expected = row(whole, 250)
    found = overall([row(level, tasks) for level, tasks in zip(levels, (100, 100, 50), strict=True)])
    assert found.num_tasks == 250
    for rate in ("pass_rate", "faster_than_eager", "faster_than_compile"):
        assert getattr(found, rate) == pytest.approx(getattr(expected, rate), abs=1e-9)
    for geomean in ("geomean_vs_eager", "geomean_vs_compile"):
        # the level rows are printed with two digits, which moves the mean by as much
        assert getattr(found, geomean) == pytest.approx(getattr(expected, geomean), abs=0.0151)


def judged(candidate: float | None, eager: float = 1.0, compiled: float = 1.0, reward: float = 1.0) -> Judgement:
    if candidate is None:
        return Judgement(outcome=Outcome.WRONG, reward=-1.0, message="")
    return Judgement(
        outcome=Outcome.CORRECT, reward=reward, message="", candidate_ms=candidate, eager_ms=eager, compile_ms=compiled
    )


def test_scores_of_a_level_by_hand():
    found = score([judged(0.5), judged(2.0, eager=4.0), judged(None), judged(1.0)])
    assert found.pass_rate == 0.75
    assert found.faster_than_eager == 0.5
    assert found.faster_than_compile == 0.25
    assert found.geomean_vs_eager == pytest.approx((2.0 * 2.0 * 1.0) ** (1 / 3))
    assert found.geomean_vs_compile == pytest.approx((2.0 * 0.5 * 1.0) ** (1 / 3))


def test_a_level_where_nothing_passed_has_no_speed_up():
    found = score([judged(None)])
    assert found.geomean_vs_eager is None
    assert overall([found, score([judged(0.5)])]).geomean_vs_eager == pytest.approx(2.0)


def test_no_tasks_is_an_error():
    with pytest.raises(ValueError, match="no judgements"):
        score([])


def test_best_of_prefers_reward_then_speed():
    slow, fast, best = judged(2.0), judged(1.0), judged(3.0, reward=3.0)
    assert best_of([judged(None), slow, fast]) is fast
    assert best_of([slow, best, fast]) is best


def test_outcomes_and_mean_reward():
    sample = [judged(1.0, reward=3.0), judged(None), judged(1.0), judged(1.0)]
    assert outcome_shares(sample) == {"correct": 0.75, "wrong": 0.25}
    assert mean_reward(sample) == pytest.approx(1.0)


def test_bootstrap_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(100):
        tasks = [[judged(1.0, reward=float(x))] for x in rng.normal(1.0, 1.0, 40)]
        interval = bootstrap(tasks, mean_reward, seed=trial, resamples=300)
        assert interval is not None
        hits += interval.low <= 1.0 <= interval.high
    assert 85 <= hits <= 100


def test_paired_difference_sees_a_small_gain_that_is_the_same_on_every_task():
    before = {f"t{i}": [float(i % 4), float(i % 4)] for i in range(8)}
    after = {task: [value + 0.25 for value in values] for task, values in before.items()}
    gain = paired_difference(before, after, seed=0)
    assert gain.value == gain.low == gain.high == pytest.approx(0.25)
    assert paired_difference(before, before, seed=0).low == 0.0


def test_paired_difference_refuses_other_tasks():
    with pytest.raises(ValueError, match=r"'b'"):
        paired_difference({"a": [1.0]}, {"a": [1.0], "b": [1.0]}, seed=0)
