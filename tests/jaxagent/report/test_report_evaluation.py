"""The report of an evaluation's folder: results, families, curves and trajectories, also beside another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_run import make_evaluation, make_run

from jaxagent.config.load import ConfigError
from jaxagent.report import write_report
from jaxagent.report.evaluation_data import load_evaluation


def test_an_evaluation_is_read_with_its_results_and_the_texts_of_its_policy(tmp_path: Path):
    data = load_evaluation(make_evaluation(tmp_path, name="first"))
    assert dict(data.facts)["policy"] == f"model {tmp_path / 'model'}" and dict(data.facts)["samples"] == "2"
    assert [result.label for result in data.evaluations] == ["kernelbench/level2"]
    assert [result.label for result in data.families] == ["other"] and data.heldout[0].task_ids == [
        "level2/9_double"
    ] * 2
    assert "level2/9_double" in data.trajectories.shared["tasks"] and data.trajectories.shared["prompts"]
    assert data.remarks[1:] == [
        "Can be passed without the work: level2/9_double (the output is exactly zero)",
        "Not evaluated: level2/10_gone: no such operator",
    ]


def test_the_page_of_an_evaluation_shows_results_and_no_stages(tmp_path: Path):
    page = write_report([make_evaluation(tmp_path, name="first")]).read_text()
    assert "<h2>Results</h2>" in page and "By family of operators" in page and "<h2>Stages</h2>" not in page
    assert "<td>kernelbench/level2</td><td>3.00 [3.00, 3.00]</td>" in page
    assert (tmp_path / "first" / "report.html").exists()


def test_evaluations_and_runs_stand_side_by_side(tmp_path: Path):
    first, second = (make_evaluation(tmp_path, name=name) for name in ("first", "second"))
    run = make_run(tmp_path, name="trained").root
    page = write_report([first, second, run], out=tmp_path / "page.html").read_text()
    for name in ("first", "second"):
        assert f"<td>{name}</td><td>kernelbench/level2</td>" in page
    assert "<td>trained</td><td>agentic</td>" in page and page.count("<h2>Stages</h2>") == 1


def test_one_that_is_under_way_shows_its_samples_and_one_without_a_config_says_so(tmp_path: Path):
    root = make_evaluation(tmp_path, name="begun", finished=False)
    page = write_report([root]).read_text()
    assert "there are samples, and no results yet" in page
    record = json.loads((root / "evaluation.json").read_text())
    del record["config"]
    (root / "evaluation.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="no config on record; run its command again"):
        write_report([root])
