"""Operators on maps: convolution, pooling, padding, resampling. `rank` is the number of spatial axes."""

from __future__ import annotations

import math

import numpy as np

from jaxagent.synthesis.catalogue.rule import (
    SPATIAL,
    Draw,
    Flow,
    Layout,
    Rule,
    Step,
    module_step,
    nearby_features,
    pick,
)

_LAYOUTS: dict[int, Layout] = {1: "signal", 2: "image", 3: "volume"}
_MAX_CHANNELS = {1: 512, 2: 256, 3: 64}
_MIN_SIDE = 4


def _convolution(rank: int) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step | None:
        kernel, stride = pick(rng, 1, 3, 3, 5), pick(rng, 1, 1, 2)
        padding = pick(rng, 0, kernel // 2)
        depthwise = rng.random() < 0.2
        out = flow.features if depthwise else nearby_features(rng, flow.features, low=8, high=_MAX_CHANNELS[rank])
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in flow.spatial]
        if min(sides) < _MIN_SIDE:
            return None
        after = flow.with_features(out).with_spatial(*sides)
        sizes = {"in_channels": flow.features, "out_channels": out, "kernel_size": kernel}
        text = "{in_channels}, {out_channels}, {kernel_size}"
        text += f", stride={stride}" * (stride > 1) + f", padding={padding}" * (padding > 0)
        text += ", groups={in_channels}" * depthwise
        flops = 2.0 * after.elements * kernel**rank * (1 if depthwise else flow.features)
        name = f"torch.nn.Conv{rank}d"
        return module_step(name, flow, after, text=text, sizes=sizes, flops=flops * 1.5, element_cost=2.0)

    return draw


def _transposed(rank: int) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step | None:
        stride = pick(rng, 1, 2)
        kernel = pick(rng, 2, 4) if stride == 2 else 3
        padding = (kernel - stride) // 2
        out = max(8, flow.features // pick(rng, 1, 2))
        sides = [(side - 1) * stride - 2 * padding + kernel for side in flow.spatial]
        if math.prod(sides) > 4_000_000:
            return None
        after = flow.with_features(out).with_spatial(*sides)
        sizes = {"in_channels": flow.features, "out_channels": out, "kernel_size": kernel}
        text = f"{{in_channels}}, {{out_channels}}, {{kernel_size}}, stride={stride}, padding={padding}"
        flops = 4.0 * flow.elements * kernel**rank * out
        name = f"torch.nn.ConvTranspose{rank}d"
        return module_step(name, flow, after, text=text, sizes=sizes, flops=flops, element_cost=4.0)

    return draw


def _pool(kind: str, rank: int) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step | None:
        kernel = pick(rng, 2, 3)
        stride = pick(rng, 1, 2) if kernel == 3 else 2
        sides = [(side - kernel) // stride + 1 for side in flow.spatial]
        if min(sides) < _MIN_SIDE:
            return None
        first = "2.0, " if kind == "LPPool" else ""
        name, text = f"torch.nn.{kind}{rank}d", f"{first}{kernel}, stride={stride}"
        return module_step(name, flow, flow.with_spatial(*sides), text=text, element_cost=4.0)

    return draw


def _adaptive(kind: str, rank: int) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step | None:
        side = pick(rng, 1, 4, 7, 8)
        if min(flow.spatial) <= side:
            return None
        name = f"torch.nn.Adaptive{kind}Pool{rank}d"
        after = flow.with_spatial(*([side] * rank))
        return module_step(name, flow, after, text="{output_size}", sizes={"output_size": side}, element_cost=2.0)

    return draw


def _padding(kind: str, rank: int) -> Draw:
    def draw(rng: np.random.Generator, flow: Flow) -> Step | None:
        width = pick(rng, 1, 2, 3)
        if min(flow.spatial) <= width:
            return None
        value = ", 0.5" if kind == "ConstantPad" else ""
        after = flow.with_spatial(*(side + 2 * width for side in flow.spatial))
        return module_step(f"torch.nn.{kind}{rank}d", flow, after, text=f"{width}{value}", element_cost=2.0)

    return draw


def _upsample(rng: np.random.Generator, flow: Flow) -> Step:
    mode = "nearest" if rng.random() < 0.5 else {1: "linear", 2: "bilinear", 3: "trilinear"}[len(flow.spatial)]
    after = flow.with_spatial(*(2 * side for side in flow.spatial))
    return module_step("torch.nn.Upsample", flow, after, text=f"scale_factor=2, mode='{mode}'", element_cost=3.0)


def _pixel_shuffle(rng: np.random.Generator, flow: Flow) -> Step | None:
    if flow.features % 4 or flow.features < 16:
        return None
    after = flow.with_features(flow.features // 4).with_spatial(*(2 * side for side in flow.spatial))
    return module_step("torch.nn.PixelShuffle", flow, after, text="2", element_cost=3.0)


def _pixel_unshuffle(rng: np.random.Generator, flow: Flow) -> Step | None:
    if any(side % 2 for side in flow.spatial) or min(flow.spatial) < 2 * _MIN_SIDE or flow.features > 256:
        return None
    after = flow.with_features(4 * flow.features).with_spatial(*(side // 2 for side in flow.spatial))
    return module_step("torch.nn.PixelUnshuffle", flow, after, text="2", element_cost=3.0)


def _channel_shuffle(rng: np.random.Generator, flow: Flow) -> Step | None:
    groups = pick(rng, 2, 4)
    if flow.features % groups:
        return None
    return module_step(
        "torch.nn.ChannelShuffle", flow, flow, text="{groups}", sizes={"groups": groups}, element_cost=2.0
    )


def _unfold(rng: np.random.Generator, flow: Flow) -> Step | None:
    if min(flow.spatial) < 8 or flow.features > 64:
        return None
    length = math.prod(side - 2 for side in flow.spatial)
    after = Flow("signal", (flow.shape[0], 9 * flow.features, length))
    return module_step("torch.nn.Unfold", flow, after, text="3", element_cost=3.0)


RULES: tuple[Rule, ...] = (
    *(Rule(f"torch.nn.Conv{rank}d", "convolution", (_LAYOUTS[rank],), _convolution(rank)) for rank in (1, 2, 3)),
    *(
        Rule(f"torch.nn.ConvTranspose{rank}d", "convolution", (_LAYOUTS[rank],), _transposed(rank))
        for rank in (1, 2, 3)
    ),
    *(
        Rule(f"torch.nn.{kind}{rank}d", "pooling", (_LAYOUTS[rank],), _pool(kind, rank))
        for kind in ("MaxPool", "AvgPool", "LPPool")
        for rank in (1, 2, 3)
    ),
    *(
        Rule(f"torch.nn.Adaptive{kind}Pool{rank}d", "pooling", (_LAYOUTS[rank],), _adaptive(kind, rank))
        for kind in ("Avg", "Max")
        for rank in (1, 2, 3)
    ),
    *(
        Rule(f"torch.nn.{kind}{rank}d", "padding", (_LAYOUTS[rank],), _padding(kind, rank))
        for kind in ("ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")
        for rank in (1, 2, 3)
    ),
    Rule("torch.nn.Upsample", "resampling", SPATIAL, _upsample),
    Rule("torch.nn.PixelShuffle", "resampling", ("image",), _pixel_shuffle),
    Rule("torch.nn.PixelUnshuffle", "resampling", ("image",), _pixel_unshuffle),
    Rule("torch.nn.ChannelShuffle", "resampling", SPATIAL, _channel_shuffle),
    Rule("torch.nn.Unfold", "resampling", ("image",), _unfold),
)
