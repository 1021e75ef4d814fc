"""Operators that reduce: over an axis, to the index of an extreme, or two tensors to a distance or a loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jaxagent.synthesis.catalogue.rule import ALL, DENSE, Draw, Flow, Rule, Step, call_step, pick, short

_REDUCTIONS: dict[str, float] = {
    "torch.sum": 1.0,
    "torch.mean": 1.0,
    "torch.amax": 1.0,
    "torch.amin": 1.0,
    "torch.std": 2.0,
    "torch.var": 2.0,
    "torch.logsumexp": 4.0,
    "torch.linalg.vector_norm": 1.5,
}
_INDICES = {"torch.argmax": 2.0, "torch.argmin": 2.0}
_LOSSES: dict[str, float] = {
    "torch.nn.MSELoss": 2.0,
    "torch.nn.L1Loss": 2.0,
    "torch.nn.SmoothL1Loss": 3.0,
    "torch.nn.HuberLoss": 3.0,
    "torch.nn.BCEWithLogitsLoss": 6.0,
}
_DISTANCES: dict[str, float] = {"torch.nn.CosineSimilarity": 4.0, "torch.nn.PairwiseDistance": 3.0}


def _without(flow: Flow, axis: int) -> Flow:
    shape = tuple(size for index, size in enumerate(flow.shape) if index != axis % len(flow.shape))
    return Flow("other", shape)


def _axis(rng: np.random.Generator, flow: Flow) -> int:
    return -1 if flow.layout in DENSE else pick(rng, 1, -1)


def _reduction(name: str, cost: float) -> Draw:
    """Keeps the axis, at size 1, or leaves it out."""

    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        axis, keep = _axis(rng, flow), rng.random() < 0.4
        if keep:
            shape = list(flow.shape)
            shape[axis] = 1
            after = replace(flow, layout="other", shape=tuple(shape))
        else:
            after = _without(flow, axis)
        text = f"dim={axis}" + ", keepdim=True" * keep
        return call_step(name, after, text=text, element_cost=cost)

    return draw


def _index(name: str, cost: float) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        axis = _axis(rng, flow)
        return call_step(name, _without(flow, axis), text=f"dim={axis}", element_cost=cost, ends=True)

    return draw


def _topk(rng: np.random.Generator, flow: Flow) -> Step | None:
    count = pick(rng, 4, 8, 16)
    if flow.features <= 2 * count:
        return None
    after = Flow("other", (*flow.shape[:-1], count))
    return call_step("torch.topk", after, text=f"{count}, dim=-1", element_cost=12.0, ends=True)


def _sort(rng: np.random.Generator, flow: Flow) -> Step:
    return Step("torch.sort", "torch.sort(x, dim=-1)[0]", replace(flow, layout="other"), element_cost=40.0)


def _scan(name: str, cost: float) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        return call_step(name, replace(flow, layout="other"), text="dim=-1", element_cost=cost)

    return draw


def _loss(name: str, cost: float) -> Draw:
    """Against a further input of the same shape, element by element: a mean over so many hardly moves with them."""

    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        source = "rand" if "BCE" in name else "randn"
        return Step(
            name,
            "{self}(x, {other})",
            replace(flow, layout="other"),
            module=f"{short(name)}(reduction='none')",
            other=f"torch.{source}({', '.join(map(str, flow.shape))})",
            element_cost=cost,
            ends=True,
        )

    return draw


def _distance(name: str, cost: float) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        text = "dim=-1" if "Cosine" in name else ""
        other = f"torch.randn({', '.join(map(str, flow.shape))})"
        module = f"{short(name)}({text})"
        return Step(name, "{self}(x, {other})", _without(flow, -1), module=module, other=other, element_cost=cost)

    return draw


RULES: tuple[Rule, ...] = (
    *(Rule(name, "reduction", ALL, _reduction(name, cost)) for name, cost in _REDUCTIONS.items()),
    *(Rule(name, "index", ALL, _index(name, cost)) for name, cost in _INDICES.items()),
    *(Rule(name, "loss", ALL, _loss(name, cost)) for name, cost in _LOSSES.items()),
    *(Rule(name, "loss", DENSE, _distance(name, cost)) for name, cost in _DISTANCES.items()),
    Rule("torch.topk", "sorting", DENSE, _topk),
    Rule("torch.sort", "sorting", DENSE, _sort),
    Rule("torch.logcumsumexp", "scan", DENSE, _scan("torch.logcumsumexp", 8.0)),
)
