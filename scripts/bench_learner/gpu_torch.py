"""The usual way: a PPO actor step of transformers with SDPA under torch.compile, one row at a time.

Weights, gradients and AdamW's moments are bfloat16, which is less work and memory than float32 ones, and no entropy is
computed. One of two ways to attend, each in a process of its own:
    causal     a row as one text, without any mask, so that SDPA takes its flash kernels: tokens see the trajectories
               before their own, which is not what PPO asks for. Compiled as a whole.
    isolated   a mask keeps trajectories apart, as transformers makes one for packed rows. Compiled layer by layer.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gpu_case import B1, B2, CLIP_HIGH, CLIP_LOW, LEARNING_RATE, MAX_GRAD_NORM, NUMBERS, ROPE_THETA, Case, draw
from transformers import Qwen2Config, Qwen2ForCausalLM
from worker import Update, serve


def main(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    row_tokens = options["row_tokens"]
    case = draw(options["rows"], row_tokens, least=options["least"], greatest=options["greatest"])
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(qwen_config(row_tokens)).to(torch.bfloat16)
    model.train()
    last: dict[str, float] = {}
    update = make_update(model, case, row_tokens, isolated=options["attends"] == "isolated", last=last)
    serve(
        {("case", "actor"): (update, sum(case.lengths))},
        lambda: last | {"peak_bytes": peak_bytes()},
        side=f"transformers, {options['attends']}",
        torch=torch.__version__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def peak_bytes() -> int:
    """The cache is given back for the sides that share the device."""
    torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated()


def qwen_config(row_tokens: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=NUMBERS["vocab_size"],
        hidden_size=NUMBERS["hidden_size"],
        intermediate_size=NUMBERS["intermediate_size"],
        num_hidden_layers=NUMBERS["num_layers"],
        num_attention_heads=NUMBERS["num_heads"],
        num_key_value_heads=NUMBERS["num_kv_heads"],
        rms_norm_eps=NUMBERS["rms_norm_eps"],
        rope_theta=ROPE_THETA,
        max_position_embeddings=max(row_tokens, 32_768),
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )


def make_update(
    model: Qwen2ForCausalLM, case: Case, row_tokens: int, *, isolated: bool, last: dict[str, float]
) -> Update:
    places = [np.arange(length) for length in case.lengths]
    ids, positions, mask, advantages = (
        torch.from_numpy(case.packed(arrays, row_tokens)).cuda()
        for arrays in (case.token_ids, places, case.masks, case.advantages)
    )
    ids, weights = ids.long(), mask / mask.sum()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(B1, B2), fused=True)
    row_loss = compiled_loss(model, layer_by_layer=isolated)

    def update() -> None:
        total = torch.zeros((), device="cuda")
        for row in range(len(ids)):
            at = slice(row, row + 1)
            visible = visible_keys(positions[row]) if isolated else None
            loss = row_loss(ids[at], positions[at], visible, weights[at], advantages[at])
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        last.update(loss=float(total), grad_norm=float(norm))

    return update


def compiled_loss(model: Qwen2ForCausalLM, *, layer_by_layer: bool) -> Any:
    """(ids, positions, visible keys, weights, advantages) of a row -> its part of the loss."""

    def surrogate(hidden: Any, ids: Any, weights: Any, advantages: Any) -> Any:
        logits = model.lm_head(hidden[:, :-1]).float()
        logprobs = -F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        ratio, advantage = torch.exp(logprobs - logprobs.detach()), advantages[:, 1:].flatten()
        clipped = torch.clamp(ratio, 1 - CLIP_LOW, 1 + CLIP_HIGH)
        return -(weights[:, 1:].flatten() * torch.minimum(ratio * advantage, clipped * advantage)).sum()

    score = torch.compile(surrogate) if layer_by_layer else surrogate

    def loss(ids: Any, positions: Any, visible: Any, weights: Any, advantages: Any) -> Any:
        # A mask that is given, even as None, keeps transformers from making its own.
        given = {"full_attention": visible}
        hidden = model.model(input_ids=ids, position_ids=positions, attention_mask=given, use_cache=False)
        return score(hidden.last_hidden_state, ids, weights, advantages)

    if not layer_by_layer:
        return torch.compile(loss)
    for layer in model.model.layers:
        layer.compile()
    return loss


def visible_keys(positions: Any) -> Any:
    """[1, 1, T, T]: earlier tokens of the same trajectory."""
    segments = (positions == 0).cumsum(0)
    return (segments[:, None] == segments[None, :]).tril()[None, None]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
