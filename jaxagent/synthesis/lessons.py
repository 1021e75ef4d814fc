"""Lessons: generated pairs of task and answer from which a decoder without pre-training learns the language of kernels.

A model that is trained from scratch has never seen code. Two dozen train tasks it would learn by heart, and answer
every new task with one of them; from a few thousand lessons, seen once, it learns to read a task and to translate it.
Lessons are text: nothing in them is executed, timed or rewarded, and every style of kernel is as frequent as another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxagent.sequences import TokenSequence
from jaxagent.synthesis.demo import draw_step, is_stable, to_tasks
from jaxagent.synthesis.expert import answer_text
from jaxagent.synthesis.kernels import OPS, Op, Program, Style, parse_model
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.prompts import render_prompt
from sandbox.skill import Skill
from sandbox.types import Task

MIN_STEPS, MAX_STEPS = 2, 6
MAX_ATTEMPTS_PER_LESSON = 50
_REDUCES = 0.3
"""Share of lessons that end in a reduction."""


def lesson_tasks(seed: int, count: int, *, train: Sequence[Task], heldout: Sequence[Task]) -> list[Task]:
    """`count` tasks of two to six random steps in the shapes of `train`, none with a composition of either set.

    Steps need not make a kernel slow or fast: lessons are not timed.
    """
    rng = np.random.default_rng([seed, 0x1E55])
    shapes = sorted({(program.rows, program.cols) for program in map(parse_model, (task.code for task in train))})
    taken = {tuple(task.ops) for task in (*train, *heldout)}
    programs: list[Program] = []
    for _ in range(MAX_ATTEMPTS_PER_LESSON * count):
        if len(programs) == count:
            break
        steps = tuple(draw_step(rng, op) for op in _draw_ops(rng))
        program = Program(steps, *shapes[rng.integers(len(shapes))])
        if tuple(step.op for step in steps) not in taken and is_stable(program):
            taken.add(tuple(step.op for step in steps))
            programs.append(program)
    if len(programs) < count:
        raise RuntimeError(f"only {len(programs)} of {count} lessons could be drawn; ask for fewer")
    return to_tasks(programs, seed, "lesson")


def lesson_sequences(
    tasks: Sequence[Task], chat: ChatFormat, skill: Skill, dialogues: Sequence[DialogueConfig]
) -> list[TokenSequence]:
    """Each lesson as the opening of a dialogue and a right answer: `loss_mask` is True on the answer.

    Styles and `dialogues` (the openings of the run's single-turn and agentic stages) take turns.
    """
    sequences: list[TokenSequence] = []
    styles = list(Style)
    for index, task in enumerate(tasks):
        dialogue = dialogues[index // len(styles) % len(dialogues)]
        parser = make_parser(dialogue.parser)
        prompt = render_prompt(task, skill, dialogue=dialogue, tools=[], parser=parser)
        opening = chat.start(prompt.system, prompt.user)
        answer = chat.encode_reply(answer_text(parse_model(task.code), styles[index % len(styles)], parser))
        token_ids = np.concatenate([opening, answer])
        sequences.append(
            TokenSequence(
                trajectory_id=task.task_id,
                token_ids=token_ids,
                loss_mask=np.arange(len(token_ids)) >= len(opening),
                rollout_logprobs=np.zeros(len(token_ids), np.float32),
                policy_versions=np.full(len(token_ids), -1, np.int32),
                truncated=False,
            )
        )
    return sequences


def _draw_ops(rng: np.random.Generator) -> list[Op]:
    body = [op for op in OPS.values() if not op.reduces]
    ops = [body[k] for k in rng.choice(len(body), size=rng.integers(MIN_STEPS, MAX_STEPS + 1), replace=False)]
    if rng.random() < _REDUCES:
        ends = [op for op in OPS.values() if op.reduces]
        ops[-1] = ends[rng.integers(len(ends))]
    return ops
