"""A finished run that is resumed: it says so with its stored results, and its folder stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_run import make_run

from jaxagent.cli import main
from jaxagent.commands.finishing import finish, is_finished
from jaxagent.report.data import read_evaluations
from jaxagent.run.folder import RunFolder, open_run
from jaxagent.run.progress import RunProgress


@pytest.fixture
def ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[RunFolder, str]:
    """The folder of a run, and what was shown when it ended."""
    folder, config = open_run(make_run(tmp_path, name="done").root)
    folder.summary.unlink()
    assert not is_finished(folder, config)
    with RunProgress() as progress:
        finish(folder, config, read_evaluations(folder, config), progress, seconds=75.0)
    return folder, capsys.readouterr().err


def contents(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("overrides", [[], ["--checkpoint.keep_last", "7"]])
def test_a_finished_run_shows_its_results_and_is_left_alone(ended, capsys, overrides):
    finished, shown_first = ended
    before = contents(finished.root)
    assert main(["train", "--resume", str(finished.root), *overrides]) == 0
    shown = capsys.readouterr().err
    assert contents(finished.root) == before
    assert shown.startswith("run done is finished: all 3 stages")
    assert ("checkpoint.keep_last: no stage is left" in shown) == bool(overrides)
    tables = shown_first[: shown_first.index("run folder: ")]
    assert "agentic over expert: 3.00" in tables and tables in shown, "the tables are those that the run ended with"
    assert str(finished.summary) in shown


def test_what_a_resumed_run_cannot_change_is_refused_of_a_finished_one_too(ended, capsys):
    assert main(["train", "--resume", str(ended[0].root), "--stages.agentic.updates", "9"]) == 2
    assert "stages.agentic.updates=9: this run has 2" in capsys.readouterr().err


def test_a_run_whose_last_evaluation_was_taken_away_is_gone_on_with(ended, capsys):
    (ended[0].evaluations / "agentic" / "result.json").unlink()
    assert main(["train", "--resume", str(ended[0].root)]) == 2
    assert "cpp <b onclick" in capsys.readouterr().err, "its inputs are checked: no such skill exists"
