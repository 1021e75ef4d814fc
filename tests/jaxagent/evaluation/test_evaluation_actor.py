"""Evaluation through Ray for real: stored kernels and a served model, judged, scored, written, continued."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from pathlib import Path

import pytest
import ray
from openai_server import OpenAIServer, serve

from jaxagent.cli import main
from jaxagent.cli.exits import BAD_USAGE, DONE
from jaxagent.config.load import ConfigError, load_config
from jaxagent.evaluation.actor import EvaluationActor
from jaxagent.evaluation.policy_source import parse_policy
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.evaluation.service import POLICY
from jaxagent.run.progress_relay import Event
from rollout.actors import call, start_rollout_actors
from rollout.config import EndpointConfig
from rollout.endpoint import EndpointPolicy
from rollout.parsers import make_parser
from rollout.store import TrajectoryStore
from rollout.types import RolloutError
from sandbox.actors.judge import RemoteJudge, start_judge
from sandbox.tasks import load_tasks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

PARSER = make_parser("qwen3_coder")
MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn(64, 128)]

def get_init_inputs():
    return []
"""
TASKS = {
    "1_Doubled_tanh_": "torch.tanh(x) * 2.0",
    "2_Shifted_relu": "torch.relu(x) + 1.0",
    "10_No_such_operator": "torch.no_such_operator(x)",
}
KERNEL = """
#include <cmath>
#include <cstdint>
extern "C" void apply(const float* x, float* y, int64_t n) {{
    for (int64_t i = 0; i < n; ++i) y[i] = {expression};
}}
"""
RIGHT = {"1_Doubled_tanh_": "2.0f * std::tanh(x[i])", "2_Shifted_relu": "std::fmax(x[i], 0.0f) + 1.0f"}
MODEL_NEW = """
import torch
import torch.nn as nn
import cpp_kernels

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cpp_kernels.apply(x, y, x.numel())
        return y
"""
NOT_OWN_WORK = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2.0
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Tasks in KernelBench's layout, and stored kernels in each of the ways they may be stored."""
    root = tmp_path_factory.mktemp("evaluation")
    level = root / "tasks" / "level1"
    level.mkdir(parents=True)
    for name, expression in TASKS.items():
        (level / f"{name}.py").write_text(MODEL.format(expression=expression))
    write_kernel(root / "stored/level_1_problem_1_sample_0", RIGHT["1_Doubled_tanh_"])
    write_kernel(root / "stored/level_1_problem_1_sample_1", "std::tanh(x[i])")
    (root / "stored/level_1_problem_1_sample_2_kernel.py").write_text(NOT_OWN_WORK)
    write_kernel(root / "stored/level1/2_Shifted_relu/sample_0", RIGHT["2_Shifted_relu"])
    write_kernel(root / "stored/level1/2_Shifted_relu/sample_1", "no_such_name")
    write_kernel(root / "stored/level_1_problem_10_sample_0", "x[i]")
    return root


def write_kernel(folder: Path, expression: str) -> None:
    (folder / "kernels").mkdir(parents=True)
    (folder / "model_new.py").write_text(MODEL_NEW)
    (folder / "kernels" / "apply.cpp").write_text(KERNEL.format(expression=expression))


def overrides(root: Path) -> list[str]:
    return [
        "--sandbox.backend=process",
        "--judge.num_checks=1",
        "--judge.quiet=false",
        f"--judge.cores_per_device={min(2, os.cpu_count() or 1)}",
        f"--judge.baseline_dir={root / 'baselines'}",
        f"--compile.cache_dir={root / 'cache'}",
    ]


@pytest.fixture(scope="module")
def judge(root):
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=200 << 20)
    config = load_config(Path("configs/demo.yaml"), overrides(root))
    judge = start_judge(config.judge, config.compile, registry_dir=root / "quiet")
    yield judge
    asyncio.run(judge.close())
    ray.shutdown()


def requested(root: Path, out: str, policy: str, *changes: str) -> EvaluationRequest:
    return EvaluationRequest(
        config=load_config(Path("configs/demo.yaml"), [*overrides(root), *changes]),
        policy=parse_policy(policy),
        tasks=load_tasks(str(root / "tasks")),
        out=root / out,
    )


async def evaluated(request: EvaluationRequest, judge: RemoteJudge) -> tuple[list[dict], list[Event]]:
    """The rows of results.jsonl, and what was told meanwhile."""
    evaluation = EvaluationActor.remote()
    try:
        await call(evaluation.run, request, judge)
        events = await call(evaluation.progress)
    finally:
        ray.kill(evaluation)
    lines = (request.out / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], events


def outcomes(rows: list[dict]) -> dict[tuple[str, int], str]:
    return {(row["task_id"], row["sample_index"]): row["judgement"]["outcome"] for row in rows}


async def test_stored_kernels_are_judged_scored_and_written(root, judge):
    request = requested(root, "kernels", f"kernels:{root / 'stored'}")
    rows, events = await evaluated(request, judge)
    assert outcomes(rows) == {
        ("level1/1_Doubled_tanh_", 0): "correct",
        ("level1/1_Doubled_tanh_", 1): "wrong",
        ("level1/1_Doubled_tanh_", 2): "refused",
        ("level1/2_Shifted_relu", 0): "correct",
        ("level1/2_Shifted_relu", 1): "compile_error",
    }
    assert all((row["level"], row["source"]) == (1, "kernelbench/level1") for row in rows)
    assert any("10_No_such_operator" in event.text for event in events), "a task that cannot run is not passed over"

    summary = json.loads((request.out / "summary.json").read_text())
    (level,) = summary["rows"]
    assert level["label"] == "kernelbench/level1" and (level["num_tasks"], level["num_samples"]) == (2, 5)
    assert level["figures"]["pass_rate"]["value"] == pytest.approx(2 / 5)
    assert level["fast_p_vs_eager"]["0"] == pytest.approx(2 / 5)
    assert level["pass_at_k"] == {"1": pytest.approx((1 / 3 + 1 / 2) / 2), "2": pytest.approx((2 / 3 + 1) / 2)}
    assert summary["protocol"] == "hardened" and list(summary["unusable"]) == ["level1/10_No_such_operator"]
    table = (request.out / "table.md").read_text()
    assert "| 40 % [33, 50] |" in table and "| kernelbench/level1 | 41.7 % | 83.3 % |" in table
    assert table.rstrip().splitlines()[-1].startswith("- level1/10_No_such_operator: ")


async def test_results_are_there_in_the_form_of_kernelbench(root, judge):
    request = requested(root, "kernels", f"kernels:{root / 'stored'}")
    rows, _ = await evaluated(request, judge)
    results = json.loads((request.out / "eval_results.json").read_text())
    assert list(results) == ["1", "2"] and [record["sample_id"] for record in results["1"]] == [0, 1, 2]
    right, wrong, refused = results["1"]
    assert (right["compiled"], right["correctness"]) == (True, True)
    assert right["runtime"] == rows[0]["judgement"]["candidate_ms"] > 0
    stats = right["runtime_stats"]
    assert 0 < stats["min"] <= stats["mean"] <= stats["max"] and stats["num_trials"] >= 3 and stats["hardware"]
    assert (wrong["compiled"], wrong["correctness"], wrong["runtime"], wrong["runtime_stats"]) == (
        True,
        False,
        -1.0,
        {},
    )
    assert refused["compiled"] is False and "correctness_issue" in wrong["metadata"]
    passes = json.loads((request.out / "pass_at_k_results.json").read_text())
    assert passes["problems"]["1"]["pass@2"] == pytest.approx(2 / 3)
    assert passes["metadata"]["total_evaluated_samples"] == 5


async def test_what_is_judged_already_is_not_judged_again_and_a_changed_file_is(root, judge):
    request = requested(root, "kernels", f"kernels:{root / 'stored'}")
    await evaluated(request, judge)
    before = await judge.stats()
    await evaluated(request, judge)
    again = await judge.stats()
    assert all(again.get(name) == before.get(name) for name in ("judged", "deduplicated"))
    broken = root / "stored/level1/2_Shifted_relu/sample_1/kernels/apply.cpp"
    text = broken.read_text()
    broken.write_text(KERNEL.format(expression="1.0f + std::fmax(0.0f, x[i])"))
    rows, _ = await evaluated(request, judge)
    assert (await judge.stats())["judged"] == before["judged"] + 1
    assert outcomes(rows)["level1/2_Shifted_relu", 1] == "correct" and len(rows) == 5
    broken.write_text(text)


async def test_a_folder_is_only_continued_with_what_it_was_begun_with(root, judge):
    await evaluated(requested(root, "kernels", f"kernels:{root / 'stored'}"), judge)
    paper = requested(root, "kernels", f"kernels:{root / 'stored'}", "--judge.protocol=paper")
    with pytest.raises(ConfigError, match='another protocol is there \\("hardened", now "paper"\\)'):
        await evaluated(paper, judge)
    with pytest.raises(ConfigError, match="holds something that is no evaluation"):
        await evaluated(requested(root, "tasks", f"kernels:{root / 'stored'}"), judge)


def agent(messages: list[dict[str, str]]) -> str:
    """Doubles tanh well, profiles it, and spoils it afterwards; of the other task it writes nothing."""
    if not any("torch.tanh" in message["content"] for message in messages):
        return "I do not know how."
    right, spoilt = (KERNEL.format(expression=e) for e in (RIGHT["1_Doubled_tanh_"], "0.0f"))
    turns = (
        PARSER.render("write", {"path": "model_new.py", "content": MODEL_NEW})
        + PARSER.render("write", {"path": "kernels/apply.cpp", "content": right}),
        PARSER.render("bash", {"command": "python3 utils/profiling.py"}),
        PARSER.render("write", {"path": "kernels/apply.cpp", "content": spoilt}),
        "Done.",
    )
    return turns[sum(message["role"] == "assistant" for message in messages)]


DIALOGUE = "--evaluation.dialogue={kind: agentic, max_context_tokens: 8000, max_reply_tokens: 1500}"


async def test_a_served_model_is_scored_by_the_best_of_each_sample_and_more_samples_may_follow(root, judge):
    server = OpenAIServer(agent, context=100_000)
    with serve(server) as url:
        policy = f"openai:{url}#scripted"
        rows, _ = await evaluated(requested(root, "served", policy, DIALOGUE, "--evaluation.samples_per_task=1"), judge)
        assert outcomes(rows) == {
            ("level1/1_Doubled_tanh_", 0): "correct",  # although the last workspace is wrong
            ("level1/2_Shifted_relu", 0): "refused",  # nothing was written
        }
        assert {row["task_id"]: row["turns"] for row in rows} == {
            "level1/1_Doubled_tanh_": 4,
            "level1/2_Shifted_relu": 1,
        }
        with TrajectoryStore(root / "served" / "store", writable=False) as store:
            finals = {trajectory.task_id: str(trajectory.judgement.outcome) for trajectory in store.trajectories()}
        assert finals["level1/1_Doubled_tanh_"] == "wrong"
        assert len(server.requests) == 5
        more = requested(root, "served", policy, DIALOGUE, "--evaluation.samples_per_task=2")
        rows, _ = await evaluated(more, judge)
        assert len(rows) == 4 and len(server.requests) == 10
        results = json.loads((more.out / "eval_results.json").read_text())
        assert [record["correctness"] for record in results["1"]] == [True, True]


async def test_an_evaluation_that_was_interrupted_goes_on_with_what_is_missing(root, judge):
    server = OpenAIServer(agent, context=100_000)
    changes = [DIALOGUE, "--evaluation.samples_per_task=1", "--rollout.trajectories_per_actor=1"]
    with serve(server) as url:
        request = requested(root, "interrupted", f"openai:{url}#scripted", *changes, "--rollout.max_retries=0")

        def answer_once(messages: list[dict[str, str]]) -> str:
            server.failures.append((403, {"message": "no more today"}, {}))
            return "I do not know how."

        server.answer = answer_once
        with pytest.raises(RolloutError, match="failed 1 times.*access denied"):
            await evaluated(request, judge)
        with TrajectoryStore(root / "interrupted" / "store", writable=False) as store:
            (first,) = store.ids()
        server.answer, asked = agent, len(server.requests)
        rows, _ = await evaluated(request, judge)
        assert len(rows) == 2 and first in {row["trajectory_id"] for row in rows}
        repeated = {"level1/1_Doubled_tanh_": 1, "level1/2_Shifted_relu": 4}  # by what was there: the other's turns
        done = next(row["task_id"] for row in rows if row["trajectory_id"] == first)
        assert len(server.requests) - asked == repeated[done]


async def test_rollout_actors_that_run_already_are_used_and_left_running(root, judge):
    server = OpenAIServer(agent, context=100_000)
    with serve(server) as url:
        request = requested(
            root, "given", "openai:http://nobody/v1#unused", DIALOGUE, "--evaluation.samples_per_task=1"
        )
        make = functools.partial(EndpointPolicy, EndpointConfig(base_url=url, model="scripted"))
        actors = start_rollout_actors(
            1,
            trajectories_per_actor=2,
            policies=lambda number: {POLICY: make},
            judge=judge,
            sandbox_config=request.config.sandbox,
            skill="cpp",
        )
        evaluation = EvaluationActor.remote()
        rows = await call(evaluation.run, request, judge, actors)
        assert rows[0].result.num_samples == 2 and rows[0].pass_at_k == {1: 0.5}
        assert await call(actors[0].process_ids) and (await judge.stats())["judged"] > 0
        for actor in (*actors, evaluation):
            ray.kill(actor)


def test_the_command_shows_the_table_and_says_where_the_files_are(root, judge, capfd):
    arguments = ["evaluate", "configs/demo.yaml", "--policy", f"kernels:{root / 'stored'}"]
    arguments += ["--tasks", str(root / "tasks"), "--protocol", "paper", "--out", str(root / "command")]
    assert main([*arguments, *overrides(root)]) == DONE
    shown = capfd.readouterr()
    assert shown.out.strip() == str(root / "command")
    assert "kernelbench/level1" in shown.err and "fast_1.5" in shown.err and "not evaluated: level1/10" in shown.err
    rows = [json.loads(line) for line in (root / "command" / "results.jsonl").read_text().splitlines()]
    assert all(row["judgement"]["details"].get("protocol", "paper") == "paper" for row in rows)
    assert outcomes(rows)["level1/1_Doubled_tanh_", 0] == "correct"
    assert main([*arguments[:3], "kernels:/no/such/folder", *arguments[4:]]) == BAD_USAGE
