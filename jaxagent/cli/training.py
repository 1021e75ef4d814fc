"""`jaxagent train` and `jaxagent ablate`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from jaxagent.cli.exits import DONE


def add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="run the schedule of a config, or continue a run")
    train.add_argument("config", nargs="?", type=Path, help="a YAML file, for example configs/demo.yaml")
    train.add_argument(
        "--resume",
        type=Path,
        metavar="RUN_DIR",
        help="continue this run after its last checkpoint; "
        "--section.key value changes learning rates, resources and what else is safe",
    )
    train.add_argument(
        "--stop-after",
        type=_seconds,
        metavar="S",
        help="save and end once so many seconds are over, with exit code 4; an update that has begun is finished first",
    )
    train.set_defaults(run=run_train)


def add_ablate(commands: Any) -> None:
    ablate = commands.add_parser("ablate", help="configs that start where a stage of another run ended, in one table")
    ablate.add_argument("run_dir", type=Path)
    ablate.add_argument("configs", nargs="+", type=Path, help="for example configs/ablations/*.yaml")
    ablate.add_argument("--after", default="single_turn", metavar="STAGE")
    ablate.set_defaults(run=run_ablate)


def run_train(arguments: argparse.Namespace) -> int:
    from jaxagent.config.load import ConfigError, load_config

    if arguments.resume is not None:
        if arguments.config is not None:
            raise ConfigError(
                "--resume RUN_DIR takes no config: a resumed run keeps the one it was started with; what may change "
                "in it is named key by key (--stages.NAME.optimizer.learning_rate 1e-6)"
            )
        from jaxagent.commands.train import resume

        asyncio.run(resume(arguments.resume, arguments.overrides, stop_after_s=arguments.stop_after))
        return DONE
    if arguments.config is None:
        raise ConfigError("name a config (jaxagent train configs/demo.yaml) or a run (jaxagent train --resume RUN_DIR)")
    config = load_config(arguments.config, arguments.overrides)
    from jaxagent.commands.train import train

    asyncio.run(train(config, stop_after_s=arguments.stop_after))
    return DONE


def run_ablate(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.ablate import ablate

    asyncio.run(ablate(arguments.run_dir, arguments.configs, after=arguments.after, overrides=arguments.overrides))
    return DONE


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0; write seconds, such as 540")
    return seconds
