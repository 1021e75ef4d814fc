"""Activations and element-by-element functions, of one tensor or of two."""

from __future__ import annotations

import numpy as np

from jaxagent.synthesis.catalogue.rule import ALL, ANY, Draw, Flow, Rule, Step, call_step, module_step, short

_ACTIVATIONS: dict[str, tuple[tuple[str, ...], float]] = {
    "ReLU": (("",), 1.0),
    "ReLU6": (("",), 1.0),
    "LeakyReLU": (("0.01", "0.1", "0.2"), 1.0),
    "ELU": (("", "alpha=0.5"), 2.0),
    "SELU": (("",), 2.0),
    "CELU": (("", "alpha=2.0"), 2.0),
    "GELU": (("", "approximate='tanh'"), 2.0),
    "SiLU": (("",), 2.0),
    "Mish": (("",), 4.0),
    "Tanh": (("",), 2.0),
    "Sigmoid": (("",), 2.0),
    "LogSigmoid": (("",), 3.0),
    "Softplus": (("", "beta=2.0"), 3.0),
    "Softsign": (("",), 2.0),
    "Tanhshrink": (("",), 2.0),
    "Hardswish": (("",), 1.0),
    "Hardsigmoid": (("",), 1.0),
    "Hardtanh": (("", "-2.0, 2.0"), 1.0),
    "Softshrink": (("0.5", "0.25"), 1.0),
    "Hardshrink": (("0.5", "0.25"), 1.0),
    "Threshold": (("0.1, 0.0", "-0.5, -0.5"), 1.0),
}
"""Arguments that a module may be given, and its cost in passes over memory."""

_FUNCTIONS: dict[str, tuple[tuple[str, ...], float]] = {
    "torch.sin": (("",), 3.0),
    "torch.cos": (("",), 3.0),
    "torch.atan": (("",), 4.0),
    "torch.asinh": (("",), 4.0),
    "torch.erf": (("",), 3.0),
    "torch.erfc": (("",), 3.0),
    "torch.abs": (("",), 1.0),
    "torch.square": (("",), 1.0),
    "torch.sinc": (("",), 5.0),
    "torch.tanh": (("",), 2.0),
    "torch.sigmoid": (("",), 2.0),
    "torch.clamp": (("min=-1.0, max=1.0", "min=-0.5, max=2.0", "min=0.1"), 1.0),
    "torch.special.i0e": (("",), 5.0),
    "torch.special.ndtr": (("",), 4.0),
    "torch.special.log_ndtr": (("",), 8.0),
    "torch.nn.functional.gelu": (("",), 2.0),
    "torch.nn.functional.silu": (("",), 2.0),
    "torch.nn.functional.softplus": (("",), 3.0),
    "torch.nn.functional.hardswish": (("",), 1.0),
    "torch.nn.functional.leaky_relu": (("0.05",), 1.0),
}

_PAIRS: dict[str, float] = {
    "torch.add": 1.5,
    "torch.sub": 1.5,
    "torch.mul": 1.5,
    "torch.maximum": 1.5,
    "torch.minimum": 1.5,
    "torch.atan2": 5.0,
    "torch.hypot": 3.0,
    "torch.logaddexp": 5.0,
}


def _activation(name: str, arguments: tuple[str, ...], cost: float) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        text = str(rng.choice(arguments))
        return module_step(name, flow, flow, text=text, element_cost=cost)

    return draw


def _function(name: str, arguments: tuple[str, ...], cost: float) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        return call_step(name, flow, text=str(rng.choice(arguments)), element_cost=cost)

    return draw


def _pair(name: str, cost: float) -> Draw:
    """With a further input of the same shape."""

    def draw(rng: np.random.Generator, flow: Flow) -> Step:
        other = f"torch.randn({', '.join(map(str, flow.shape))})"
        return Step(name, f"{short(name)}(x, {{other}})", flow, other=other, element_cost=cost)

    return draw


def _prelu(rng: np.random.Generator, flow: Flow) -> Step:
    """One slope for each channel where there are channels, else one for all."""
    if flow.layout in ("signal", "image", "volume") and rng.random() < 0.5:
        return module_step(
            "torch.nn.PReLU", flow, flow, text="num_parameters={channels}", sizes={"channels": flow.features}
        )
    return module_step("torch.nn.PReLU", flow, flow)


def _glu(rng: np.random.Generator, flow: Flow) -> Step | None:
    if flow.features % 2 or flow.features < 32:
        return None
    dim = -1 if flow.layout in ("rows", "sequence") else 1
    return module_step(
        "torch.nn.GLU", flow, flow.with_features(flow.features // 2), text=f"dim={dim}", element_cost=2.0
    )


RULES: tuple[Rule, ...] = (
    *(
        Rule(f"torch.nn.{name}", "activation", ALL, _activation(f"torch.nn.{name}", *how))
        for name, how in _ACTIVATIONS.items()
    ),
    *(Rule(name, "elementwise", ANY, _function(name, *how)) for name, how in _FUNCTIONS.items()),
    *(Rule(name, "elementwise of two", ALL, _pair(name, cost)) for name, cost in _PAIRS.items()),
    Rule("torch.nn.PReLU", "activation", ALL, _prelu),
    Rule("torch.nn.GLU", "activation", ALL, _glu),
)
