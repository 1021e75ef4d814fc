"""Lessons: generated dialogues about generated tasks; a decoder without pre-training learns from them what kernels are.

A model that is trained from scratch has never seen code. Two dozen train tasks it would learn by heart, and answer
every new task with one of them; from a few thousand lessons, seen once, it learns to read a task and to translate it.
Lessons are text: nothing in them is executed, timed or rewarded, and every style of kernel is as frequent as another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxagent.batches.sequences import TokenSequence
from jaxagent.synthesis.demo import draw_step, is_stable, to_tasks
from jaxagent.synthesis.expert import Habits, expert_script
from jaxagent.synthesis.frames import DIALECTS
from jaxagent.synthesis.imagined import ImaginedWorkdir
from jaxagent.synthesis.kernels import OPS, Op, Program, parse_model
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import Parser, make_parser
from rollout.prompts import render_prompt
from rollout.scripted import Script
from sandbox.skill import Skill
from sandbox.types import Task

MIN_STEPS, MAX_STEPS = 2, 6
MAX_ATTEMPTS_PER_LESSON = 50
_REDUCES = 0.3
"""Share of lessons that end in a reduction."""
_FAULTS = (0.75, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0)
_FAULTLESS = (1.0, *(0.0 for _ in _FAULTS[1:]))
"""Of the first draft in an agentic lesson, in the order of Habits.faults."""


def lesson_tasks(seed: int, count: int, *, train: Sequence[Task], heldout: Sequence[Task]) -> list[Task]:
    """`count` tasks of two to six random steps in the shapes of `train`, none with a composition of either set.

    Operators that are for CUDA alone occur where `train` has one of them.
    Steps need not make a kernel slow or fast: lessons are not timed.
    """
    rng = np.random.default_rng([seed, 0x1E55])
    shapes = sorted({(program.rows, program.cols) for program in map(parse_model, (task.code for task in train))})
    taken = {tuple(task.ops) for task in (*train, *heldout)}
    has_cuda_ops = any(OPS[name].only_cuda for task in train for name in task.ops)
    ops = [op for op in OPS.values() if has_cuda_ops or not op.only_cuda]
    programs: list[Program] = []
    for _ in range(MAX_ATTEMPTS_PER_LESSON * count):
        if len(programs) == count:
            break
        steps = tuple(draw_step(rng, op) for op in _draw_ops(rng, ops))
        program = Program(steps, *shapes[rng.integers(len(shapes))])
        if tuple(step.op for step in steps) not in taken and is_stable(program):
            taken.add(tuple(step.op for step in steps))
            programs.append(program)
    if len(programs) < count:
        raise RuntimeError(f"only {len(programs)} of {count} lessons could be drawn; ask for fewer")
    return to_tasks(programs, seed, "lesson")


def lesson_sequences(
    tasks: Sequence[Task], chat: ChatFormat, skill: Skill, dialogues: Sequence[DialogueConfig], *, whole: bool
) -> list[TokenSequence]:
    """Each lesson as a dialogue: `loss_mask` is True on the author's replies, but for those that write a wrong kernel.

    Styles and `dialogues` (those of the run's single-turn and agentic stages) take turns. `whole`: in an agentic lesson
    the author checks, repairs and times what it wrote, with imagined results; else all end with a right first answer.
    """
    sequences: list[TokenSequence] = []
    dialect = DIALECTS[skill.name]
    styles = dialect.styles
    for index, task in enumerate(tasks):
        dialogue = dialogues[index // len(styles) % len(dialogues)]
        agentic = whole and dialogue.kind == "agentic"
        habits = Habits(
            styles=_always(index % len(styles)),
            faults=_FAULTS if agentic else _FAULTLESS,
            fixes=1.0,
            improves=0.0,
            repeats=0.0,
            slips=0.0,
        )
        parser = make_parser(dialogue.parser)
        prompt = render_prompt(task, skill, dialogue=dialogue, tools=[], parser=parser)
        opening = chat.start(prompt.system, prompt.user)
        rng = np.random.default_rng([index, 0x1E55])
        script = expert_script(parse_model(task.code), rng, habits, parser, agentic=agentic, dialect=dialect)
        workdir = ImaginedWorkdir(parse_model(task.code), rng, dialect)
        token_ids, loss_mask = _played(script, workdir, chat, opening, parser, agentic=agentic)
        sequences.append(
            TokenSequence(
                trajectory_id=task.task_id,
                token_ids=token_ids,
                loss_mask=loss_mask,
                rollout_logprobs=np.zeros(len(token_ids), np.float32),
                policy_versions=np.full(len(token_ids), -1, np.int32),
                truncated=False,
            )
        )
    return sequences


def _played(
    script: Script, workdir: ImaginedWorkdir, chat: ChatFormat, opening: np.ndarray, parser: Parser, *, agentic: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(token_ids, loss_mask) of the whole dialogue, both [T]."""
    parts = [(opening, False)]
    text = next(script)
    while True:
        calls = parser.parse(text)
        results = workdir.answer(calls)
        writes = any(call.name == "write" for call in calls)
        parts.append((chat.encode_reply(text), workdir.is_right or not writes))
        if not calls or not agentic:
            break
        parts.append((chat.observations(results), False))
        text = script.send(results)
    mask = np.concatenate([np.full(len(token_ids), is_taught) for token_ids, is_taught in parts])
    return np.concatenate([token_ids for token_ids, _ in parts]), mask


def _always(style: int) -> tuple[float, float, float, float]:
    best, second, third, last = (float(style == other) for other in range(4))
    return best, second, third, last


def _draw_ops(rng: np.random.Generator, known: Sequence[Op]) -> list[Op]:
    body = [op for op in known if not op.reduces]
    ops = [body[k] for k in rng.choice(len(body), size=rng.integers(MIN_STEPS, MAX_STEPS + 1), replace=False)]
    if rng.random() < _REDUCES:
        ends = [op for op in known if op.reduces]
        ops[-1] = ends[rng.integers(len(ends))]
    return ops
