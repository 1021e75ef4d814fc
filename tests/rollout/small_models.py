"""Random models of a few thousand parameters, their weights by name, and what transformers makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config

from rollout.config import EngineConfig
from rollout.engine import VllmEngine
from rollout.types import Completion, SamplingParams

VOCAB = 192
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.1,
}
CONFIG = EngineConfig(
    max_model_len=256, max_num_seqs=16, kv_cache_gib=0.125, cpu_threads=1, start_timeout_s=300.0, publish_timeout_s=60.0
)
LARGEST_GAP = 1e-4  # of a float32 logprob


def make_model(config: LlamaConfig | Qwen2Config, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # their initial zeros and ones would hide a bias left behind
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    return model


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, np.ndarray]]:
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            yield name, tensor.numpy()


def reference_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], token_ids: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """[T] logprobs of `token_ids` after `prompt`, by transformers."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *token_ids.tolist()]])).logits[0].float() / temperature
    chosen = torch.tensor(token_ids.astype(np.int64))
    return logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, chosen[:, None])[:, 0].numpy()


def prompts(count: int, length: int = 20) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, length).tolist() for _ in range(count)]


async def generate_all(
    engine: VllmEngine, count: int, *, max_tokens: int = 40, temperature: float = 1.0
) -> list[Completion]:
    return await asyncio.gather(
        *(
            engine.generate(
                prompt, SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=index), f"d{index}"
            )
            for index, prompt in enumerate(prompts(count))
        )
    )


def largest_gap(model: PreTrainedModel, completions: Sequence[Completion], temperature: float = 1.0) -> float:
    return max(
        float(np.abs(reference_logprobs(model, prompt, found.token_ids, temperature) - found.logprobs).max())
        for prompt, found in zip(prompts(len(completions)), completions, strict=True)
    )
