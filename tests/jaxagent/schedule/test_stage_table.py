"""The table by stage, and metrics.jsonl that it is made from."""

from __future__ import annotations

from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import MetricsLog, read_metrics
from jaxagent.schedule.stage_table import stage_rows, stage_summary


def records() -> list[dict]:
    common = {"step": 0, "time": 0.0}
    return [
        {
            "stage": "a",
            "update": 0,
            "mean_reward": -1.0,
            "outcome_correct": 0.0,
            "outcome_timeout": 0.25,
            "fresh_logprob_gap_max": 3e-5,
            "seconds": 2.0,
        }
        | common,
        {"stage": "a", "update": 1, "mean_reward": 3.0, "outcome_correct": 1.0, "outcome_timeout": 0.0, "seconds": 3.0}
        | common,
        {"stage": "b", "update": 0, "nll": 0.5, "explained_variance": None} | common,
    ]


def test_a_stage_becomes_one_row_with_first_and_last_reward_and_all_its_seconds():
    columns, rows = stage_rows(records())
    cell = dict(zip(columns, rows[0], strict=True))
    assert cell["stage"] == "a" and cell["updates"] == "2"
    assert cell["mean reward"] == "-1.00 → 3.00"
    assert cell["correct"] == "100%" and cell["other"] == "0%"
    assert cell["seconds"] == "5"
    assert cell["fresh gap"] == "3e-05", "the second update had no fresh tokens"
    assert set(rows[1][2:]) == {"-"}, "what was not measured is not shown as a number"


def test_the_summary_spreads_every_metric():
    first, second = stage_summary(records())
    assert first["metrics"]["mean_reward"] == {"first": -1.0, "last": 3.0, "mean": 1.0, "min": -1.0, "max": 3.0}
    assert second["metrics"]["explained_variance"] is None


def test_updates_after_a_checkpoint_are_forgotten_and_a_torn_line_is_cut(tmp_path):
    folder = RunFolder(tmp_path)
    log = MetricsLog(folder)
    for update in range(4):
        log.write(stage="a", update=update, values={"x": float(update), "nan": float("nan")})
    log.write(stage="b", update=0, values={"x": 9.0})
    log.close()
    with folder.metrics.open("a") as file:
        file.write('{"stage": "b", "upd')
    assert len(list(read_metrics(folder.metrics))) == 5, "a reader leaves out the line that is under way"
    log = MetricsLog(folder)
    log.forget(stage="a", from_update=2)
    log.write(stage="a", update=2, values={"x": 7.0})
    log.close()
    found = list(read_metrics(folder.metrics))
    assert [(r["stage"], r["update"], r["x"]) for r in found] == [
        ("a", 0, 0.0),
        ("a", 1, 1.0),
        ("b", 0, 9.0),
        ("a", 2, 7.0),
    ]
    assert found[-1]["step"] == 3
    assert found[0]["nan"] is None
