"""The whole schedule for real: Ray, vLLM, Docker, g++, torch.compile, Orbax; killed in stage 4 and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

from jaxagent.config.load import load_config
from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import read_metrics
from jaxagent.run.token_records import read_token_records
from rollout.store import TrajectoryStore

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.docker]

CONFIG = Path("configs/smoke.yaml")


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "jaxagent", "train", *arguments], stdout=file, stderr=file, start_new_session=True
        )


def finish(process: subprocess.Popen[bytes], log: Path, *, limit_s: float) -> None:
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"no end after {limit_s} s:\n{log.read_text()[-4000:]}") from None
    assert code == 0, log.read_text()[-4000:]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    """A run whose driver is killed after the first update of stage 4, and which is then resumed."""
    runs = tmp_path_factory.mktemp("runs")
    folder, log = RunFolder(runs / "smoke"), runs / "log"
    process = start(str(CONFIG), "--runs_dir", str(runs), log=log)
    give_up = time.monotonic() + 420
    while not any(r["stage"] == "agentic" for r in read_metrics(folder.metrics)):
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < give_up, log.read_text()[-4000:]
        time.sleep(0.2)
    process.kill()
    process.wait()
    finish(start("--resume", str(folder.root), log=log), log, limit_s=420)
    return folder


@pytest.mark.timeout(900)
def test_every_update_of_every_stage_is_logged_once(run):
    config = load_config(CONFIG)
    found = [(record["stage"], record["update"]) for record in read_metrics(run.metrics)]
    assert len(found) == len(set(found))
    assert [stage for stage, update in found if update == 0] == [stage.name for stage in config.stages]
    assert [update for stage, update in found if stage == "agentic"] == [0, 1, 2]


@pytest.mark.timeout(900)
def test_no_trajectory_is_trained_on_twice_and_none_is_lost(run):
    with TrajectoryStore(run.store, writable=False) as store:
        for stage, updates in (("single_turn", 2), ("agentic", 3)):
            manifests = store.manifests(stage)
            assert [manifest.update for manifest in manifests] == list(range(updates))
            taken = [name for manifest in manifests for name in manifest.trajectory_ids]
            assert len(taken) == len(set(taken)) == 4 * updates
            numbers = sorted(int(name.rpartition("-")[2]) for name in taken)
            assert numbers == list(range(4 * updates)), "every ticket of the stage was trained on"
            audit = store.audit(stage)
            assert not audit.twice and not audit.waiting


@pytest.mark.timeout(900)
def test_staleness_stays_within_the_bound(run):
    bound = load_config(CONFIG).rollout.max_staleness
    with TrajectoryStore(run.store, writable=False) as store:
        for stage in ("single_turn", "agentic"):
            for manifest in store.manifests(stage):
                oldest = min(store.get(name).oldest_version for name in manifest.trajectory_ids)
                assert 0 <= manifest.policy_version - oldest <= bound


@pytest.mark.timeout(900)
def test_the_trainer_and_the_engine_agree_on_fresh_tokens(run):
    gaps = [record.get("fresh_logprob_gap_max") for record in read_metrics(run.metrics)]
    measured = [gap for gap in gaps if gap is not None]
    assert measured and max(measured) < 1e-3


@pytest.mark.timeout(900)
def test_the_summary_has_before_and_after_on_heldout_tasks(run):
    summary = json.loads(run.summary.read_text())
    assert {stage["stage"] for stage in summary["stages"]} == {stage.name for stage in load_config(CONFIG).stages}
    for moment in ("before", "after"):
        result = summary["heldout"][moment]
        assert result["num_tasks"] == 2
        assert -1.0 <= result["mean_reward"] <= 3.0
    assert summary["heldout"]["gains"].keys() == {"supervised"}


@pytest.mark.timeout(900)
def test_how_busy_the_pools_were_and_what_ppo_did_to_tokens_is_on_record(run):
    ppo = [record for record in read_metrics(run.metrics) if record["stage"] == "agentic"]
    used = [record for record in ppo if "profiler_use" in record]
    assert used, "an update that is replayed has no rollouts, the others do"
    for record in used:
        assert (
            0 <= record["profiler_use"] <= 1.05
            and 0 <= record["engine_use"] <= 1.05
            and 0 <= record["rollout_use"] <= 1.05
        )
        assert record["engine_tokens_per_s"] >= 0
    assert any(record["engine_tokens_per_s"] > 0 for record in used)
    tokens = read_token_records(run.tokens)
    with TrajectoryStore(run.store, writable=False) as store:
        manifests = [*store.manifests("single_turn"), *store.manifests("agentic")]
        assert len(list(run.tokens.glob("*.json"))) == len(manifests)
        for name, record in tokens.items():
            sampled = sum(len(turn.token_ids) for turn in store.get(name).turns)
            assert {len(values) for values in record.values()} == {sampled}


@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_the_runs_own_report_opens_in_a_browser(run, tmp_path):
    with Browser(tmp_path / "profile") as browser:
        browser.open(run.root / "report.html")
        for grid in ("heldout-charts", "charts"):
            plots = f"document.querySelectorAll('#{grid} .plot')"
            for place in range(browser.value(f"{plots}.length")):
                browser.value(f"{plots}[{place}].scrollIntoView()")
                browser.wait_for(f"{plots}[{place}].dataset.drawn === 'yes'")
        titles = browser.value("[...document.querySelectorAll('.chart h3')].map((title) => title.textContent)")
        assert {"Mean reward", "Outcomes", "Staleness", "Pools in use", "fast_p over torch.compile"} <= set(titles)
        choose = "(s => { s.value = 'agentic'; s.dispatchEvent(new Event('change')) })(document.querySelector('select[name=stage]'))"
        browser.value(choose)
        browser.wait_for("document.querySelector('#found').textContent.startsWith('12 of ')")
        browser.value("document.querySelector('#list .row').click()")
        browser.wait_for("document.querySelectorAll('.turn').length > 0")
        assert browser.value("document.querySelectorAll('.turn .c-keyword, .turn pre').length") > 0
        assert browser.problems == []


@pytest.mark.timeout(900)
def test_a_finished_run_can_be_watched(run):
    shown = subprocess.run(
        [sys.executable, "-m", "jaxagent", "watch", str(run.root)], capture_output=True, text=True, check=True
    ).stdout
    assert "finished" in shown and "3/3 updates" in shown and "newest rollouts" in shown
