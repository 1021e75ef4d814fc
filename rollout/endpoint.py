"""A policy behind any OpenAI-compatible server: text in, text out, tool calls in the text as for our own engines.

Its trajectories carry no token ids, so they serve evaluation and comparison, not training.
"""

from __future__ import annotations

import os
from typing import Any, cast

import openai
import tenacity

from rollout.config import EndpointConfig
from rollout.scripted import text_completion
from rollout.types import ContextFullError, Reply, RolloutError, Usage

_RETRIED = (
    openai.APIConnectionError,  # also time-outs
    openai.RateLimitError,
    openai.InternalServerError,
    openai.ConflictError,
)
_MIN_REPLY_TOKENS = 16
_CHARS_PER_TOKEN = 3.0
"""A careful guess for text that the server has not counted yet."""


class EndpointError(RolloutError):
    """The server cannot be used, or stayed unusable through all retries. The message says what to change."""


class EndpointPolicy:
    """Policy over chat completions. Close it (or leave its `async with`) to free its connections."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        # An unset key is no error here: most servers on one's own machine want none. A 401 then names the variable.
        key = os.environ.get(config.api_key_env) or "none"
        self._client = openai.AsyncOpenAI(
            base_url=config.base_url, api_key=key, timeout=config.timeout_s, max_retries=0
        )
        self._limit_field = "max_tokens"

    def open(
        self, *, system: str, user: str, session_id: str, seed: int, max_context: int, max_reply: int,
        temperature: float,
    ) -> EndpointDialogue:  # fmt: skip
        return EndpointDialogue(
            self, system=system, user=user, seed=seed, max_context=max_context, max_reply=max_reply,
            temperature=temperature,
        )  # fmt: skip

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> EndpointPolicy:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Asks the server for its models: before anything is spent. Raises EndpointError with what to change."""
        try:
            models = [model.id for model in (await self._client.models.list()).data]
        except openai.NotFoundError:
            return  # not every server lists its models; the first request will tell
        except (openai.APIError, openai.OpenAIError) as error:
            raise await self._explain(error) from error
        if models and self.config.model not in models:
            config = self.config
            raise EndpointError(
                f"endpoint {config.base_url}: no model {config.model!r} there; it serves {', '.join(models[:10])}"
            )

    async def complete(self, messages: list[dict[str, str]], *, max_tokens: int, **sampling: Any) -> Any:
        """One chat completion (openai.types.chat.ChatCompletion), retried where that can help.

        Raises ContextFullError when the server says that the conversation is too long, EndpointError otherwise.
        """
        try:
            return await self._with_retries(messages, max_tokens, sampling)
        except openai.BadRequestError as error:
            if _is_context_error(error):
                raise ContextFullError(str(error)) from error
            if self._limit_field == "max_tokens" and "max_completion_tokens" in str(error):
                self._limit_field = "max_completion_tokens"  # newer OpenAI models take only this one
                return await self.complete(messages, max_tokens=max_tokens, **sampling)
            raise await self._explain(error, attempts=self.config.max_retries + 1) from error
        except (openai.APIError, openai.OpenAIError) as error:
            raise await self._explain(error, attempts=self.config.max_retries + 1) from error

    async def _with_retries(self, messages: list[dict[str, str]], max_tokens: int, sampling: dict[str, Any]) -> Any:
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_RETRIED),
            stop=tenacity.stop_after_attempt(self.config.max_retries + 1),
            wait=_wait,
            reraise=True,
        )
        request: dict[str, Any] = {self._limit_field: max_tokens, **sampling}

        async def ask() -> Any:
            return await self._client.chat.completions.create(
                model=self.config.model, messages=cast(Any, messages), **request
            )

        return await attempts(ask)

    async def _explain(self, error: Exception, *, attempts: int = 1) -> EndpointError:
        config = self.config
        where = f"endpoint {config.base_url} (model {config.model!r})"
        tries = f"after {attempts} attempts" if attempts > 1 and isinstance(error, _RETRIED) else "at once"
        if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
            state = "is set but refused" if os.environ.get(config.api_key_env) else "is not set"
            return EndpointError(f"{where}: access denied; the environment variable {config.api_key_env} {state}")
        if isinstance(error, openai.NotFoundError):
            return EndpointError(f"{where}: not found; {await self._known_models()}")
        if isinstance(error, openai.APITimeoutError):
            return EndpointError(
                f"{where}: no answer within endpoint.timeout_s={config.timeout_s:g}, {tries}; "
                "raise it, or lower the load"
            )
        if isinstance(error, openai.APIConnectionError):
            reason = error.__cause__ or error
            return EndpointError(f"{where}: cannot connect, {tries} ({reason}); is the server running at that address?")
        return EndpointError(f"{where}: failed {tries}: {error}")

    async def _known_models(self) -> str:
        """What the server does serve, for an error message."""
        try:
            models = [model.id for model in (await self._client.models.list()).data]
        except openai.OpenAIError:
            return "base_url usually ends with /v1"
        return f"models served there: {', '.join(models) or 'none'}"


class EndpointDialogue:
    """One conversation. The server counts tokens; what it has not counted yet is estimated from its length."""

    def __init__(
        self, policy: EndpointPolicy, *, system: str, user: str, seed: int, max_context: int, max_reply: int,
        temperature: float,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._messages = [{"role": "system", "content": system}] if system else []
        self._messages.append({"role": "user", "content": user})
        self._seed = seed
        self._max_context = max_context
        self._max_reply = max_reply
        self._temperature = temperature
        self._used_tokens = int(len(system + user) / _CHARS_PER_TOKEN)

    async def generate(self) -> Reply:
        room = self._max_context - self._used_tokens
        if room < min(_MIN_REPLY_TOKENS, self._max_reply):
            raise ContextFullError(f"about {self._used_tokens} of {self._max_context} tokens are used")
        answer = await self._policy.complete(
            self._messages,
            max_tokens=min(room, self._max_reply),
            temperature=self._temperature,
            seed=(self._seed + len(self._messages)) % 2**31,
        )
        if not answer.choices:
            raise EndpointError(f"endpoint {self._policy.config.base_url}: the answer holds no choice")
        choice = answer.choices[0]
        # JSON can carry half of a surrogate pair, which no file and no log can hold.
        text = (choice.message.content or "").encode("utf-8", "replace").decode("utf-8")
        self._messages.append({"role": "assistant", "content": text})
        if answer.usage is not None:
            self._used_tokens = answer.usage.total_tokens
        else:
            self._used_tokens += int(len(text) / _CHARS_PER_TOKEN)
        finish_reason = "length" if choice.finish_reason == "length" else "stop"
        completion = text_completion(finish_reason, self._usage(answer, text))
        return Reply(text=text, prompt_token_ids=completion.token_ids, completion=completion)

    def _usage(self, answer: Any, text: str) -> Usage:
        """As the server counted, else by length: a budget must not stand still where a server is silent."""
        if answer.usage is not None:
            return Usage(prompt_tokens=answer.usage.prompt_tokens, completion_tokens=answer.usage.completion_tokens)
        sent = sum(len(message["content"]) for message in self._messages[:-1])
        return Usage(prompt_tokens=int(sent / _CHARS_PER_TOKEN), completion_tokens=int(len(text) / _CHARS_PER_TOKEN))

    def observe(self, observations: list[str]) -> None:
        content = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in observations)
        self._messages.append({"role": "user", "content": content})
        self._used_tokens += int(len(content) / _CHARS_PER_TOKEN)


_BACKOFF = tenacity.wait_random_exponential(multiplier=0.5, max=30)


def _wait(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: what the server asked for, else exponential with jitter."""
    error = state.outcome.exception() if state.outcome else None
    header = error.response.headers.get("retry-after") if isinstance(error, openai.APIStatusError) else None
    if header is not None and header.replace(".", "", 1).isdigit():
        return min(float(header), 60.0)
    return _BACKOFF(state)


def _is_context_error(error: openai.BadRequestError) -> bool:
    text = str(error).lower()
    phrases = ("context length", "context window", "longer than the maximum model length")
    return error.code == "context_length_exceeded" or any(phrase in text for phrase in phrases)
