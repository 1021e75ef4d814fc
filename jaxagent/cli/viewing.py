"""`jaxagent plan`, `jaxagent report` and `jaxagent watch`: what is to be read about a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from jaxagent.cli.exits import DONE


def add_plan(commands: Any) -> None:
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


def add_views(commands: Any) -> None:
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
