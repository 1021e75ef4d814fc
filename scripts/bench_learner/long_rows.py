"""Peak memory and time of one actor or critic update on a single long row, a process of its own for each figure.

    python scripts/bench_learner/long_rows.py --tokens 8192 32768 131072 --networks actor critic

Two layers of 128 under a vocabulary of 151,936: attention and logits are what grows. The updates are the learner's own
(`Steps.ppo`, `Steps.value`), with both networks and their optimizers in memory as in training. Prints a line of text
per figure and one JSON line at the end: the process's peak resident memory (ru_maxrss) against --limit-gib, and whether
memory grows linearly with length.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 151_936


def main() -> None:
    options = parse_options()
    if options.alone:
        print(json.dumps(one_update(options.networks[0], options.tokens[0], options)))
        return
    figures: dict[str, Any] = {}
    for network in options.networks:
        for tokens in options.tokens:
            figure = in_a_process(network, tokens, options)
            figures[f"{network}_{tokens}"] = figure
            print(f"{network:7} {tokens:8,} tokens   {figure['peak_gib']:6.2f} GiB   {figure['seconds']:8.1f} s"
                  f"   {'#' * round(8 * figure['peak_gib'])}", flush=True)  # fmt: skip
    targets = {"peak_gib": options.limit_gib, "growth": "at most linear in tokens"}
    ok = all(figure["peak_gib"] <= options.limit_gib for figure in figures.values()) and grows_linearly(figures)
    print(json.dumps({"name": "long_rows", "figures": figures, "targets": targets, "ok": ok}))
    sys.exit(0 if ok else 1)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32_768, 131_072])
    parser.add_argument("--networks", nargs="+", choices=("actor", "critic"), default=["actor", "critic"])
    parser.add_argument("--remat", choices=("true", "keep_attention"), default="keep_attention")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of activations")
    parser.add_argument("--block", type=int, default=512, help="tile of attention, tokens")
    parser.add_argument("--limit-gib", type=float, default=8.0)
    parser.add_argument("--alone", action="store_true", help="this process computes the first of each and reports")
    return parser.parse_args()


def in_a_process(network: str, tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", "--networks", network, "--tokens", str(tokens)]
    for name in ("remat", "dtype", "block"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{network} at {tokens:,} tokens: the update's process ended with code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def grows_linearly(figures: dict[str, Any]) -> bool:
    """Between any two lengths, memory grows by no larger factor than the length does."""
    for network in ("actor", "critic"):
        points = sorted((f["tokens"], f["peak_gib"]) for f in figures.values() if f["network"] == network)
        if any(b[1] / a[1] > b[0] / a[0] for a, b in zip(points, points[1:], strict=False)):
            return False
    return True


def one_update(network: str, tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    steps, minibatch = built(tokens, options)
    from jaxagent.config.stages import OptimizerConfig
    from jaxagent.learner.types import Targets

    rng, cfg = np.random.default_rng(1), OptimizerConfig(learning_rate=1e-5)
    signal = np.where(minibatch.packed.batch.loss_mask, rng.normal(size=minibatch.batch.token_ids.shape), 0)
    signal = minibatch.put(signal.astype(np.float32))
    started = time.perf_counter()
    if network == "actor":
        output = steps.ppo(minibatch, Targets(advantages=signal), cfg, temperature=1.0)
    else:
        output = steps.value(minibatch, signal, cfg)
    seconds, finite = time.perf_counter() - started, bool(output.finite)
    if not finite:
        raise SystemExit("the update was skipped: its loss or gradient isn't finite")
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"network": network, "tokens": tokens, "peak_gib": round(peak_gib, 3), "seconds": round(seconds, 1),
            "loss": float(output.loss), "grad_norm": float(output.grad_norm), "finite": finite}  # fmt: skip


def built(tokens: int, options: argparse.Namespace) -> tuple[Any, Any]:
    """The learner's steps and one trajectory that fills its row. JAX is imported here, not in the parent."""
    from jaxagent.batches.minibatch import Minibatch
    from jaxagent.batches.sequences import TokenSequence
    from jaxagent.config.learner import LearnerConfig
    from jaxagent.learner.steps import Steps
    from jaxagent.models.config import ComputeConfig, DecoderConfig
    from jaxagent.models.decoder import new_decoder
    from jaxagent.models.value import Critic

    shape = DecoderConfig(family="llama", vocab_size=VOCAB, hidden_size=128, intermediate_size=384, num_layers=2,
                          num_heads=2, num_kv_heads=2, head_dim=64, tie_embeddings=True)  # fmt: skip
    remat = True if options.remat == "true" else options.remat
    compute = ComputeConfig(dtype=options.dtype, remat=remat, block_q=options.block, block_kv=options.block)
    config = LearnerConfig(row_tokens=tokens, rows_per_microbatch=1)
    actor = new_decoder(shape, compute, seed=0)
    steps = Steps(actor, Critic.from_decoder(actor), config=config, dump_dir=Path(tempfile.gettempdir()))
    del actor
    rng = np.random.default_rng(0)
    mask = np.arange(tokens) >= tokens // 8  # a prompt, then the policy's own tokens
    sequence = TokenSequence(
        trajectory_id="long",
        token_ids=rng.integers(0, VOCAB, tokens).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -12, 0).astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        truncated=False,
    )
    return steps, Minibatch.of([sequence], [1.0], config=config, row_tokens=tokens, mesh=steps.mesh)


if __name__ == "__main__":
    main()
