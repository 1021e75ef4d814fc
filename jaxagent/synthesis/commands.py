"""`jaxagent tasks show|check|clean|catalogue` and `jaxagent synthesize`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Adds this package's subcommands to the parser of `jaxagent`."""
    tasks = commands.add_parser("tasks", help="look at a set of tasks, or check it")
    actions = tasks.add_subparsers(dest="action", required=True)
    show = actions.add_parser("show", help="the tasks of a source by id, or the model.py of one")
    show.add_argument(
        "source",
        metavar="SOURCE",
        help="synthetic:train or synthetic:heldout (the demo's), a folder of .py files, a .py file, or a .parquet",
    )
    show.add_argument("task_id", nargs="?", metavar="TASK_ID", help="print its model.py (default: list all tasks)")
    show.set_defaults(run=run_show)

    check = actions.add_parser("check", help="run every filter over a folder or parquet and print the funnel")
    check.add_argument(
        "path", type=Path, metavar="PATH", help="a folder of .py files, a .py file, a .parquet, or synthetic:train"
    )
    check.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    check.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="what tasks run on (default: cpu)")
    check.add_argument("--min-ms", type=float, help="least eager time (default: 1)")
    check.add_argument("--max-ms", type=float, help="largest eager time (default: 100)")
    check.add_argument("--max-operators", type=int, help="that run in one forward pass (default: 5)")
    check.add_argument("--kernelbench", type=Path, metavar="DIR", help="a checkout of KernelBench to keep away from")
    check.set_defaults(run=run_check)

    clean = actions.add_parser("clean", help="drop repeats of an Ops-6K parquet, derive its labels again, and split it")
    clean.add_argument("path", type=Path, metavar="PATH", help="a parquet in the Ops-6K schema")
    clean.add_argument("--out", type=Path, required=True, metavar="FILE", help="the parquet to write")
    clean.add_argument(
        "--validation", type=float, default=0.1, help="share of tasks in split validation (default: 0.1)"
    )
    clean.add_argument("--seed", type=int, default=0, help="which groups of tasks go to validation")
    clean.set_defaults(run=run_clean)

    catalogue = actions.add_parser("catalogue", help="operators of the installed torch and transformers")
    catalogue.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file to write")
    catalogue.set_defaults(run=run_catalogue)

    synthesize = commands.add_parser("synthesize", help="compose tasks and keep those that pass every filter")
    synthesize.add_argument("config", type=Path, help="a YAML file, for example configs/synthesis_cpu.yaml")
    synthesize.add_argument("--out", type=Path, required=True, metavar="FILE", help="the parquet to write")
    synthesize.add_argument("--resume", action="store_true", help="continue where an earlier call was ended")
    synthesize.set_defaults(run=run_synthesize)


def run_show(arguments: argparse.Namespace) -> int:
    from jaxagent.synthesis.show_command import list_tasks, task_text

    if arguments.task_id is not None:
        sys.stdout.write(task_text(arguments.source, arguments.task_id))
        return 0
    for task_id, line in list_tasks(arguments.source):
        print(f"{task_id}\t{line}")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from jaxagent.synthesis.check_command import check_path
    from jaxagent.synthesis.funnel import funnel_json, print_funnel

    given = {key: getattr(arguments, key) for key in ("min_ms", "max_ms", "max_operators", "kernelbench")}
    tasks = check_path(
        arguments.path,
        filters={key: value for key, value in given.items() if value is not None},
        device=arguments.device,
        console=Console(stderr=True),
    )
    if arguments.json:
        rows = [
            {"file": task.name, "kept": task.kept, "reason": None if task.finding is None else str(task.finding.reason)}
            | ({} if task.finding is None else {"detail": task.finding.detail})
            for task in tasks
        ]
        json.dump({"tasks": rows} | funnel_json(tasks), sys.stdout)
        print()
    else:
        print_funnel(tasks, Console())
        for task in tasks:
            print(f"{task.name}\t{'kept' if task.finding is None else task.finding.reason}")
    return 0


def run_clean(arguments: argparse.Namespace) -> int:
    from jaxagent.synthesis.ops6k import clean, export_ops6k, load_ops6k, split_by_family

    cleaned = clean(load_ops6k(arguments.path))
    splits = split_by_family(cleaned.rows, validation=arguments.validation, seed=arguments.seed)
    for row, split in zip(cleaned.rows, splits, strict=True):
        row.metadata["split"] = split
    export_ops6k(cleaned.rows, arguments.out)
    print(
        f"{len(cleaned.rows)} tasks, {splits.count('validation')} of them in validation; dropped "
        f"{len(cleaned.duplicates)} repeats and {len(cleaned.broken)} that are no Python; "
        f"{len(cleaned.mislabelled)} rows declared operators that they do not call"
    )
    return 0


def run_catalogue(arguments: argparse.Namespace) -> int:
    from jaxagent.synthesis.catalogue.mine import mine

    catalogue = mine()
    arguments.out.write_text(json.dumps(catalogue.to_json(), indent=1), encoding="utf-8")
    print(
        f"{catalogue.count('rule')} operators with a rule, {catalogue.count('left out')} left out, "
        f"{catalogue.count('unknown')} unknown: {arguments.out}"
    )
    return 0


def run_synthesize(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from jaxagent.synthesis.config import load_synthesis_config
    from jaxagent.synthesis.synthesize import synthesize

    config = load_synthesis_config(arguments.config)
    summary = synthesize(config, arguments.out, resume=arguments.resume, console=Console(stderr=True))
    print(f"{summary['tasks']} tasks over {summary['operators']} operators: {arguments.out}")
    return 0
