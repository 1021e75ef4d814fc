"""What vLLM is asked for, and its answer as the project has it: token ids and sampling parameters, a Completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rollout.config import EngineConfig
from rollout.types import Completion, EngineError, SamplingParams

MIN_TEMPERATURE = 0.01
"""vLLM raises a smaller T > 0 to this, silently: then T would not be what the learner assumes."""


def check_request(
    prompt: list[int], params: SamplingParams, *, config: EngineConfig, vocab_size: int, model_dir: Path
) -> None:
    """Raises ValueError for a request that the engine of `model_dir` cannot serve."""
    if not 0 < len(prompt) < config.max_model_len:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens; with engine.max_model_len="
            f"{config.max_model_len} it may have 1 to {config.max_model_len - 1}"
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ValueError(
            f"the prompt's token ids run from {min(prompt)} to {max(prompt)}; the model knows 0 to "
            f"{vocab_size - 1}. Is the tokenizer that of {model_dir}?"
        )
    if params.max_tokens < 1:
        raise ValueError(f"max_tokens={params.max_tokens}: at least one token has to be sampled")
    if params.temperature < 0 or 0 < params.temperature < MIN_TEMPERATURE:
        raise ValueError(f"temperature={params.temperature}: use 0 (argmax), or at least {MIN_TEMPERATURE}")


def vllm_params(params: SamplingParams, *, num_prompt_tokens: int, config: EngineConfig) -> Any:
    """vLLM's sampling parameters; a request ends with the context at the latest."""
    from vllm import SamplingParams as VllmSamplingParams
    from vllm.sampling_params import RequestOutputKind

    return VllmSamplingParams(
        max_tokens=min(params.max_tokens, config.max_model_len - num_prompt_tokens),
        temperature=params.temperature,
        top_p=1.0,
        seed=None if params.seed is None else params.seed % 2**63,
        stop_token_ids=list(params.stop_token_ids),
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def vllm_prompt(prompt: list[int]) -> Any:
    from vllm.inputs import tokens_input

    return tokens_input(prompt)


def completion(output: Any, versions: np.ndarray | None, request_id: str) -> Completion:
    """Raises EngineError where vLLM has ended a request in another way than by sampling its last token."""
    sample = output.outputs[0] if output is not None and output.outputs else None
    if sample is None or versions is None or sample.finish_reason not in ("stop", "length"):
        reason = None if sample is None else sample.finish_reason
        raise EngineError(f"{request_id} ended with {reason!r} instead of 'stop' or 'length'")
    token_ids = np.asarray(sample.token_ids, np.int32)
    logprobs = np.asarray(sample.logprobs.logprobs, np.float32)
    if logprobs.shape != token_ids.shape or (versions < 0).any():
        raise EngineError(
            f"{request_id}: {len(token_ids)} tokens came with {len(logprobs)} logprobs and versions "
            f"{versions.tolist()}; each token needs one of both"
        )
    return Completion(
        token_ids=token_ids, logprobs=logprobs, policy_versions=versions, finish_reason=sample.finish_reason
    )
