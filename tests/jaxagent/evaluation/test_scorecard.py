"""Figures of an evaluation worked out by hand: fast_p, pass@k, rows by level, and KernelBench's files of several levels."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from jaxagent.evaluation.aggregate import bootstrap, bootstrap_levels, fast_p, pass_at_k
from jaxagent.evaluation.kernelbench import write_kernelbench
from jaxagent.evaluation.problems import Problem, number_problems
from jaxagent.evaluation.scorecard import ks_of, score_rows, tables
from rollout.types import StopReason, Trajectory, Turn
from sandbox.types import Judgement, Outcome, Task


def judged(speedup: float | None, *, over_compile: float = 1.0) -> Judgement:
    """`speedup` over eager (1 ms); None is wrong."""
    if speedup is None:
        return Judgement(outcome=Outcome.WRONG, reward=-1.0, message="differs")
    return Judgement(
        outcome=Outcome.CORRECT,
        reward=1.0,
        message="",
        candidate_ms=1 / speedup,
        eager_ms=1.0,
        compile_ms=over_compile / speedup,
    )


def sample(task: Task, index: int, final: Judgement, *earlier: Judgement) -> Trajectory:
    none = np.zeros(0, np.int32)
    turns = [
        Turn(prompt_token_ids=none, token_ids=none, logprobs=none, policy_versions=none, text="", judgement=judgement)
        for judgement in earlier
    ]
    return Trajectory(
        trajectory_id=f"{task.task_id}/{index}",
        task_id=task.task_id,
        sample_index=index,
        stage="s",
        seed=0,
        turns=turns,
        judgement=final,
        stop_reason=StopReason.FINISHED,
    )


def kernelbench_task(level: int, name: str) -> Task:
    return Task(task_id=f"level{level}/{name}", code="", source=f"kernelbench/level{level}")


def test_fast_p_counts_what_is_correct_and_strictly_faster():
    judgements = [judged(0.5), judged(1.0), judged(1.5, over_compile=2.5), judged(None)]
    assert [fast_p(judgements, p, baseline="eager") for p in (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)] == [
        0.75, 0.5, 0.5, 0.25, 0.0, 0.0
    ]  # fmt: skip
    assert fast_p(judgements, 2.0, baseline="compile") == 0.25
    assert fast_p(judgements, 1.0, baseline="compile") == 0.25


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 2), (5, 5), (3, 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n, c):
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(range(n), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(min(subset) < c for subset in subsets) / len(subsets))
    with pytest.raises(ValueError, match=f"k={n + 1} has to lie between 1 and the {n} samples"):
        pass_at_k(n, c, n + 1)


def test_ks_are_powers_of_two_and_the_number_of_samples():
    assert [ks_of(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_levels_make_rows_and_the_row_over_all_weights_them_as_the_paper_does():
    first = [kernelbench_task(1, f"{i}_a") for i in range(1, 4)]
    second = [kernelbench_task(2, "1_b")]
    trajectories = [sample(task, 0, judged(2.0)) for task in first[:2]] + [sample(first[2], 0, judged(None))]
    trajectories.append(sample(second[0], 0, judged(None), judged(4.0)))  # the best of the way counts
    rows = {row.result.label: row for row in score_rows(trajectories, [*first, *second], seed=0)}
    assert list(rows) == ["kernelbench/level1", "kernelbench/level2", "overall"]
    figures = rows["overall"].result.figures
    assert figures["pass_rate"].value == pytest.approx(3 / 4)
    assert figures["geomean_vs_eager"].value == pytest.approx(np.exp(3 / 4 * np.log(2) + 1 / 4 * np.log(4)))
    assert rows["kernelbench/level1"].result.figures["geomean_vs_eager"].value == pytest.approx(2.0)
    assert rows["overall"].fast_p_vs_eager[2.0] == 1 / 4 and rows["overall"].pass_at_k == {1: 3 / 4}
    assert json.loads(json.dumps(rows["overall"].to_json()))["fast_p_vs_eager"]["1.5"] == 3 / 4
    for columns, cells in tables(list(rows.values())).values():
        assert [row[0] for row in cells] == list(rows) and all(len(row) == len(columns) for row in cells)


def test_an_interval_over_levels_keeps_every_level_at_its_size():
    """Level a always passes and level b never does: no resample can say anything but one half."""
    levels = [[[judged(1.0)]] * 3, [[judged(None)]] * 3]

    def rate(groups):
        return {"rate": sum(j.accepted for group in groups for j in group) / sum(map(len, groups))}

    interval = bootstrap_levels(levels, rate, seed=0)["rate"]
    assert (interval.low, interval.value, interval.high) == (0.5, 0.5, 0.5)
    mixed = bootstrap([*levels[0], *levels[1]], lambda group: rate([group])["rate"], seed=0)
    assert mixed.low < 0.5 < mixed.high


def test_problems_are_numbered_by_their_names_or_else_by_their_place():
    tasks = [kernelbench_task(1, "10_b"), kernelbench_task(1, "2_a"), kernelbench_task(2, "2_c")]
    assert list(number_problems(tasks).values()) == [Problem(1, 10), Problem(1, 2), Problem(2, 2)]
    unnamed = [Task(task_id=name, code="") for name in ("gelu", "3_tanh")]
    assert list(number_problems(unnamed).values()) == [Problem(None, 1), Problem(None, 2)]


def test_several_levels_have_a_folder_each(tmp_path):
    tasks = [kernelbench_task(1, "7_a"), kernelbench_task(2, "7_b")]
    trajectories = [sample(task, 0, judged(2.0)) for task in tasks]
    written = write_kernelbench(tmp_path, trajectories, number_problems(tasks))
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "level1/eval_results.json",
        "level2/eval_results.json",
    ]
    (record,) = json.loads(written[1].read_text())["7"]
    assert record["correctness"] and record["runtime"] == 0.5 and record["metadata"]["problem_name"] == "level2/7_b"
