"""The `jaxagent` command. Every subcommand imports what it needs itself, so that each starts fast.

Exit codes: 0 done (a refused candidate is done), 2 bad usage or config, 3 our own failure, 4 time is up (--stop-after)
and the run can be resumed, 128 + N stopped by signal N.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxagent.commands.stopping import StoppedError
from jaxagent.files.disk import disk_full
from jaxagent.run.time_limit import TimeUpError
from jaxagent.synthesis.commands import add_commands as add_synthesis

DONE, BAD_USAGE, FAILED, TIME_UP = 0, 2, 3, 4
OUR_PACKAGES = ("jaxagent", "rollout", "sandbox")

OWN_FLAGS = {
    "train": ("--resume", "--stop-after", "--help"),
    "evaluate": ("--policy", "--tasks", "--protocol", "--out", "--help"),
    "ablate": ("--after", "--help"),
    "plan": ("--devices", "--accelerator", "--memory-gib", "--efficiency", "--json", "--help"),
}
"""Commands that take overrides of the config, `--section.key value`, beside these flags."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    own, overrides = split_overrides(sys.argv[1:] if arguments is None else arguments)
    parsed = parser.parse_args(own)
    parsed.overrides = overrides
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return parsed.run(parsed)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except StoppedError as error:
        return error.exit_code
    except Exception as error:  # of our own classes or the system's; a bug keeps its traceback
        code = exit_code(error)
        if code is None:
            raise
        print(f"jaxagent {parsed.command}: {explain(error)}", file=sys.stderr)
        return code


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that argparse reads, and the overrides: it would take an override's value for a positional."""
    command, *rest = arguments or [""]
    if command not in OWN_FLAGS:
        return list(arguments), []
    own, overrides = [command], []
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if not flag.startswith("--") or flag in OWN_FLAGS[command]:
            own.append(word)
        else:
            overrides.append(word)
            overrides += [rest.pop(0)] if rest and not equals else []
    return own, overrides


def exit_code(error: Exception) -> int | None:
    """2 for what the user can correct, 3 for what failed around us; None is a bug and deserves its traceback.

    An exception class of our own carries a message for people: a ValueError among them is about input.
    """
    if isinstance(error, TimeUpError):
        return TIME_UP
    if type(error).__module__.partition(".")[0] in OUR_PACKAGES:
        return BAD_USAGE if isinstance(error, ValueError) else FAILED
    return FAILED if isinstance(error, OSError) else None


def explain(error: Exception) -> str:
    """The error's text; where it is the system's own about a full disk, with what to do."""
    is_ours = type(error).__module__.partition(".")[0] in OUR_PACKAGES
    if is_ours or disk_full(error) is None:
        return str(error)
    return f"{error}. Nothing half-written stays; free some space, then run the command again (a run: with --resume)"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxagent", description="Train language models by agentic RL to write fast kernels."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

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

    _add_evaluate(commands)

    ablate = commands.add_parser("ablate", help="configs that start where a stage of another run ended, in one table")
    ablate.add_argument("run_dir", type=Path)
    ablate.add_argument("configs", nargs="+", type=Path, help="for example configs/ablations/*.yaml")
    ablate.add_argument("--after", default="single_turn", metavar="STAGE")
    ablate.set_defaults(run=run_ablate)

    judge = commands.add_parser("judge", help="judge one workdir (model.py, model_new.py, kernels/)")
    judge.add_argument("workdir", type=Path)
    judge.add_argument("--skill", required=True, help="cpp, cpp_agent, cuda or cuda_agent")
    judge.add_argument("--protocol", choices=["hardened", "paper"], default="hardened")
    judge.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    judge.set_defaults(run=run_judge)

    _add_plan(commands)
    _add_model(commands)
    _add_run(commands)

    replay = commands.add_parser("replay", help="run a stored trajectory's tool calls again and compare")
    replay.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    replay.add_argument("--trajectory", required=True, metavar="ID", help="as the report shows it: agentic-000012")
    replay.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    replay.set_defaults(run=run_replay)

    _add_views(commands)
    add_synthesis(commands)
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0; write seconds, such as 540")
    return seconds


def _add_views(commands: Any) -> None:
    report = commands.add_parser(
        "report", help="one HTML file with the curves and trajectories of runs, or the results of evaluations"
    )
    report.add_argument("run_dirs", nargs="+", type=Path, metavar="DIR", help="of runs or of evaluations")
    report.add_argument("--open", action="store_true", help="show it in the browser")
    report.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: RUN_DIR/report.html)")
    report.set_defaults(run=run_report)

    watch = commands.add_parser("watch", help="a run's essentials in the terminal, while it goes on")
    watch.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    watch.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between two looks (2)")
    watch.add_argument("--once", action="store_true", help="print what there is and end")
    watch.set_defaults(run=run_watch)


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser("evaluate", help="judge a policy, or stored kernels, on a set of tasks")
    evaluate.add_argument("config", type=Path, help="a YAML file: dialogue, skill, engine, sandbox, judge")
    evaluate.add_argument(
        "--policy",
        required=True,
        metavar="P",
        help="a run directory, a Hugging Face model directory, a PEFT adapter, openai:BASE_URL#MODEL, or kernels:DIR",
    )
    evaluate.add_argument("--tasks", required=True, metavar="DIR", help="a folder, file or parquet of tasks")
    evaluate.add_argument("--protocol", choices=["hardened", "paper"], default="hardened")
    evaluate.add_argument("--out", type=Path, required=True, metavar="DIR", help="new, or of an evaluation to continue")
    evaluate.set_defaults(run=run_evaluate)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="memory, traffic and time of a config's updates, without its devices")
    plan.add_argument("config", type=Path, help="a YAML file; --section.key value changes it")
    plan.add_argument("--devices", type=int, metavar="N", help="what learner.mesh multiplies to (default: as it is)")
    plan.add_argument("--accelerator", choices=["a100", "h100", "h200", "h20", "b200"], default="h200")
    plan.add_argument("--memory-gib", type=float, metavar="GIB", help="of a device (default: the accelerator's)")
    plan.add_argument(
        "--efficiency", type=float, default=0.5, metavar="SHARE", help="of the peak rate that computation is to reach"
    )
    plan.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    plan.set_defaults(run=run_plan)


def _add_model(commands: Any) -> None:
    model = commands.add_parser("model", help="fetch or export a model")
    actions = model.add_subparsers(dest="action", required=True)
    fetch = actions.add_parser("fetch", help="a Hugging Face folder of a named model")
    fetch.add_argument("name")
    fetch.add_argument("--out", type=Path, required=True)
    fetch.set_defaults(run=run_model_fetch)
    export = actions.add_parser("export", help="a run's actor as a Hugging Face folder")
    export.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    export.add_argument("out", type=Path, metavar="DIR", help="a new or empty folder")
    export.add_argument(
        "--stage", metavar="NAME", help="as it was at the end of this stage (default: newest checkpoint)"
    )
    export.set_defaults(run=run_model_export)


def _add_run(commands: Any) -> None:
    run = commands.add_parser("run", help="carry a run from one machine to another")
    actions = run.add_subparsers(dest="action", required=True)
    pack = actions.add_parser("pack", help="a run with adapters as at most eight files of 16 MiB")
    pack.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    pack.add_argument("out", type=Path, metavar="DIR", help="a new or empty folder")
    pack.add_argument(
        "--after", metavar="STAGE", help="as it was at the end of this stage (default: newest checkpoint)"
    )
    pack.add_argument("--max-mib", type=float, default=64.0, metavar="MIB", help="of all its files together (64)")
    pack.set_defaults(run=run_pack)
    unpack = actions.add_parser("unpack", help="the run folder of a pack, for `jaxagent train --resume`")
    unpack.add_argument("pack", type=Path, metavar="DIR")
    unpack.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a new or empty folder")
    unpack.set_defaults(run=run_unpack)


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


def run_ablate(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.ablate import ablate

    asyncio.run(ablate(arguments.run_dir, arguments.configs, after=arguments.after, overrides=arguments.overrides))
    return DONE


def run_judge(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.judge import judge_workdir

    judgement = asyncio.run(judge_workdir(arguments.workdir, skill=arguments.skill, protocol=arguments.protocol))
    if arguments.json:
        print(json.dumps(judgement.to_json()))
    else:
        print(f"{judgement.outcome}, reward {judgement.reward}\n{judgement.message}")
    return DONE


def run_replay(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.replay import describe, replay_trajectory, to_json

    comparison = asyncio.run(replay_trajectory(arguments.run_dir, arguments.trajectory))
    print(to_json(comparison) if arguments.json else "\n".join(describe(comparison)))
    return DONE


def run_plan(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.plan import plan_run

    text = plan_run(
        arguments.config,
        devices=arguments.devices,
        accelerator=arguments.accelerator,
        memory_gib=arguments.memory_gib,
        efficiency=arguments.efficiency,
        overrides=arguments.overrides,
        as_json=arguments.json,
    )
    print(text)
    return DONE


def run_model_fetch(arguments: argparse.Namespace) -> int:
    from jaxagent.models.fetch import fetch_model

    print(fetch_model(arguments.name, arguments.out))
    return DONE


def run_pack(arguments: argparse.Namespace) -> int:
    _only_read_checkpoints()
    from jaxagent.commands.pack import pack_run

    packed = pack_run(arguments.run_dir, arguments.out, after=arguments.after, max_mib=arguments.max_mib)
    at = f"stage {packed.stage} after {packed.updates} updates" if packed.stage else "no checkpoint yet"
    log = "the whole log" if packed.whole else "of the log what later updates read"
    print(f"{at}, {log}, {packed.size_bytes / 2**20:.1f} MiB", file=sys.stderr)
    print(packed.path)
    return DONE


def run_unpack(arguments: argparse.Namespace) -> int:
    _only_read_checkpoints()
    from jaxagent.commands.pack import unpack_run

    print(unpack_run(arguments.pack, arguments.run_dir))
    return DONE


def _only_read_checkpoints() -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")  # reading and writing files needs no accelerator, which may be in use
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns that it only reads, which is what is wanted


def run_model_export(arguments: argparse.Namespace) -> int:
    _only_read_checkpoints()
    from jaxagent.learner.export import export_run

    exported = export_run(arguments.run_dir, arguments.out, stage=arguments.stage)
    print(f"stage {exported.stage} after {exported.updates} updates", file=sys.stderr)
    print(exported.path)
    return DONE


def run_report(arguments: argparse.Namespace) -> int:
    from jaxagent.report import write_report

    path = write_report(arguments.run_dirs, out=arguments.out)
    print(path)
    if arguments.open:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            print("no browser could be started here; open the file by hand", file=sys.stderr)
    return DONE


def run_watch(arguments: argparse.Namespace) -> int:
    from jaxagent.commands.watch import watch

    watch(arguments.run_dir, interval_s=max(arguments.interval, 0.1), once=arguments.once)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
