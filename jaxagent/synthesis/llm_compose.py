"""A language model as composer: it is offered operators and answers with JSON, {"ops": […], "code": "…"}.

Replies are kept by question, so a synthesis that is continued asks nothing twice; tokens are counted either way.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Protocol

import jinja2
import numpy as np
import openai
import tenacity

from jaxagent.synthesis.catalogue import RULES
from jaxagent.synthesis.compose import Composed
from jaxagent.synthesis.llm_config import LLMConfig

_STREAM = 0x11E
_RETRIED = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)


class LLMError(RuntimeError):
    """The server cannot be used, or stayed unusable through all retries."""


class _LateError(Exception):
    """No reply within timeout_s. Asked the same again, the model would write as much."""


class ReplyStore(Protocol):
    """Where replies are kept: jaxagent.synthesis.evidence_log.EvidenceLog."""

    def get(self, phase: str, key: str) -> dict[str, Any] | None: ...

    def put(self, phase: str, key: str, evidence: dict[str, Any]) -> None: ...


@dataclass(slots=True)
class Usage:
    """What was asked for and what came back."""

    questions: int = 0
    cached: int = 0
    contract_broken: int = 0
    late: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def dollars(self, config: LLMConfig) -> float:
        spent = self.prompt_tokens * config.dollars_per_million_input
        return (spent + self.completion_tokens * config.dollars_per_million_output) / 1e6


class LLMComposer:
    """Candidates by index, a block at a time. What comes back is text: only the filters say whether it is a task."""

    def __init__(self, config: LLMConfig, seed: int, *, max_operators: int, device: str, store: ReplyStore) -> None:
        self._config, self._seed, self._store = config, seed, store
        self._max_operators, self._device = max_operators, "a CPU" if device == "cpu" else "a GPU"
        self._template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(config.prompt.read_text())
        self.usage = Usage()

    def candidates(self, indices: range) -> list[Composed | None]:
        """In the order of `indices`; None where no reply came in time and kept to the contract. Raises LLMError."""
        questions, late = self.usage.questions, self.usage.late
        found = asyncio.run(self._all(indices))
        if self.usage.late - late == self.usage.questions - questions > 0:
            raise LLMError(
                f"llm.base_url {self._config.base_url}: none of {len(found)} candidates had a reply within "
                f"llm.timeout_s={self._config.timeout_s:g}; raise it, or lower llm.max_tokens or llm.concurrency. "
                "--resume goes on from here"
            )
        return found

    async def _all(self, indices: range) -> list[Composed | None]:
        slots = asyncio.Semaphore(self._config.concurrency)
        async with openai.AsyncOpenAI(
            base_url=self._config.base_url,
            api_key=os.environ.get(self._config.api_key_env) or "none",
            timeout=self._config.timeout_s,
            max_retries=0,
        ) as client:
            return list(await asyncio.gather(*(self._one(client, slots, index) for index in indices)))

    async def _one(self, client: openai.AsyncOpenAI, slots: asyncio.Semaphore, index: int) -> Composed | None:
        messages: list[dict[str, str]] = [{"role": "user", "content": self.question(index)}]
        for attempt in range(self._config.max_attempts):
            try:
                async with slots:
                    text = await self._ask(client, messages, seed=self._seed * 1_000_003 + index * 16 + attempt)
            except _LateError:
                self.usage.late += 1
                continue
            try:
                return parse_reply(text)
            except ValueError as error:
                self.usage.contract_broken += 1
                messages = [
                    messages[0],
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": f"That breaks the contract: {error}. Answer again, JSON only."},
                ]
        return None

    def question(self, index: int) -> str:
        """The prompt with operators drawn for this candidate, families alike."""
        rng = np.random.default_rng([self._seed, _STREAM, index])
        families: dict[str, list[str]] = {}
        for rule in RULES.values():
            families.setdefault(rule.family, []).append(rule.name)
        names: dict[str, None] = {}
        while len(names) < min(self._config.num_offered, len(RULES)):
            family = families[list(families)[rng.integers(len(families))]]
            names[family[rng.integers(len(family))]] = None
        return self._template.render(operators=list(names), max_operators=self._max_operators, device=self._device)

    async def _ask(self, client: openai.AsyncOpenAI, messages: list[dict[str, str]], *, seed: int) -> str:
        settings = {"model": self._config.model, "temperature": self._config.temperature, "seed": seed}
        settings |= {"max_tokens": self._config.max_tokens}
        key = hashlib.sha256(json.dumps([settings, messages], sort_keys=True).encode()).hexdigest()
        reply = self._store.get("reply", key)
        self.usage.questions += 1
        self.usage.cached += reply is not None
        if reply is None:
            reply = await self._send(client, settings, messages)
            self._store.put("reply", key, reply)
        self.usage.prompt_tokens += reply["prompt_tokens"]
        self.usage.completion_tokens += reply["completion_tokens"]
        return reply["text"]

    async def _send(
        self, client: openai.AsyncOpenAI, settings: dict[str, Any], messages: list[dict[str, str]]
    ) -> dict[str, Any]:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_passing),
            stop=tenacity.stop_after_attempt(self._config.max_retries + 1),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=20),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    asked: Any = {"messages": messages, **settings}
                    return _reply(await client.chat.completions.create(**asked))
        except openai.APITimeoutError as error:
            raise _LateError from error
        except openai.OpenAIError as error:
            raise LLMError(
                f"llm.base_url {self._config.base_url}, model {self._config.model}: {type(error).__name__}: {error}. "
                f"Is the server up, and the key in {self._config.api_key_env} right? --resume goes on from here"
            ) from error
        raise AssertionError("unreachable")


def _is_passing(error: BaseException) -> bool:
    return isinstance(error, _RETRIED) and not isinstance(error, openai.APITimeoutError)


def _reply(answer: Any) -> dict[str, Any]:
    """What is kept of a chat completion."""
    used = answer.usage
    return {
        "text": answer.choices[0].message.content or "",
        "prompt_tokens": used.prompt_tokens if used else 0,
        "completion_tokens": used.completion_tokens if used else 0,
    }


def parse_reply(text: str) -> Composed:
    """The task of a reply; a fence around the JSON is allowed. Raises ValueError that says what breaks the contract."""
    body = text.strip()
    fenced = re.search(r"```(?:json)?\s*(\{.*\})\s*```", body, re.DOTALL)
    body = fenced[1] if fenced else body[body.find("{") : body.rfind("}") + 1]
    try:
        reply = json.loads(body, strict=False)  # models write line breaks into strings
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON object ({error})") from None
    if not isinstance(reply, dict) or not isinstance(reply.get("code"), str):
        raise ValueError('the object has no text under "code"')
    ops = reply.get("ops")
    if not isinstance(ops, list) or not ops or not all(isinstance(op, str) for op in ops):
        raise ValueError('the object has no list of names under "ops"')
    families = [RULES[op].family if op in RULES else "unknown" for op in ops]
    return Composed(reply["code"], ops, families, f"torch#{len(ops)}", float("nan"))
