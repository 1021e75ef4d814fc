"""`jaxagent evaluate`, `jaxagent judge` and `jaxagent replay`: verdicts on what is already there."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from jaxagent.cli.exits import DONE


def add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser("evaluate", help="judge a policy, or stored kernels, on a set of tasks")
    evaluate.add_argument("config", type=Path, help="a YAML file: dialogue, skill, engine, sandbox, judge")
    evaluate.add_argument(
        "--policy",
        required=True,
        metavar="P",
        help="a run directory, a Hugging Face model directory, a PEFT adapter, openai:BASE_URL#MODEL, or kernels:DIR",
    )
    evaluate.add_argument(
        "--tasks",
        required=True,
        metavar="SOURCE",
        help="synthetic:heldout (the demo's), or a folder, file or parquet; `jaxagent tasks show SOURCE` lists it",
    )
    evaluate.add_argument("--protocol", choices=["hardened", "paper"], default="hardened")
    evaluate.add_argument("--out", type=Path, required=True, metavar="DIR", help="new, or of an evaluation to continue")
    evaluate.set_defaults(run=run_evaluate)


def add_judge(commands: Any) -> None:
    judge = commands.add_parser("judge", help="judge one workdir (model.py, model_new.py, kernels/)")
    judge.add_argument("workdir", type=Path)
    judge.add_argument("--skill", required=True, help="cpp, cpp_agent, cuda or cuda_agent")
    judge.add_argument("--protocol", choices=["hardened", "paper"], default="hardened")
    judge.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    judge.set_defaults(run=run_judge)


def add_replay(commands: Any) -> None:
    replay = commands.add_parser("replay", help="run a stored trajectory's tool calls again and compare")
    replay.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    replay.add_argument("--trajectory", required=True, metavar="ID", help="as the report shows it: agentic-000012")
    replay.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    replay.set_defaults(run=run_replay)


def run_evaluate(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.evaluate import evaluate_policy

    asyncio.run(
        evaluate_policy(
            arguments.config,
            policy=arguments.policy,
            tasks=arguments.tasks,
            protocol=arguments.protocol,
            out=arguments.out,
            overrides=arguments.overrides,
        )
    )
    print(arguments.out)
    return DONE


def run_judge(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.judge import describe, judge_workdir

    judgement = asyncio.run(judge_workdir(arguments.workdir, skill=arguments.skill, protocol=arguments.protocol))
    if arguments.json:
        print(json.dumps(judgement.to_json()))
    else:
        print("\n".join(describe(judgement)))
    return DONE


def run_replay(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.replay import describe, replay_trajectory, to_json

    comparison = asyncio.run(replay_trajectory(arguments.run_dir, arguments.trajectory))
    print(to_json(comparison) if arguments.json else "\n".join(describe(comparison)))
    return DONE
