"""Traffic of a compiled program between devices, read from its HLO text: which mesh axes, what kind, how many bytes.

A collective counts as often as the loops around it run. A loop whose length is data (that over microbatches) counts
once, so the figures are those of one microbatch.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
Traffic = dict[str, dict[str, float]]
"""Mesh axes, joined by `+`, -> kind -> bytes that each device sends."""

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+(\d+))\w*\[([\d,]*)\]")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(r"(?:to_apply|body|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_CONSTANT = re.compile(r"= s32\[\]\S* constant\((\d+)\)")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_PAIRS = re.compile(r"source_target_pairs=\{(.*?)\}\}")


def traffic_of(hlo: str, mesh_shape: Mapping[str, int]) -> Traffic:
    """Bytes that each device sends, by axes and kind, in one run of the program on a mesh in device order."""
    computations, entry = _computations(hlo)
    totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def visit(name: str, times: int) -> None:
        for line in computations.get(name, ()):
            if found := _COLLECTIVE.search(line):
                axes, sent = _axes_and_bytes(line, found[1], found[2], mesh_shape)
                if sent:
                    totals[axes][found[2]] += times * sent
                continue
            inner = times * (_trips(line, computations) if " while(" in line else 1)
            for called in _called(line):
                visit(called, inner)

    visit(entry, 1)
    return {axes: dict(kinds) for axes, kinds in totals.items()}


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """Lines of every computation by its name, and the name of the entry."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", None
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            lines = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif lines is not None:
            lines.append(line)
    return computations, entry


def _called(line: str) -> list[str]:
    branches = [name.strip(" %") for found in _BRANCHES.findall(line) for name in found.split(",")]
    return _CALLED.findall(line) + branches


def _trips(line: str, computations: Mapping[str, Sequence[str]]) -> int:
    """How often a while loop runs: as annotated, or the constant that its condition compares with; else 1."""
    if found := _TRIP_COUNT.search(line):
        return int(found[1])
    condition = computations.get(_CONDITION.findall(line)[0], ())
    constants = [int(number) for inner in condition for number in _CONSTANT.findall(inner)]
    return max(constants, default=1)


def _axes_and_bytes(line: str, result: str, kind: str, mesh_shape: Mapping[str, int]) -> tuple[str, float]:
    size = sum(_bytes(*found) for found in _ARRAY.findall(result))
    group = _first_group(line, math.prod(mesh_shape.values()))
    axes = [axis for axis, places in zip(mesh_shape, _coordinates(group, mesh_shape), strict=True) if len(places) > 1]
    others = 1 - 1 / len(group)
    factors = {"all-gather": others, "all-reduce": 2 * others, "all-to-all": others, "collective-permute": 1.0}
    # A reduce-scatter's result is one part of what is sent.
    factor = factors.get(kind, len(group) - 1)
    return "+".join(axes), factor * size if axes else 0.0


def _coordinates(group: Sequence[int], mesh_shape: Mapping[str, int]) -> list[set[int]]:
    return [set(places.tolist()) for places in np.unravel_index(np.asarray(group), tuple(mesh_shape.values()))]


def _first_group(line: str, num_devices: int) -> list[int]:
    """Devices of one group; all groups lie alike on the mesh."""
    if pairs := _PAIRS.search(line):
        listed = [tuple(map(int, pair.split(","))) for pair in pairs[1].strip("{}").split("},{")]
        return list(next((pair for pair in listed if pair[0] != pair[1]), (0,)))
    if iota := _IOTA_GROUPS.search(line):
        dims, order = ([int(n) for n in text.split(",")] if text else None for text in (iota[3], iota[4]))
        devices = np.arange(num_devices).reshape(dims or -1)
        devices = devices.transpose(order) if order else devices
        return devices.reshape(int(iota[1]), int(iota[2]))[0].tolist()
    if listed := _LISTED_GROUPS.search(line):
        return [int(device) for device in listed[1].split(",")]
    return list(range(num_devices))


def _bytes(kind: str, bits: str, dims: str) -> int:
    size = 1 if kind == "pred" else 2 if kind == "bf16" else int(bits) // 8
    return size * math.prod(int(dim) for dim in dims.split(",") if dim)
