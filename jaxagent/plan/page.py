"""A plan as text: tables per device, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from jaxagent.plan.plan import Plan

GIB = 2**30
LABELS = {
    "parameters": "parameters (actor and critic)",
    "optimizer": "optimizer (actor and critic)",
    "batch": "batch",
    "gradients": "gradients",
    "activations": "activations kept for the backward pass",
    "logits": "logits of a chunk",
    "experts": "slots of experts",
    "workspace": "workspace",
}


def plan_text(plan: Plan, *, command: str) -> str:
    """`command` is what the reader typed, to be repeated with other keys."""
    parts = [_heading(plan), _memory(plan), _traffic(plan), _time(plan), _verdict(plan, command)]
    return "\n\n".join(parts)


def _heading(plan: Plan) -> str:
    seconds = sum(step.compile_s for step in plan.facts.steps.values())
    return (
        f"One update of stage {plan.stage}: {plan.num_rows:,} full rows, {plan.num_microbatches} microbatches a step.\n"
        "Memory and traffic are those of XLA's programs, compiled for virtual CPU devices: what computes in bfloat16\n"
        "may lie in float32 there, so that a GPU needs rather less. "
        f"Compiling took {seconds:.0f} s and {plan.facts.peak_rss_gib:.1f} GiB."
    )


def _memory(plan: Plan) -> str:
    names = list(plan.memory)
    rows = [
        [label, *(f"{asdict(plan.memory[name])[part] / GIB:.3f}" for name in names)] for part, label in LABELS.items()
    ]
    rows.append(["in all", *(f"{plan.memory[name].total / GIB:.3f}" for name in names)])
    return _table(["GiB a device, while this step runs", *names], rows)


def _traffic(plan: Plan) -> str:
    found = [step.traffic for step in plan.facts.steps.values()]
    kinds = sorted({(axes, kind) for traffic in found for axes in traffic for kind in traffic[axes]})
    if not kinds:
        return "No traffic between devices."
    rows = [
        [axes, kind, *(f"{traffic.get(axes, {}).get(kind, 0) / GIB:.3f}" for traffic in found)] for axes, kind in kinds
    ]
    return _table(["GiB sent by a device a microbatch, along", "by", *plan.facts.steps], rows)


def _time(plan: Plan) -> str:
    rows = [
        [
            name,
            f"{time.flops.model / 1e15:,.3f}",
            f"{time.flops.hardware / 1e15:,.3f}",
            f"{time.compute_s:,.2f}",
            f"{sum(time.traffic_s.values()):,.2f}",
            f"{time.seconds:,.2f}",
        ]
        for name, time in plan.times.items()
    ]
    head = ["step, whole update", "model PFLOP", "with recomputation", "compute s", "traffic s", "s"]
    return (
        f"{_table(head, rows)}\n"
        f"Expected on {plan.accelerator.name}: {plan.seconds:,.2f} s an update, MFU {plan.mfu:.2f}, with no traffic "
        "hidden behind computation."
    )


def _verdict(plan: Plan, command: str) -> str:
    peak, capacity = plan.peak.total / GIB, plan.capacity_bytes / GIB
    if plan.fits:
        return f"It fits: {peak:.2f} of {capacity:.2f} GiB."
    lines = [
        f"It does not fit: {peak:.2f} GiB are needed and a device has {capacity:.2f}. The most helpful change first:"
    ]
    for advice in plan.advice:
        lines.append(f"  saves about {advice.saves_bytes / GIB:.2f} GiB: {advice.reason}")
        lines.append(f"    {command} --devices {advice.devices} {' '.join(advice.overrides)}")
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_text = [not cell[0].isdigit() for cell in rows[0]]

    def line(cells: Sequence[str]) -> str:
        padded = zip(cells, widths, is_text, strict=True)
        return "  ".join(cell.ljust(width) if text else cell.rjust(width) for cell, width, text in padded).rstrip()

    return "\n".join([line(head), *map(line, rows)])
