"""The rule-based composer: at most five operators stacked in sequence, with shapes that fit, sized for the device.

    number of operators ─► layout of the input ─► family, operator, arguments … ─► batch size from the cost ─► text
Candidate `index` of a seed is always the same, whatever was drawn before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from pydantic import Field

from jaxagent.synthesis.catalogue import FAMILIES, RULES
from jaxagent.synthesis.catalogue.rule import Flow, Layout, Rule, Step
from jaxagent.synthesis.write_task import write_task
from sandbox.config import Config

Name = TypeVar("Name")
_ATTEMPTS = 400
_STREAM = 0x0905
_MAX_BATCH: dict[str, int] = {"rows": 65_536, "sequence": 256, "signal": 512, "image": 256, "volume": 64}


class ComposeError(ValueError):
    """The settings leave nothing to compose."""


class ComposeConfig(Config):
    """What is composed, and how large."""

    curriculum: dict[int, float] = Field(default={1: 0.15, 2: 0.3, 3: 0.3, 4: 0.15, 5: 0.1})
    """Weight of each number of operators, 1 to 5."""
    families: dict[str, float] = Field(default={})
    """Weights of families of operators; those not named have 1, those at 0 are left out."""
    layouts: dict[Layout, float] = Field(default={"rows": 3, "sequence": 3, "signal": 1.5, "image": 3, "volume": 1})
    target_ms: tuple[float, float] = (4.0, 25.0)
    """Eager times that are aimed at, evenly on a logarithmic scale."""
    element_ns: float = Field(default=0.5, gt=0)
    """Time to read and write one float32 on the target device."""
    gflops: float = Field(default=60.0, gt=0)
    """Rate of float32 products there."""
    max_elements: int = Field(default=48_000_000, gt=0)
    """Of all tensors of a task together."""
    transformers_share: float = Field(default=0.03, ge=0, le=1)
    """Share of candidates that are one layer of transformers, alone."""


@dataclass(frozen=True, slots=True)
class Composed:
    """A candidate task, and what it was made of."""

    code: str
    ops: list[str]
    families: list[str]
    data_source: str
    estimate_ms: float


class Composer:
    """Draws candidates. Raises ComposeError for settings that name unknown families or allow nothing."""

    def __init__(self, config: ComposeConfig, seed: int) -> None:
        unknown = [name for name in config.families if name not in FAMILIES]
        if unknown:
            raise ComposeError(f"compose.families: unknown {', '.join(unknown)}; known are {', '.join(FAMILIES)}")
        if not config.curriculum or not set(config.curriculum) <= {1, 2, 3, 4, 5}:
            raise ComposeError(f"compose.curriculum: {sorted(config.curriculum)} has to lie within 1 to 5 operators")
        self._config, self._seed = config, seed
        self._rules: dict[str, list[Rule]] = {}
        for rule in RULES.values():
            if config.families.get(rule.family, 1.0) > 0:
                self._rules.setdefault(rule.family, []).append(rule)

    def candidate(self, index: int) -> Composed:
        """Raises ComposeError where no composition fits the settings."""
        rng = np.random.default_rng([self._seed, _STREAM, index])
        if rng.random() < self._config.transformers_share:
            from jaxagent.synthesis.compose_block import compose_block

            block = compose_block(rng)
            if block is not None:
                return Composed(block.code, [block.cls], ["transformers"], "transformers", math.nan)
        length = _weighted(rng, self._config.curriculum)
        for _ in range(_ATTEMPTS):
            composed = self._attempt(rng, length)
            if composed is not None:
                return composed
        raise ComposeError(
            f"compose: no {length} operators fit in {_ATTEMPTS} attempts; allow more families, layouts or elements"
        )

    def _attempt(self, rng: np.random.Generator, length: int) -> Composed | None:
        layout = _weighted(rng, self._config.layouts)
        shape, draw_seed = _input_shape(rng, layout), int(rng.integers(1 << 62))
        low, high = self._config.target_ms
        target = math.exp(rng.uniform(math.log(low), math.log(high)))
        steps = self._stack(draw_seed, Flow(layout, (4, *shape)), length)
        if steps is None:
            return None
        wanted = 4 * target / self._estimate_ms(Flow(layout, (4, *shape)), steps)
        batch = _round_size(min(max(wanted, 1.0), _MAX_BATCH[layout]))
        flow = Flow(layout, (batch, *shape))
        steps = self._stack(draw_seed, flow, length)  # the same draws: only the batch is another
        if steps is None or self._num_elements(flow, steps) > self._config.max_elements:
            return None
        estimate = self._estimate_ms(flow, steps)
        if not low / 2 < estimate < 2 * high:
            return None
        source = "torch.rand" if rng.random() < 0.3 else "torch.randn"
        code = write_task(steps, f"{source}({', '.join(map(str, flow.shape))})")
        names = [step.rule for step in steps]
        return Composed(code, names, [RULES[name].family for name in names], f"torch#{length}", estimate)

    def _stack(self, draw_seed: int, flow: Flow, length: int) -> list[Step] | None:
        rng = np.random.default_rng(draw_seed)
        steps: list[Step] = []
        for position in range(length):
            step = self._next_step(rng, flow, {step.rule for step in steps}, is_last=position == length - 1)
            if step is None:
                return None
            steps.append(step)
            flow = step.after
        return steps

    def _next_step(self, rng: np.random.Generator, flow: Flow, used: set[str], *, is_last: bool) -> Step | None:
        """From a family by weight, then any of its operators; None after a few that do not fit."""
        weights = {family: self._config.families.get(family, 1.0) for family in self._rules}
        for _ in range(12):
            rules = self._rules[_weighted(rng, weights)]
            rule = rules[rng.integers(len(rules))]
            step = rule.step(rng, flow) if rule.name not in used else None
            if step is not None and (is_last or not step.ends) and step.after.elements > 0:
                return step
        return None

    def _estimate_ms(self, flow: Flow, steps: list[Step]) -> float:
        total = 0.0
        for step in steps:
            elements = max(flow.elements, step.after.elements)
            total += step.element_cost * elements * self._config.element_ns + step.flops / self._config.gflops
            flow = step.after
        return total / 1e6

    def _num_elements(self, flow: Flow, steps: list[Step]) -> int:
        return flow.elements + sum(step.after.elements * (2 if step.other else 1) for step in steps)


def _weighted(rng: np.random.Generator, weights: Mapping[Name, float]) -> Name:
    names = list(weights)
    values = np.array([weights[name] for name in names], dtype=float)
    return names[rng.choice(len(names), p=values / values.sum())]


def _input_shape(rng: np.random.Generator, layout: Layout) -> tuple[int, ...]:
    """Sizes behind the batch; now and then no power of two."""

    def one_of(*sizes: int) -> int:
        return int(rng.choice(sizes))

    if layout == "rows":
        return (one_of(128, 256, 384, 512, 768, 1000, 1024, 2048, 4096),)
    if layout == "sequence":
        return one_of(32, 64, 100, 128, 256, 512), one_of(64, 128, 192, 256, 384, 512)
    if layout == "signal":
        return one_of(8, 16, 24, 32, 64, 128), one_of(128, 256, 500, 1024, 4096)
    if layout == "image":
        side = one_of(16, 28, 32, 48, 56, 64, 112)
        return one_of(3, 8, 16, 32, 48, 64), side, side
    side = one_of(8, 12, 16, 20)
    return one_of(4, 8, 16, 32), side, side, side


def _round_size(size: float) -> int:
    """To two significant bits, so that sizes look like sizes."""
    if size < 4:
        return max(1, round(size))
    step = 2 ** (math.floor(math.log2(size)) - 2)
    return int(round(size / step) * step)


__all__ = ["ComposeConfig", "ComposeError", "Composed", "Composer"]
