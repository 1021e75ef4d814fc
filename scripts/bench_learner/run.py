"""The learner's speed and memory against their targets: `make bench-learner`.

    python scripts/bench_learner/run.py --tunix-python .venv-tunix/bin/python [--parts tunix long_rows] [--rounds 7]

tunix       PPO updates of ours and of google-tunix on the same batches, model, dtype and optimizer, each side in a
            process of its own. Rounds alternate and the first is not counted; a figure is a ratio of seconds (theirs /
            ours), of the minima and of the medians.
long_rows   peak memory of one update on rows of 8k, 32k and 131k tokens (long_rows.py)
gpu         only where asked for: a 0.5B model's updates on one GPU against transformers and the plan (gpu.py)

Ends with one JSON line {"name", "figures", "targets", "ok"}.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGETS = {"dense_5m": 1.15, "ragged_5m": 3.0, "dense_1m": 1.0, "ragged_1m": 3.0}
"""Least ratio of tokens/s, of minima as of medians."""


class Side:
    """One side's process, idle unless asked. It starts at once and is waited for when first asked."""

    def __init__(self, python: str, script: str, size: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / script), size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    @cached_property
    def about(self) -> dict[str, Any]:
        return self._read()

    def ask(self, batch: str, what: str) -> dict[str, Any]:
        """Its answer to one update: seconds, real tokens, and what else it says."""
        self.send(batch, what)
        return self.receive()

    def send(self, batch: str, what: str) -> None:
        assert self._process.stdin is not None
        print(json.dumps({"batch": batch, "what": what}), file=self._process.stdin, flush=True)

    def receive(self) -> dict[str, Any]:
        assert self.about
        return self._read()

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args}: the process ended without an answer; what it said stands above")
        return json.loads(line)


def main() -> None:
    options = parse_options()
    figures: dict[str, Any] = {}
    targets: dict[str, Any] = {}
    ok = True
    if "tunix" in options.parts:
        for size in options.sizes:
            found = against_tunix(size, options)
            figures |= found
            targets |= {name: TARGETS[name.removesuffix("_steps")] for name in found if name != f"sides_{size}"}
        ok = all(
            figures[name][f"{kind}_ratio"] >= least for name, least in targets.items() for kind in ("min", "median")
        )
    if "long_rows" in options.parts:
        rows = of_script("long_rows.py", "--tokens", *map(str, options.tokens))
        figures["long_rows"], targets["long_rows"] = rows["figures"], rows["targets"]
        ok = ok and rows["ok"]
    if "gpu" in options.parts:
        gpu = of_script("gpu.py", "--rounds", str(options.rounds))
        figures["gpu"], targets["gpu"] = gpu["figures"], gpu["targets"]
        ok = ok and gpu["ok"]
    print(json.dumps({"name": "learner", "figures": figures, "targets": targets, "ok": ok}))
    sys.exit(0 if ok else 1)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunix-python", default=".venv-tunix/bin/python")
    parser.add_argument("--parts", nargs="+", choices=("tunix", "long_rows", "gpu"), default=["tunix", "long_rows"])
    parser.add_argument("--sizes", nargs="+", choices=("1m", "5m"), default=["1m", "5m"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32_768, 131_072], help="of long_rows")
    return parser.parse_args()


def against_tunix(size: str, options: argparse.Namespace) -> dict[str, Any]:
    sides = {
        "ours": Side(sys.executable, "ours.py", size),
        "theirs": Side(options.tunix_python, "tunix_side.py", size),
    }
    figures: dict[str, Any] = {f"sides_{size}": [side.about for side in sides.values()]}
    for batch in ("dense", "ragged"):
        for what in ("update", "steps"):
            name = f"{batch}_{size}" + ("_steps" if what == "steps" else "")
            figures[name] = alternate(sides, batch, what, options.rounds)
            print(f"{name:16} {json.dumps(figures[name])}", flush=True)
    for side in sides.values():
        side.close()
    return figures


def alternate(sides: dict[str, Side], batch: str, what: str, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    tokens = 0
    for number in range(rounds + 1):
        for name, side in sides.items():
            answer = side.ask(batch, what)
            tokens = answer["tokens"]
            if number:
                seconds[name].append(round(answer["seconds"], 4))
    figure: dict[str, Any] = {"tokens": tokens}
    for kind, of in (("min", min), ("median", statistics.median)):
        best = {name: of(values) for name, values in seconds.items()}
        figure |= {f"{name}_{kind}_s": round(value, 4) for name, value in best.items()}
        figure[f"{kind}_ratio"] = round(best["theirs"] / best["ours"], 3)
    return figure


def of_script(name: str, *arguments: str) -> dict[str, Any]:
    """What a part's own script says in its last line."""
    done = subprocess.run([sys.executable, str(HERE / name), *arguments], stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    print("\n".join(lines[:-1]), flush=True)
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"{name} ended without its figures; what it said stands above")
    return json.loads(lines[-1])


if __name__ == "__main__":
    main()
