"""`jaxagent tasks check` and `jaxagent synthesize`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Adds this package's subcommands to the parser of `jaxagent`."""
    tasks = commands.add_parser("tasks", help="check a set of tasks")
    actions = tasks.add_subparsers(dest="action", required=True)
    check = actions.add_parser("check", help="run every filter over a folder or parquet and print the funnel")
    check.add_argument("path", type=Path, metavar="PATH", help="a folder of .py files, a .py file, or a .parquet")
    check.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else")
    check.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="what tasks run on (default: cpu)")
    check.add_argument("--min-ms", type=float, help="least eager time (default: 1)")
    check.add_argument("--max-ms", type=float, help="largest eager time (default: 100)")
    check.add_argument("--kernelbench", type=Path, metavar="DIR", help="a checkout of KernelBench to keep away from")
    check.set_defaults(run=run_check)


def run_check(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from jaxagent.synthesis.check_command import check_path
    from jaxagent.synthesis.funnel import funnel_json, print_funnel

    given = {"min_ms": arguments.min_ms, "max_ms": arguments.max_ms, "kernelbench": arguments.kernelbench}
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
