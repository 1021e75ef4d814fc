"""Settings of a language model that composes tasks."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from sandbox.config import Config

DEFAULT_PROMPT = Path(__file__).with_name("prompts") / "compose.j2"


class LLMConfig(Config):
    """Any server with OpenAI's chat completions; vLLM is one."""

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key; most servers of one's own want none."""
    prompt: Path = DEFAULT_PROMPT
    """A Jinja template that is given `operators` and `max_operators`."""
    num_offered: int = Field(default=12, gt=0)
    """Operators that the model may choose from, drawn by family for each candidate."""
    temperature: float = Field(default=0.8, ge=0)
    max_tokens: int = Field(default=1500, gt=0)
    timeout_s: float = Field(default=120.0, gt=0)
    """For one reply; what takes longer counts as one that breaks the contract."""
    max_attempts: int = Field(default=2, gt=0)
    """Questions for one candidate, where a reply breaks the contract."""
    max_retries: int = Field(default=5, ge=0)
    """Repeats where the server does not answer."""
    concurrency: int = Field(default=8, gt=0)
    dollars_per_million_input: float = Field(default=0.0, ge=0)
    dollars_per_million_output: float = Field(default=0.0, ge=0)
