"""The scripted expert: solves synthetic tasks in the real sandbox, in C++ or CUDA, with kernels of mixed quality.

It is a teacher on purpose imperfect. A decoder that imitates it knows the language and is right about half of the
time, so that the reward has something to choose from: right over wrong, a good frame over a bad one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxagent.synthesis.demo import faulty_steps
from jaxagent.synthesis.frames import CPP, CUDA, DIALECTS, AnyStyle, Dialect, kernel_source, model_new_source
from jaxagent.synthesis.imagined import DECLARATION, PASSED, PROFILE, VERIFY, failed_check, timing
from jaxagent.synthesis.kernels import Program, Steps, parse_model
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import Parser, make_parser
from rollout.prompts import render_prompt
from rollout.scripted import Opening, Script, ScriptedPolicy
from sandbox.skill import load_skill
from sandbox.types import Task

MAX_REPAIRS = 2

_FAULTS = ("none", "missing_step", "wrong_constant", "wrong_order", "undeclared", "unclosed", "out_of_bounds")
_DAMAGES = ("undeclared", "unclosed", "out_of_bounds")


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the expert does what."""

    styles: tuple[float, float, float, float] = (0.2, 0.15, 0.2, 0.45)
    """Of a first draft, in the order of the dialect's."""
    faults: tuple[float, ...] = (0.7, 0.1, 0.05, 0.05, 0.05, 0.05, 0.0)
    """Of a first draft: none, missing step, wrong constant, wrong order, undeclared variable, missing brace, and in
    CUDA a block too many, which reads and writes out of bounds."""
    fixes: float = 0.75
    """A rewrite after a failed check is right."""
    profiles: float = 0.7
    """A right kernel is timed."""
    improves: float = 0.6
    """A timed kernel that is not the best style is rewritten as the best."""
    repeats: float = 0.08
    """A check is run again with nothing changed."""
    slips: float = 0.08
    """A call is malformed at first."""


CUDA_HABITS = Habits(faults=(0.7, 0.09, 0.04, 0.04, 0.05, 0.04, 0.04))


@dataclass(frozen=True, slots=True)
class Draft:
    """A kernel as the expert writes it: its style, the steps it really does, and damage to its text."""

    style: AnyStyle
    steps: Steps
    damage: str | None = None


class ExpertPolicy(ScriptedPolicy):
    """Policy of the scripted expert. What it does is a function of the task's code and the dialogue's seed.

    The task is read from the user message. A dialogue is agentic where the opening names utils/verification.py,
    else single-turn. `chat` gives its turns token ids, see ScriptedPolicy.
    """

    def __init__(
        self,
        chat: ChatFormat | None = None,
        *,
        parser: str = "qwen3_coder",
        skill: str = "cpp",
        habits: Habits | None = None,
    ) -> None:
        self._parser, self._dialect = make_parser(parser), DIALECTS[skill]
        self._habits = habits or habits_in(self._dialect)
        super().__init__(self._play, chat)

    def _play(self, opening: Opening) -> Script:
        return expert_script(
            parse_model(opening.user),
            np.random.default_rng([opening.seed, 0xE4]),
            self._habits,
            self._parser,
            agentic="utils/verification.py" in opening.system + opening.user,
            dialect=self._dialect,
        )


def habits_in(dialect: Dialect) -> Habits:
    return CUDA_HABITS if dialect is CUDA else Habits()


def expert_script(
    program: Program,
    rng: np.random.Generator,
    habits: Habits,
    parser: Parser,
    *,
    agentic: bool,
    dialect: Dialect = CPP,
) -> Script:
    """The expert's side of one dialogue about `program`."""
    play = _work if agentic else _answer_once
    return play(program, rng, habits, Writer(parser, dialect))


def expert_texts(tasks: Sequence[Task], *, parser: str = "qwen3_coder", skill: str = "cpp") -> list[str]:
    """What a dialogue about `tasks` may hold: openings, the expert's replies, results. A tokenizer learns from it."""
    made = make_parser(parser)
    writer = Writer(made, DIALECTS[skill])
    texts: list[str] = []
    for kind in ("single_turn", "agentic"):
        dialogue = DialogueConfig.model_validate({"kind": kind})
        opening = render_prompt(tasks[0], load_skill(skill), dialogue=dialogue, tools=[], parser=made)
        texts += [f"system\n{opening.system}", f"user\n{opening.user}"]
    for task in tasks:
        program = parse_model(task.code)
        for style in writer.dialect.styles:
            draft = Draft(style, program.steps)
            texts += [task.code, writer.answer(program, draft), writer.repair(program, draft)]
            texts += [writer.improvement(program), writer.bash(VERIFY), writer.bash(PROFILE), _DONE]
            texts += _results(parse_model(tasks[0].code), writer)
    return texts


def expert_answers(task: Task, *, parser: str = "qwen3_coder", skill: str = "cpp") -> list[str]:
    """The right first answers to a task, one of each style."""
    writer, program = Writer(make_parser(parser), DIALECTS[skill]), parse_model(task.code)
    return [writer.answer(program, Draft(style, program.steps)) for style in writer.dialect.styles]


def _results(program: Program, writer: Writer) -> list[str]:
    """Messages with what tools answer, of each form one: the words count here, numbers must not use up a vocabulary."""
    dialect = writer.dialect
    written = (f"created {dialect.kernel}", "created model_new.py")
    results = [written, (PASSED,), *_SLIPS, (timing(dialect.best, np.random.default_rng(0), dialect),)]
    for damage in ("undeclared", "unclosed", None):
        text = writer.kernel_text(program, Draft(dialect.styles[-1], program.steps, damage))
        results.append((failed_check(program, text, np.random.default_rng(0), dialect),))
    return [
        "\n".join(["user", *(f"<tool_response>\n{text}\n</tool_response>" for text in message)]) for message in results
    ]


_SLIPS = (
    ("error: unknown tool 'verify'; tools: bash, read, write, edit",),
    ("error: bash needs the parameter 'command'",),
)


_DONE = "Done."


def _answer_once(program: Program, rng: np.random.Generator, habits: Habits, writer: Writer) -> Script:
    yield writer.answer(program, _draft(program, rng, habits, writer.dialect))


def _work(program: Program, rng: np.random.Generator, habits: Habits, writer: Writer) -> Script:
    """write, verify, repair until it passes, profile, improve, verify, stop; with slips and idle repeats."""
    draft = _draft(program, rng, habits, writer.dialect)
    yield writer.answer(program, draft)
    if rng.random() < habits.slips:
        yield writer.slip(rng)
    observations = yield writer.bash(VERIFY)
    for _ in range(MAX_REPAIRS):
        if _passed(observations):
            break
        is_right = rng.random() < habits.fixes
        yield writer.repair(program, Draft(draft.style, program.steps if is_right else _any_fault(program, rng)))
        observations = yield writer.bash(VERIFY)
    if _passed(observations):
        if rng.random() < habits.repeats:
            yield writer.bash(VERIFY)
        if rng.random() < habits.profiles:
            yield writer.bash(PROFILE)
            if draft.style is not writer.dialect.best and rng.random() < habits.improves:
                yield writer.improvement(program)
                yield writer.bash(VERIFY)
    yield _DONE


def _passed(observations: list[str]) -> bool:
    return any(text.lstrip().lower().startswith("correct") for text in observations)


def _draft(program: Program, rng: np.random.Generator, habits: Habits, dialect: Dialect) -> Draft:
    """A fault that this program cannot show (it has no constant, say) becomes a missing step, or a missing brace."""
    style = dialect.styles[rng.choice(len(dialect.styles), p=habits.styles)]
    fault = _FAULTS[rng.choice(len(habits.faults), p=habits.faults)]
    if fault == "none":
        return Draft(style, program.steps)
    if fault in _DAMAGES:
        return Draft(style, program.steps, damage=fault)
    faults = faulty_steps(program)
    found = faults[fault] or faults["missing_step"]
    if not found:
        return Draft(style, program.steps, damage="unclosed")
    return Draft(style, found[rng.integers(len(found))])


def _any_fault(program: Program, rng: np.random.Generator) -> Steps:
    found = [fault for kind in faulty_steps(program).values() for fault in kind] or [program.steps[:-1]]
    return found[rng.integers(len(found))]


class Writer:
    """Replies in the dialogue's tool-call syntax."""

    def __init__(self, parser: Parser, dialect: Dialect = CPP) -> None:
        self._parser, self.dialect = parser, dialect

    def answer(self, program: Program, draft: Draft) -> str:
        """The plan and both files."""
        model_new = model_new_source(program, self.dialect)
        calls = [self._kernel(program, draft), self._write("model_new.py", model_new)]
        return "\n".join([self.dialect.plans[draft.style], *calls])

    def repair(self, program: Program, draft: Draft) -> str:
        return "\n".join(["That failed: again, step by step.", self._kernel(program, draft)])

    def improvement(self, program: Program) -> str:
        draft = Draft(self.dialect.best, program.steps)
        return "\n".join([self.dialect.plans[draft.style], self._kernel(program, draft)])

    def bash(self, command: str) -> str:
        return self._parser.render("bash", {"command": command})

    def slip(self, rng: np.random.Generator) -> str:
        """A malformed call: a tool that does not exist, or an argument that is missing."""
        return self._parser.render("verify", {}) if rng.random() < 0.5 else self._parser.render("bash", {})

    def kernel_text(self, program: Program, draft: Draft) -> str:
        source = kernel_source(program, draft.style, draft.steps)
        if draft.damage == "undeclared":
            return re.sub(DECLARATION, "", source, count=1, flags=re.MULTILINE)
        if draft.damage == "out_of_bounds":
            return source.replace("<<<R,", "<<<R + 1,")
        return source.removesuffix("}\n") if draft.damage == "unclosed" else source

    def _kernel(self, program: Program, draft: Draft) -> str:
        return self._write(self.dialect.kernel, self.kernel_text(program, draft))

    def _write(self, path: str, text: str) -> str:
        return self._parser.render("write", {"path": path, "content": text.removesuffix("\n")})


__all__ = ["Draft", "ExpertPolicy", "Habits", "Writer", "expert_answers", "expert_script", "expert_texts"]
