"""The folder of a small run, written by the classes that write it in a run, with texts that would like to run as scripts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from planted_tasks import task

from jaxagent.config.load import load_config
from jaxagent.config.run import RunConfig
from jaxagent.evaluation.evaluate import summarize
from jaxagent.evaluation.folder import EvaluationFolder
from jaxagent.evaluation.policy_source import parse_policy
from jaxagent.evaluation.report import make_report
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.files.write import write_json
from jaxagent.models.scratch_tokenizer import save_tokenizer, train_tokenizer
from jaxagent.run.folder import RunFolder, create_run
from jaxagent.run.metrics_log import MetricsLog
from jaxagent.run.token_records import write_token_records
from rollout.chat import ChatFormat
from rollout.store import TrajectoryStore
from rollout.types import StopReason, ToolCall, Trajectory, Turn
from sandbox.tasks import load_tasks
from sandbox.types import Judgement, Outcome

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>\u202e<!-- ]]> {{7*7}} \ud800"
KERNEL = 'extern "C" void run(const float* x, float* y, int n) {\n  for (int i = 0; i < n; i++)\n    y[i] = x[i];\n}\n'
TASK = task("return x * 2", inputs="[torch.randn(4)]")


def make_run(runs_dir: Path, *, name: str) -> RunFolder:
    """The folder that a run of three stages leaves, written by the classes that write it in a run."""
    (runs_dir / "tasks").mkdir(exist_ok=True)
    (runs_dir / "tasks" / "double.py").write_text(TASK)
    config = RunConfig.model_validate({
        "name": name, "runs_dir": runs_dir, "model": {"kind": "scratch"}, "evaluation": {"after": ["expert"]},
        "tasks": {"train": str(runs_dir / "tasks"), "heldout": str(runs_dir / "tasks"), "skill": "cpp <b onclick=alert(1)>"},
        "stages": [
            {"name": "expert", "kind": "sample", "policy": "expert", "trajectories": 3},
            {"name": "tuned", "kind": "finetune", "data": ["expert"], "optimizer": {"learning_rate": 1e-3}},
            {"name": "agentic", "kind": "ppo", "updates": 2, "trajectories_per_update": 4},
        ],
    })  # fmt: skip
    folder = create_run(config)
    folder.initial_model.mkdir()
    save_tokenizer(train_tokenizer([TASK, KERNEL], vocab_size=300), folder.initial_model)
    chat = ChatFormat.from_folder(folder.initial_model)
    with TrajectoryStore(folder.store) as store:
        for number in range(3):
            store.append(make_trajectory(chat, "expert", number, outcome=Outcome.CORRECT, reward=3.0))
        for number in range(8):
            store.append(make_trajectory(chat, "agentic", number, outcome=Outcome.WRONG, reward=-1.0))
        store.append_manifest("agentic", 0, [f"agentic-{n}" for n in range(4)], 5)
        store.drop("agentic-7", "too old")
        num_tokens = sum(len(turn.token_ids) for turn in store.get("agentic-2").turns)
    record = {"ratio": [1.0] * (num_tokens - 1) + [1.5], "advantage": [-2.0] * num_tokens, "value": [None] * num_tokens}
    write_token_records(folder.tokens, "agentic", 0, {"agentic-2": record})
    write_metrics(folder)
    for label, reward in (("expert", -1.0), ("agentic", 2.0)):
        evaluated = [
            make_trajectory(chat, f"evaluation_{label}", n, outcome=Outcome.CORRECT, reward=reward) for n in range(2)
        ]
        with TrajectoryStore(folder.evaluations / label / "store") as store:
            for trajectory in evaluated:
                store.append(trajectory)
        write_json(folder.evaluations / label / "result.json", summarize(label, evaluated, seed=0).to_json())
    write_json(folder.summary, {"name": name, "seconds": 75.0})
    return folder


def make_evaluation(root: Path, *, name: str, finished: bool = True) -> Path:
    """What `jaxagent evaluate` leaves, by the classes that it uses."""
    tasks = root / "tasks" / "level2"
    tasks.mkdir(parents=True, exist_ok=True)
    (tasks / "9_double.py").write_text(TASK)
    (root / "model").mkdir(exist_ok=True)
    (root / "model" / "config.json").write_text("{}")
    save_tokenizer(train_tokenizer([TASK, KERNEL], vocab_size=300), root / "model")
    request = EvaluationRequest(
        config=load_config(Path("configs/demo.yaml"), ["--evaluation.samples_per_task=2"]),
        policy=parse_policy(str(root / "model")), tasks=load_tasks(str(root / "tasks")), out=root / name,
        tasks_source=str(root / "tasks"),
    )  # fmt: skip
    folder, chat = EvaluationFolder(request), ChatFormat.from_folder(root / "model")
    made = [
        make_trajectory(chat, "samples", n, outcome=Outcome.CORRECT, reward=3.0, task="level2/9_double")
        for n in range(2)
    ]
    with TrajectoryStore(folder.store) as store:
        for trajectory in made:
            store.append(trajectory)
    if finished:
        report = make_report(request, made, request.tasks, {"level2/10_gone": "no such operator"})
        folder.write_results(made, report, stored={})
    return request.out


def write_metrics(folder: RunFolder) -> None:
    log = MetricsLog(folder)
    log.write(stage="expert", update=0, values={"mean_reward": 3.0, "outcome_correct": 1.0, "seconds": 10.0})
    log.write(stage="tuned", update=0, values={"entropy": 2.0, "nll": 3.0, "tokens_per_s": 50.0, "seconds": 4.0})
    for update in range(2):
        log.write(stage="agentic", update=update, values={
            "mean_reward": -1.0 + update, "outcome_wrong": 0.75, "outcome_correct": 0.25, "entropy": 1.5,
            "explained_variance": 0.1, "clipped_length_ratio": 0.5, "logprob_gap_mean": 1e-6, "logprob_gap_p50": 0.0,
            "logprob_gap_p99": 1e-5, "ratio_p1": 0.9, "ratio_p50": 1.0, "ratio_p99": 1.1, "staleness_0": 3.0,
            "staleness_2": 1.0, "staleness_10": 4.0, "staleness_mean": 0.5, "tokens_per_s": 100.0, "seconds": 9.0,
            "seconds_waiting": 2.0, "seconds_learning": 6.0, "clip_fraction": 0.1, "profiler_use": 0.5, "engine_use": 0.2,
            "rollout_use": 0.9, "engine_tokens_per_s": 80.0,
        })  # fmt: skip
    log.close()


def make_trajectory(
    chat: ChatFormat, stage: str, number: int, *, outcome: Outcome, reward: float, task: str = "double"
) -> Trajectory:
    """Two versions of a kernel, a malformed call, and in each text what would like to run as a script."""
    judgement = Judgement(
        outcome=outcome, reward=reward, message=f"judged {HOSTILE}", candidate_ms=1.0, eager_ms=2.0, compile_ms=1.5,
        details={"largest_error": math.inf, "words": HOSTILE},
    )  # fmt: skip
    texts = [
        (f"number {number} {HOSTILE}", [call("write", path="kernels/k.cpp", content=KERNEL)], ["created kernels/k.cpp"]),
        ("again", [call("edit", path="kernels/k.cpp", old="x[i];", new=f"2 * x[i]; // {HOSTILE}"),
                   call("bash", command=f"echo {HOSTILE}")], ["edited kernels/k.cpp", HOSTILE]),
        ("<tool_call> broken", [ToolCall(name=HOSTILE, arguments={HOSTILE: HOSTILE}, error=HOSTILE)], ["error: no"]),
    ]  # fmt: skip
    turns = []
    prompt = chat.start("system", TASK)
    for text, calls, observations in texts:
        token_ids = chat.encode_reply(text.encode("utf-8", "replace").decode())
        turns.append(Turn(
            prompt_token_ids=prompt, token_ids=token_ids, logprobs=np.full(len(token_ids), -0.5, np.float32),
            policy_versions=np.full(len(token_ids), 4, np.int32), text=text, tool_calls=calls,
            observations=observations, judgement=judgement,
        ))  # fmt: skip
        prompt = np.concatenate([prompt, token_ids])
    return Trajectory(
        trajectory_id=f"{stage}-{number}", task_id=task, sample_index=number, stage=stage, seed=0, turns=turns,
        judgement=judgement, stop_reason=StopReason.MAX_TURNS if number % 2 else StopReason.FINISHED, seconds=1.0,
    )  # fmt: skip


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)
