"""The parser of `jaxagent`."""

from __future__ import annotations

import argparse

from jaxagent.cli.carrying import add_model, add_run
from jaxagent.cli.judging import add_evaluate, add_judge, add_replay
from jaxagent.cli.training import add_ablate, add_train
from jaxagent.cli.viewing import add_plan, add_views
from jaxagent.synthesis.commands import add_commands as add_synthesis


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxagent", description="Train language models by agentic RL to write fast kernels."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_train(commands)
    add_evaluate(commands)
    add_ablate(commands)
    add_judge(commands)
    add_plan(commands)
    add_model(commands)
    add_run(commands)
    add_replay(commands)
    add_views(commands)
    add_synthesis(commands)
    return parser
