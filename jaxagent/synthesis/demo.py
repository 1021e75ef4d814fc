"""The demo's tasks: synthesised chains over rows of a matrix, where an honest fused kernel beats torch.compile.

Held-out tasks use the same operators, constants and sizes, but other compositions and other (rows, cols) pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from jaxagent.synthesis.kernels import OPS, Op, Program, Step, Steps, evaluate, model_source
from sandbox.types import Task

COLS = (512, 768, 1024, 1536, 2048)
ROWS = (480, 640, 960, 1280, 1920, 2560)
MIN_ELEMENTS, MAX_ELEMENTS = 650_000, 1_350_000
"""Large enough for 2 to 10 ms of torch eager on two cores, small enough to be judged in about a second."""

MAX_ATTEMPTS = 20_000
MIN_SIGNAL = 30.0
"""Least mean effect of a change of input, or of a fault, in units of the judge's float32 tolerance."""

MAX_ROUNDING = 0.1
"""Largest error of the program in float32, in the same units."""
MAX_OUTPUT = 1e4

_CLEAR_WINS = ("tanh", "atan", "mish")
"""Every task has one of these: torch.compile's code for them takes at least twice the time of libmvec's."""

_STREAM = 0x6B65

_FAMILIES = ("chain", "row", "reduce")


def synthetic_tasks(seed: int = 0, *, num_train: int = 24, num_heldout: int = 8) -> tuple[list[Task], list[Task]]:
    """(train, heldout): deterministic in `seed`. No composition and no shape of `heldout` occurs in `train`."""
    rng = np.random.default_rng([seed, _STREAM])
    shapes, heldout_shapes = _split_shapes(rng)
    usage: Counter[str] = Counter()
    seen: set[frozenset[str]] = set()
    train = [_draw_program(rng, index, shapes, usage, seen, None) for index in range(num_train)]
    known = {step for program in train for step in program.steps}
    heldout = [_draw_program(rng, index, heldout_shapes, usage, seen, known) for index in range(num_heldout)]
    return to_tasks(train, seed, "train"), to_tasks(heldout, seed, "heldout")


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
    x, weight = _probe_input(program, seed=1)
    expected = evaluate(steps, x, weight)
    return {
        kind: [fault for fault in found if _signal(evaluate(fault, x, weight), expected) >= MIN_SIGNAL]
        for kind, found in faults.items()
    }


def _split_shapes(rng: np.random.Generator) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(rows, cols) pairs for train and held-out tasks; every single number of the held-out pairs is in a train pair."""
    pairs = [(rows, cols) for cols in COLS for rows in ROWS if MIN_ELEMENTS <= rows * cols <= MAX_ELEMENTS]
    while True:
        order = rng.permutation(len(pairs))
        train, heldout = [pairs[k] for k in order[4:]], [pairs[k] for k in order[:4]]
        known_rows, known_cols = {rows for rows, _ in train}, {cols for _, cols in train}
        if all(rows in known_rows and cols in known_cols for rows, cols in heldout):
            return train, heldout


def _draw_program(
    rng: np.random.Generator,
    index: int,
    shapes: list[tuple[int, int]],
    usage: Counter[str],
    seen: set[frozenset[str]],
    known: set[Step] | None,
) -> Program:
    """A program of the family whose turn it is, from operators that were used least so far, and from `known` steps."""
    for _ in range(MAX_ATTEMPTS):
        rows, cols = shapes[index % len(shapes)]
        steps = tuple(draw_step(rng, op) for op in _draw_ops(rng, _FAMILIES[index % len(_FAMILIES)], usage))
        program = Program(steps, rows, cols)
        names = frozenset(step.op for step in steps)
        if names in seen or not (known is None or known.issuperset(steps)):
            continue
        if _is_sound(program):
            seen.add(names)
            usage.update(names)
            return program
    raise RuntimeError(f"no sound program number {index} in {MAX_ATTEMPTS} draws; ask for fewer synthetic tasks")


def _draw_ops(rng: np.random.Generator, family: str, usage: Counter[str]) -> list[Op]:
    """Two heavy steps, one or two light ones, and what the family asks for, in random order."""
    heavy = _least_used(rng, lambda op: op.is_heavy, 2, usage)
    while not any(op.name in _CLEAR_WINS for op in heavy):
        heavy = _least_used(rng, lambda op: op.is_heavy, 2, usage)
    light = _least_used(rng, lambda op: not op.is_heavy and not op.over_row, 2 if family == "chain" else 1, usage)
    ops = heavy + light
    if family == "row" or (family == "reduce" and rng.random() < 0.5):
        ops += _least_used(rng, lambda op: op.over_row and not op.reduces, 1, usage)
    ops = [ops[k] for k in rng.permutation(len(ops))]
    if family == "reduce":
        ops += _least_used(rng, lambda op: op.reduces, 1, usage)
    return ops


def _least_used(rng: np.random.Generator, belongs: Callable[[Op], bool], count: int, usage: Counter[str]) -> list[Op]:
    pool = [op for op in OPS.values() if belongs(op)]
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
    x, weight = _probe_input(program, seed=1)
    _, other_weight = _probe_input(program, seed=2)
    expected = evaluate(program.steps, x, weight)
    if program.has_weight and _signal(evaluate(program.steps, x, other_weight), expected) < MIN_SIGNAL:
        return False
    body = program.steps[:-1] if program.reduces else program.steps
    faults = faulty_steps(program)
    num_constants = sum(len(OPS[step.op].constants) - 1 for step in body if step.constant is not None)
    return len(faults["missing_step"]) == len(body) and len(faults["wrong_constant"]) == num_constants


def is_stable(program: Program) -> bool:
    """The output moves with the input; it rounds well and stays moderate under the judge's transforms of the input."""
    x, weight = _probe_input(program, seed=1)
    other, _ = _probe_input(program, seed=2)
    if _signal(evaluate(program.steps, other, weight), evaluate(program.steps, x, weight)) < MIN_SIGNAL:
        return False
    for changed in (x, 3 * x, 0.01 * x, -x, x + 1):
        y = evaluate(program.steps, changed, weight)
        if not np.isfinite(y).all() or np.abs(y).max() > MAX_OUTPUT:
            return False
        rounded = evaluate(program.steps, changed.astype(np.float32), weight.astype(np.float32))
        if _in_tolerances(rounded, y).max() > MAX_ROUNDING:
            return False
    return True


def _probe_input(program: Program, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A few rows of the task's input distribution, and a weight."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((8, program.cols)), rng.uniform(0.5, 1.5, program.cols)


def _signal(y: np.ndarray, expected: np.ndarray) -> float:
    return float(np.mean(_in_tolerances(y, expected)))


def _in_tolerances(y: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Differences in units of the judge's tolerance, 1e-4 (|expected| + its RMS)."""
    return np.abs(y - expected) / (1e-4 * (np.abs(expected) + np.sqrt(np.mean(expected**2))))


def to_tasks(programs: list[Program], seed: int, split: str) -> list[Task]:
    return [
        Task(
            task_id=f"synthetic_{seed}_{split}_{index:02d}",
            code=model_source(program),
            source="synthetic",
            ops=[step.op for step in program.steps],
            split=split,
        )
        for index, program in enumerate(programs)
    ]
