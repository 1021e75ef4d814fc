"""The harness's parts: its plan, what it finds and does to processes, and what its proof accepts and refuses."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from jaxagent.chaos.faults import DEFAULT_KINDS, Act, Fault, inflict, plan
from jaxagent.chaos.harness import Harness
from jaxagent.chaos.proof import prove
from jaxagent.chaos.targets import Kind, find
from jaxagent.collection.tickets import TicketOrder
from jaxagent.config.load import load_config
from jaxagent.config.stages import PPOStage, SampleStage
from jaxagent.models.scratch_tokenizer import save_tokenizer, train_tokenizer
from jaxagent.run.folder import RunFolder, create_run
from jaxagent.run.metrics_log import MetricsLog
from jaxagent.synthesis.expert import expert_texts
from jaxagent.synthesis.sources import resolve_tasks
from rollout.store import TrajectoryStore
from rollout.types import StopReason, Trajectory, Turn
from sandbox.types import Judgement, Outcome

CONFIG = Path("configs/chaos.yaml")


def test_a_plan_is_its_seeds_and_every_kind_meets_each_of_its_acts() -> None:
    first, again, other = (list(itertools.islice(plan(s, mean_gap_s=5.0), 300)) for s in (0, 0, 1))
    assert first == again != other
    met = Counter((fault.kind, fault.act) for fault in first)
    for kind in DEFAULT_KINDS:
        acts = {act for k, act in met if k is kind}
        expected = {Kind.DISK: {Act.FILL}, Kind.SOCKET: {Act.DROP}}.get(kind, {Act.KILL, Act.STOP, Act.STARVE})
        assert acts == expected
    assert Kind.DOCKER_ENGINE not in {kind for kind, _ in met}
    assert 4.0 < np.mean([fault.after_s for fault in first]) < 6.0


def fault(kind: Kind, act: Act, length_s: float = 0.5) -> Fault:
    return Fault(kind=kind, act=act, after_s=0.0, pick=0.5, length_s=length_s)


@pytest.fixture
def worker():
    """A process under the name of a Ray worker, which appends to the newest file of a store."""
    code = "import sys, time\nfor i in range(10**6):\n  time.sleep(0.01)\n"
    process = subprocess.Popen(["ray::_RolloutProcess.run", "-c", code], executable=sys.executable)
    yield process
    process.kill()
    process.wait()


async def test_processes_are_found_below_their_driver_alone(worker) -> None:
    driver = psutil.Process().pid
    assert find(Kind.ROLLOUT_ACTOR, driver) == [worker.pid]
    assert find(Kind.ENGINE, driver) == [] and find(Kind.DRIVER, driver) == [driver]
    assert find(Kind.ROLLOUT_ACTOR, worker.pid) == [worker.pid] and find(Kind.CONTAINER, driver) == []
    assert find(Kind.ROLLOUT_ACTOR, 2**22 - 1) == []


async def test_a_stop_and_a_starving_pass_and_a_kill_does_not(worker, tmp_path: Path) -> None:
    process = psutil.Process(worker.pid)
    stop = asyncio.create_task(inflict(fault(Kind.ROLLOUT_ACTOR, Act.STOP), [worker.pid], store=tmp_path))
    await asyncio.sleep(0.2)
    assert process.status() == psutil.STATUS_STOPPED
    assert await stop == worker.pid and process.status() != psutil.STATUS_STOPPED
    await inflict(fault(Kind.ROLLOUT_ACTOR, Act.KILL), [worker.pid], store=tmp_path)
    assert worker.wait(5) == -9
    assert await inflict(fault(Kind.ROLLOUT_ACTOR, Act.STOP), [worker.pid], store=tmp_path) == worker.pid


async def test_a_full_disk_refuses_the_stores_newest_file_and_then_has_room_again(tmp_path: Path) -> None:
    (tmp_path / "log-000000.bin").write_bytes(b"x" * 100)
    code = (
        "import sys, time\nfile = open(sys.argv[1], 'ab', buffering=0)\n"
        "for i in range(200):\n"
        "  try: file.write(b'y' * 1000); print('written', flush=True)\n"
        "  except OSError as error: print(error.errno, flush=True)\n"
        "  time.sleep(0.05)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log-000000.bin")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "written\n"
    await inflict(fault(Kind.DISK, Act.FILL, 1.0), [process.pid], store=tmp_path)
    time.sleep(0.5)
    process.kill()
    lines = process.stdout.read().split()
    assert "27" in lines and lines[-1] == "written", "EFBIG while it was full, and none after"


# What the proof reads: a run folder whose store is written as a run's driver writes it.


def trajectory(ticket, stage: str, version: int) -> Trajectory:
    tokens = np.arange(4, dtype=np.int32)
    turn = Turn(
        prompt_token_ids=tokens, token_ids=tokens, logprobs=np.zeros(4, np.float32),
        policy_versions=np.full(4, version, np.int32), text="answer",
    )  # fmt: skip
    return Trajectory(
        trajectory_id=ticket.trajectory_id, task_id=ticket.task.task_id, sample_index=ticket.sample_index, stage=stage,
        seed=ticket.seed, turns=[turn], judgement=Judgement(outcome=Outcome.WRONG, reward=-1.0, message=""),
        stop_reason=StopReason.FINISHED,
    )  # fmt: skip


def written(tmp_path: Path, *, skip: str = "", swap: tuple[str, str] = ("", ""), age: int = 0) -> RunFolder:
    """A finished run at max_staleness 0: `skip` names a ticket to leave out, `swap` two to exchange between batches,
    `age` says how much older than allowed its tokens are."""
    config = load_config(CONFIG, ["--runs_dir", str(tmp_path), "--rollout.max_staleness", "0"])
    folder = create_run(config)
    texts = expert_texts(resolve_tasks(config.tasks.train))
    folder.initial_model.mkdir()
    save_tokenizer(train_tokenizer(texts, vocab_size=1024), folder.initial_model)
    tasks = resolve_tasks(config.tasks.train)[: config.tasks.limit]
    metrics = MetricsLog(folder)
    with TrajectoryStore(folder.store) as store:
        for stage in config.stages:
            if not isinstance(stage, SampleStage | PPOStage):
                continue
            is_ppo = isinstance(stage, PPOStage)
            size = stage.trajectories_per_update if is_ppo else stage.trajectories
            updates = stage.updates if is_ppo else 1
            order = TicketOrder(tasks, stage=stage.name, seed=config.seed)
            tickets = [order.ticket(i) for i in range(size * updates)]
            for ticket in tickets:
                if ticket.trajectory_id != skip:
                    store.append(trajectory(ticket, stage.name, ticket.number // size - age))
            for update in range(updates if is_ppo else 0):
                names = [ticket.trajectory_id for ticket in tickets[update * size : (update + 1) * size]]
                names = [dict([swap, swap[::-1]]).get(name, name) for name in names if name != skip]
                store.append_manifest(stage.name, update, names, update)
                metrics.write(stage=stage.name, update=update, values={"rollout_retries": 1})
    metrics.close()
    return folder


def test_a_complete_run_is_proved_and_its_retries_are_counted(tmp_path: Path) -> None:
    proof = prove(written(tmp_path).root)
    assert proof.problems == []
    config = load_config(CONFIG)
    updates = sum(stage.updates for stage in config.stages if isinstance(stage, PPOStage))
    assert proof.counts["rollout_retries"] == updates and proof.records == proof.trajectories + updates


def test_a_lost_trajectory_is_found(tmp_path: Path) -> None:
    problems = prove(written(tmp_path, skip="agentic-000005").root).problems
    assert any("agentic: 1 of 160 trajectories are missing" in problem for problem in problems)
    assert any("agentic update 1: tickets [4, 6, 7]" in problem for problem in problems)


def test_a_batch_that_a_synchronous_run_would_not_have_is_found(tmp_path: Path) -> None:
    problems = prove(written(tmp_path, swap=("agentic-000003", "agentic-000004")).root).problems
    assert {problem.split(":")[0] for problem in problems} == {"agentic update 0", "agentic update 1"}
    assert any("update 0: tickets [0, 1, 2, 4]" in problem for problem in problems)


def test_a_token_staler_than_allowed_is_found(tmp_path: Path) -> None:
    problems = prove(written(tmp_path, age=1).root).problems
    assert problems and all("staler than 0" in problem for problem in problems)


def test_a_trajectory_in_two_manifests_or_in_none_is_found(tmp_path: Path) -> None:
    folder = written(tmp_path)
    tasks = resolve_tasks("synthetic:train")[:2]
    extra = TicketOrder(tasks, stage="agentic", seed=0).ticket(160)
    with TrajectoryStore(folder.store) as store:
        store.append(trajectory(extra, "agentic", 40))
        store.append_manifest("agentic", 40, ["agentic-000000"], 40)
    problems = prove(folder.root).problems
    assert any("in two manifests: ['agentic-000000']" in problem for problem in problems)
    assert any("in no manifest and not dropped: ['agentic-000160']" in problem for problem in problems)
    assert any("trajectories too many" in problem for problem in problems)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", DEFAULT_KINDS)
async def test_a_run_under_one_kind_of_fault_loses_and_repeats_nothing(tmp_path: Path, kind: Kind) -> None:
    said: list[str] = []
    arguments = [str(CONFIG), "--runs_dir", str(tmp_path), "--name", "broken", "--stages.agentic.updates", "8"]
    harness = Harness(arguments, tmp_path / "broken", say=said.append)
    inflicted = await harness.run(plan(1, kinds=[kind], mean_gap_s=8.0), number=3, limit_s=840, max_resumes=6)
    assert len(inflicted.faults) == 3, said
    proof = prove(tmp_path / "broken")
    assert proof.problems == [], said
