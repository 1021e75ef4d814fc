"""Generated tasks: synthesised chains over rows of a matrix, where an honest fused kernel can beat torch.compile.

Held-out tasks use the same operators, constants and sizes, but other compositions and other (rows, cols) pairs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from jaxagent.synthesis.kernels import OPS, Op, Program, Step, Steps, evaluate, model_source
from jaxagent.synthesis.task_spaces import CPU_SPACE, TaskSpace
from sandbox.types import Task

MAX_ATTEMPTS = 20_000
MIN_SIGNAL = 30.0
"""Least mean effect of a change of input, or of a fault, in units of the judge's float32 tolerance."""

MAX_ROUNDING = 0.1
"""Largest error of the program in float32, in the same units."""
MAX_OUTPUT = 1e4

_STREAM = 0x6B65
_LARGE = 4_000_000
"""Elements of a task for a GPU, of which fewer rows are probed: hundreds of them are drawn."""


def synthetic_tasks(seed: int = 0, *, space: TaskSpace = CPU_SPACE) -> tuple[list[Task], list[Task]]:
    """(train, heldout): deterministic in `seed`. No composition and no shape of `heldout` occurs in `train`."""
    train, heldout = _drawn(seed, space)
    return to_tasks(train, seed, "train", space=space), to_tasks(heldout, seed, "heldout", space=space)


@functools.cache
def _drawn(seed: int, space: TaskSpace) -> tuple[list[Program], list[Program]]:
    rng = np.random.default_rng([seed, _STREAM])
    shapes, heldout_shapes = _split_shapes(rng, space)
    usage: Counter[str] = Counter()
    seen: set[frozenset[str]] = set()
    draw = functools.partial(_draw_program, rng, space, usage, seen)
    train = [draw(index, shapes, None) for index in range(space.num_train)]
    known = {step for program in train for step in program.steps}
    heldout = [draw(index, heldout_shapes, known) for index in range(space.num_heldout)]
    return train, heldout


def faulty_steps(program: Program) -> dict[str, list[Steps]]:
    """What a careless author writes instead: a step left out, a wrong constant, a wrong order; all tell in the output.

    Faults which the judge could not see, such as a scale before a scale-free norm, are not listed.
    """
    steps = program.steps
    body = steps[:-1] if program.reduces else steps
    faults: dict[str, list[Steps]] = {"missing_step": [], "wrong_constant": [], "wrong_order": []}
    for index, step in enumerate(body):
        before, after = steps[:index], steps[index + 1 :]
        faults["missing_step"].append(before + after)
        for constant in OPS[step.op].constants:
            if constant != step.constant:
                faults["wrong_constant"].append((*before, Step(step.op, constant), *after))
        if index + 1 < len(body):
            faults["wrong_order"].append((*before, steps[index + 1], step, *steps[index + 2 :]))
    inputs = _probe_inputs(program, seed=1)
    expected = evaluate(steps, *inputs)
    return {
        kind: [fault for fault in found if _signal(evaluate(fault, *inputs), expected) >= MIN_SIGNAL]
        for kind, found in faults.items()
    }


def _split_shapes(rng: np.random.Generator, space: TaskSpace) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(rows, cols) pairs for train and held-out tasks; every single number of the held-out pairs is in a train pair."""
    pairs, count = space.shapes, space.num_heldout_shapes
    while True:
        order = rng.permutation(len(pairs))
        train, heldout = [pairs[k] for k in order[count:]], [pairs[k] for k in order[:count]]
        known_rows, known_cols = {rows for rows, _ in train}, {cols for _, cols in train}
        if all(rows in known_rows and cols in known_cols for rows, cols in heldout):
            return train, heldout


def _draw_program(
    rng: np.random.Generator,
    space: TaskSpace,
    usage: Counter[str],
    seen: set[frozenset[str]],
    index: int,
    shapes: list[tuple[int, int]],
    known: set[Step] | None,
) -> Program:
    """A program of the family whose turn it is, from operators that were used least so far, and from `known` steps."""
    for _ in range(MAX_ATTEMPTS):
        rows, cols = shapes[index % len(shapes)]
        family = space.families[index % len(space.families)]
        steps = tuple(draw_step(rng, op) for op in _draw_ops(rng, space, family, usage))
        program = Program(steps, rows, cols)
        names = frozenset(step.op for step in steps)
        if names in seen or not (known is None or known.issuperset(steps)):
            continue
        if _is_sound(program):
            seen.add(names)
            usage.update(names)
            return program
    raise RuntimeError(f"no sound program number {index} in {MAX_ATTEMPTS} draws; ask for fewer synthetic tasks")


def _draw_ops(rng: np.random.Generator, space: TaskSpace, family: str, usage: Counter[str]) -> list[Op]:
    """Heavy and light steps and what the family asks for, in random order, a reduction at the end.

    chain: two heavy, two light. row, reduce: two heavy, one light, and over the row one, or none to one before the
    reduction. norms: one heavy, one or two light, two over the row.
    """
    pick = functools.partial(_least_used, rng, space.ops, usage)
    num_heavy = 1 if family == "norms" else 2
    heavy = pick(lambda op: op.is_heavy, num_heavy)
    while not any(op.name in space.clear_wins for op in heavy):
        heavy = pick(lambda op: op.is_heavy, num_heavy)
    num_light = 2 if family == "chain" or (family == "norms" and rng.random() < 0.5) else 1
    ops = heavy + pick(lambda op: not op.is_heavy and not op.over_row, num_light)
    if family == "row" or (family == "reduce" and rng.random() < 0.5):
        ops += pick(lambda op: op.over_row and not op.reduces, 1)
    if family == "norms":
        ops += pick(lambda op: op.over_row and not op.reduces, 2)
    ops = [ops[k] for k in rng.permutation(len(ops))]
    if family == "reduce":
        ops += pick(lambda op: op.reduces, 1)
    return ops


def _least_used(
    rng: np.random.Generator, ops: Sequence[Op], usage: Counter[str], belongs: Callable[[Op], bool], count: int
) -> list[Op]:
    pool = [op for op in ops if belongs(op)]
    least = min(usage[op.name] for op in pool)
    weights = np.array([0.25 ** (usage[op.name] - least) for op in pool])
    chosen = rng.choice(len(pool), size=count, replace=False, p=weights / weights.sum())
    return [pool[k] for k in chosen]


def draw_step(rng: np.random.Generator, op: Op) -> Step:
    return Step(op.name, str(rng.choice(op.constants)) if op.constants else None)


def _is_sound(program: Program) -> bool:
    """Stable, and no step is idle: a fault in any of them, or another weight, tells in the output."""
    if not is_stable(program):
        return False
    x, weight, bias = _probe_inputs(program, seed=1)
    _, other_weight, other_bias = _probe_inputs(program, seed=2)
    expected = evaluate(program.steps, x, weight, bias)
    for name, parameters in (("weight", (other_weight, bias)), ("bias", (weight, other_bias))):
        if program.has(name) and _signal(evaluate(program.steps, x, *parameters), expected) < MIN_SIGNAL:
            return False
    body = program.steps[:-1] if program.reduces else program.steps
    faults = faulty_steps(program)
    num_constants = sum(len(OPS[step.op].constants) - 1 for step in body if step.constant is not None)
    return len(faults["missing_step"]) == len(body) and len(faults["wrong_constant"]) == num_constants


def is_stable(program: Program) -> bool:
    """The output moves with the input; it rounds well and stays moderate under the judge's transforms of the input."""
    x, *parameters = _probe_inputs(program, seed=1)
    other, *_ = _probe_inputs(program, seed=2)
    if _signal(evaluate(program.steps, other, *parameters), evaluate(program.steps, x, *parameters)) < MIN_SIGNAL:
        return False
    for changed in (x, 3 * x, 0.01 * x, -x, x + 1):
        y = evaluate(program.steps, changed, *parameters)
        if not np.isfinite(y).all() or np.abs(y).max() > MAX_OUTPUT:
            return False
        rounded = evaluate(program.steps, *(array.astype(np.float32) for array in (changed, *parameters)))
        if _in_tolerances(rounded, y).max() > MAX_ROUNDING:
            return False
    return True


def _probe_inputs(program: Program, *, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A few rows of the task's input distribution, a weight and a bias."""
    rng = np.random.default_rng(seed)
    num_rows = 8 if program.rows * program.cols < _LARGE else 2
    x, weight = rng.standard_normal((num_rows, program.cols)), rng.uniform(0.5, 1.5, program.cols)
    return x, weight, rng.uniform(-0.5, 0.5, program.cols)


def _signal(y: np.ndarray, expected: np.ndarray) -> float:
    return float(np.mean(_in_tolerances(y, expected)))


def _in_tolerances(y: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Differences in units of the judge's tolerance, 1e-4 (|expected| + its RMS)."""
    allowed = 1e-4 * (np.abs(expected) + np.sqrt(np.mean(expected**2)))
    return np.abs(y - expected) / np.maximum(allowed, 1e-30)  # an output of zeros


def to_tasks(programs: Sequence[Program], seed: int, split: str, *, space: TaskSpace = CPU_SPACE) -> list[Task]:
    return [
        Task(
            task_id=f"{space.name}_{seed}_{split}_{index:02d}",
            code=model_source(program),
            source="synthetic",
            ops=[step.op for step in program.steps],
            split=split,
        )
        for index, program in enumerate(programs)
    ]
