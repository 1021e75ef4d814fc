"""Normalisations and softmax."""

from __future__ import annotations

import numpy as np

from jaxagent.synthesis.catalogue.rule import (
    ALL,
    DENSE,
    Draw,
    Flow,
    Layout,
    Rule,
    Step,
    call_step,
    module_step,
    pick,
)

_BY_RANK: tuple[tuple[Layout, int], ...] = (("signal", 1), ("image", 2), ("volume", 3))


def _with_channels(name: str, text: str, cost: float) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        sizes = {"num_features": flow.features}
        return module_step(name, flow, flow, text=f"{{num_features}}{text}", sizes=sizes, element_cost=cost)

    return draw


def _instance(name: str) -> Draw:
    """A normalised map of one pixel would be zero."""

    def draw(rng: np.random.Generator, flow: Flow) -> Step | None:
        if flow.elements < 16 * flow.shape[0] * flow.features:
            return None
        return _with_channels(name, str(rng.choice(["", ", affine=True"])), 3.0)(rng, flow)

    return draw


def _group(rng: np.random.Generator, flow: Flow) -> Step | None:
    groups = pick(rng, 4, 8, 16)
    if flow.features % groups or flow.elements < 32 * flow.shape[0] * groups:
        return None
    sizes = {"num_groups": groups, "num_channels": flow.features}
    text = "{num_groups}, {num_channels}"
    return module_step("torch.nn.GroupNorm", flow, flow, text=text, sizes=sizes, element_cost=3.0)


def _over_features(name: str) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        sizes = {"normalized_shape": flow.features}
        return module_step(name, flow, flow, text="{normalized_shape}", sizes=sizes, element_cost=3.0)

    return draw


def _softmax(name: str) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        dim = -1 if flow.layout in DENSE else 1
        return module_step(name, flow, flow, text=f"dim={dim}", element_cost=4.0)

    return draw


def _local_response(rng: np.random.Generator, flow: Flow) -> Step:
    return module_step("torch.nn.LocalResponseNorm", flow, flow, text=f"size={pick(rng, 3, 5)}", element_cost=8.0)


def _normalize(rng: np.random.Generator, flow: Flow) -> Step:
    dim = -1 if flow.layout in DENSE else 1
    return call_step("torch.nn.functional.normalize", flow, text=f"p={pick(rng, 1, 2)}, dim={dim}", element_cost=4.0)


RULES: tuple[Rule, ...] = (
    Rule("torch.nn.BatchNorm1d", "normalisation", ("rows", "signal"), _with_channels("torch.nn.BatchNorm1d", "", 2.0)),
    Rule("torch.nn.BatchNorm2d", "normalisation", ("image",), _with_channels("torch.nn.BatchNorm2d", "", 2.0)),
    Rule("torch.nn.BatchNorm3d", "normalisation", ("volume",), _with_channels("torch.nn.BatchNorm3d", "", 2.0)),
    *(
        Rule(f"torch.nn.InstanceNorm{rank}d", "normalisation", (layout,), _instance(f"torch.nn.InstanceNorm{rank}d"))
        for layout, rank in _BY_RANK
    ),
    Rule("torch.nn.GroupNorm", "normalisation", ("signal", "image", "volume"), _group),
    Rule("torch.nn.LayerNorm", "normalisation", DENSE, _over_features("torch.nn.LayerNorm")),
    Rule("torch.nn.RMSNorm", "normalisation", DENSE, _over_features("torch.nn.RMSNorm")),
    Rule("torch.nn.LocalResponseNorm", "normalisation", ("signal", "image", "volume"), _local_response),
    Rule("torch.nn.functional.normalize", "normalisation", ALL, _normalize),
    Rule("torch.nn.Softmax", "softmax", ALL, _softmax("torch.nn.Softmax")),
    Rule("torch.nn.LogSoftmax", "softmax", ALL, _softmax("torch.nn.LogSoftmax")),
    Rule("torch.nn.Softmin", "softmax", ALL, _softmax("torch.nn.Softmin")),
)
