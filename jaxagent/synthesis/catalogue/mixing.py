"""Operators that mix features or positions: linear layers, products, attention, recurrence."""

from __future__ import annotations

import numpy as np

from jaxagent.synthesis.catalogue.rule import (
    DENSE,
    Draw,
    Flow,
    Rule,
    Step,
    call_step,
    module_step,
    nearby_features,
    pick,
)


def _linear(rng: np.random.Generator, flow: Flow) -> Step:
    out = nearby_features(rng, flow.features)
    sizes = {"in_features": flow.features, "out_features": out}
    bias = "" if rng.random() < 0.8 else ", bias=False"
    return module_step(
        "torch.nn.Linear",
        flow,
        flow.with_features(out),
        text=f"{{in_features}}, {{out_features}}{bias}",
        sizes=sizes,
        flops=2.0 * flow.elements * out,
    )


def _bilinear(rng: np.random.Generator, flow: Flow) -> Step | None:
    """out = x1 A x2 for each output feature: kept small."""
    if flow.features > 128:
        return None
    other, out = pick(rng, 16, 32), pick(rng, 16, 32, 64)
    sizes = {"in1_features": flow.features, "in2_features": other, "out_features": out}
    rows = flow.elements // flow.features
    return Step(
        "torch.nn.Bilinear",
        "{self}(x, {other})",
        flow.with_features(out),
        module="nn.Bilinear({in1_features}, {in2_features}, {out_features})",
        sizes=sizes,
        other=f"torch.randn({', '.join(map(str, (*flow.shape[:-1], other)))})",
        flops=2.0 * rows * flow.features * other * out,
        element_cost=4.0,
    )


def _matmul(rng: np.random.Generator, flow: Flow) -> Step:
    out = nearby_features(rng, flow.features)
    after = flow.with_features(out)
    other = f"torch.randn({flow.features}, {out})"
    return Step("torch.matmul", "torch.matmul(x, {other})", after, other=other, flops=2.0 * flow.elements * out)


def _bmm(rng: np.random.Generator, flow: Flow) -> Step:
    out = nearby_features(rng, flow.features)
    other = f"torch.randn({flow.shape[0]}, {flow.features}, {out})"
    return Step(
        "torch.bmm", "torch.bmm(x, {other})", flow.with_features(out), other=other, flops=2.0 * flow.elements * out
    )


def _self_attention(rng: np.random.Generator, flow: Flow) -> Step | None:
    heads = pick(rng, 4, 8)
    if flow.features % heads or flow.shape[1] > 1024:
        return None
    batch, length, width = flow.shape
    sizes = {"embed_dim": width, "num_heads": heads}
    return Step(
        "torch.nn.MultiheadAttention",
        "{self}(x, x, x, need_weights=False)[0]",
        flow,
        module="nn.MultiheadAttention({embed_dim}, {num_heads}, batch_first=True)",
        sizes=sizes,
        flops=8.0 * flow.elements * width + 4.0 * flow.elements * length,
        element_cost=8.0,
    )


def _encoder_layer(rng: np.random.Generator, flow: Flow) -> Step | None:
    heads = pick(rng, 4, 8)
    if flow.features % heads or flow.shape[1] > 1024 or flow.features > 768:
        return None
    wide = 2 * flow.features
    sizes = {"d_model": flow.features, "nhead": heads, "dim_feedforward": wide}
    return module_step(
        "torch.nn.TransformerEncoderLayer",
        flow,
        flow,
        text="{d_model}, {nhead}, {dim_feedforward}, batch_first=True",
        sizes=sizes,
        flops=(8.0 * flow.features + 4.0 * wide + 4.0 * flow.shape[1]) * flow.elements,
        element_cost=16.0,
    )


def _attention_function(rng: np.random.Generator, flow: Flow) -> Step | None:
    if flow.shape[1] > 1024 or flow.features > 256:
        return None
    causal = ", is_causal=True" if rng.random() < 0.5 else ""
    return call_step(
        "torch.nn.functional.scaled_dot_product_attention",
        flow,
        text=f"x, x{causal}",
        flops=4.0 * flow.elements * flow.shape[1],
        element_cost=4.0,
    )


def _recurrent(name: str, gates: int) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step | None:
        if flow.shape[1] > 128 or flow.features > 512:
            return None
        hidden = nearby_features(rng, flow.features, high=512)
        sizes = {"input_size": flow.features, "hidden_size": hidden}
        steps = flow.elements // flow.features
        return Step(
            name,
            "{self}(x)[0]",
            flow.with_features(hidden),
            module=f"nn.{name.rpartition('.')[2]}({{input_size}}, {{hidden_size}}, batch_first=True)",
            sizes=sizes,
            flops=6.0 * steps * gates * hidden * (flow.features + hidden),
            element_cost=6.0 * gates,
        )

    return draw


def _cumsum(rng: np.random.Generator, flow: Flow) -> Step:
    """Over positions."""
    return call_step("torch.cumsum", flow, text="dim=1", element_cost=3.0)


RULES: tuple[Rule, ...] = (
    Rule("torch.nn.Linear", "linear", DENSE, _linear),
    Rule("torch.nn.Bilinear", "linear", ("rows",), _bilinear),
    Rule("torch.matmul", "linear", DENSE, _matmul),
    Rule("torch.bmm", "linear", ("sequence",), _bmm),
    Rule("torch.nn.MultiheadAttention", "attention", ("sequence",), _self_attention),
    Rule("torch.nn.TransformerEncoderLayer", "attention", ("sequence",), _encoder_layer),
    Rule("torch.nn.functional.scaled_dot_product_attention", "attention", ("sequence",), _attention_function),
    Rule("torch.nn.RNN", "recurrent", ("sequence",), _recurrent("torch.nn.RNN", 1)),
    Rule("torch.nn.LSTM", "recurrent", ("sequence",), _recurrent("torch.nn.LSTM", 4)),
    Rule("torch.nn.GRU", "recurrent", ("sequence",), _recurrent("torch.nn.GRU", 3)),
    Rule("torch.cumsum", "scan", ("sequence",), _cumsum),
)
