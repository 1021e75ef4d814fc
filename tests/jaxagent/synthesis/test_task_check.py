"""Every filter against planted faults and against honest tasks that look like them, run for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted_tasks import HONEST, PLANTED, task

from jaxagent.cli import main
from jaxagent.synthesis.candidates import read_candidates
from jaxagent.synthesis.checker import CheckedTask, TaskChecker
from jaxagent.synthesis.reasons import FilterConfig, Reason
from sandbox.taskcheck.config import ProbeConfig

# Wide, so that a busy machine decides nothing: honest tasks take some milliseconds, planted ones microseconds or seconds.
_FILTERS = FilterConfig(min_ms=0.02, max_ms=600)
_PROBE = ProbeConfig(timeout_s=15, timing_ms=50, warmup_ms=20, memory_mb=4096)


@pytest.fixture(scope="module")
def checked() -> dict[str, CheckedTask]:
    candidates = [*HONEST.items(), *((name, code) for name, (_, code) in PLANTED.items())]
    with TaskChecker(_FILTERS, _PROBE) as checker:
        return {found.name: found for found in checker.check(candidates)}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_its_reason(checked: dict[str, CheckedTask], name: str):
    finding = checked[name].finding
    assert finding is not None, checked[name].evidence
    assert (str(finding.reason), bool(finding.detail)) == (PLANTED[name][0], True), finding


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_task_is_kept(checked: dict[str, CheckedTask], name: str):
    assert checked[name].finding is None


def test_every_reason_but_that_of_a_checkout_is_planted():
    assert {reason for reason, _ in PLANTED.values()} == set(Reason) - {Reason.KERNELBENCH_SIMILAR}


def test_the_command_checks_a_folder_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a_kept.py").write_text(task("return x.cumsum(1).tanh()"))
    (tmp_path / "b_dropped.py").write_text(task("return x * 0 + torch.rand(())"))
    (tmp_path / "c_broken.py").write_text("def get_inputs(:")
    assert main(["tasks", "check", str(tmp_path), "--json", "--min-ms", "0.01", "--max-ms", "5000"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["file"], row["kept"], row["reason"]) for row in said["tasks"]] == [
        ("a_kept.py", True, None),
        ("b_dropped.py", False, "stochastic"),
        ("c_broken.py", False, "syntax_error"),
    ]
    assert (said["candidates"], said["kept"], said["dropped"]) == (3, 1, {"stochastic": 1, "syntax_error": 1})


def test_generated_tasks_are_read_by_the_name_of_their_set():
    found = read_candidates(Path("synthetic_cuda:heldout"))
    assert [name for name, _ in found][:2] == ["synthetic_cuda_0_heldout_00", "synthetic_cuda_0_heldout_01"]
    assert len(found) == 60 and "class Model" in found[0][1]


def test_nothing_to_check_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "check", str(tmp_path)]) == 2
    assert "holds no .py file" in capsys.readouterr().err
    assert main(["tasks", "check", str(tmp_path), "--min-ms", "5", "--max-ms", "1"]) == 2
