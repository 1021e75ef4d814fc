"""The scripted expert, the lessons, and the tokenizer that both are written in."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import Counter

import numpy as np
import pytest
from transformers import AutoTokenizer

from jaxagent.models.scratch_tokenizer import save_tokenizer, train_tokenizer
from jaxagent.synthesis.demo import synthetic_tasks
from jaxagent.synthesis.expert import Draft, ExpertPolicy, Habits, Writer, expert_script, expert_texts
from jaxagent.synthesis.frames import CPP, CUDA, CudaStyle, Dialect, Style, kernel_source, model_new_source
from jaxagent.synthesis.imagined import PASSED, PROFILE, VERIFY, failed_check, timing
from jaxagent.synthesis.kernels import parse_model
from jaxagent.synthesis.lessons import lesson_sequences, lesson_tasks
from jaxagent.synthesis.task_spaces import GPU_SPACE
from rollout.agent_loop import run_dialogue
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.types import ToolCall, Turn
from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.skill import load_skill
from sandbox.types import Candidate, Task

SINGLE = DialogueConfig(kind="single_turn")
AGENTIC = DialogueConfig(kind="agentic", max_turns=12)
TRAIN, HELDOUT = synthetic_tasks(0)
CUDA_TRAIN, _ = synthetic_tasks(0, space=GPU_SPACE)
KERNEL = CPP.kernel


class Workdir:
    """Tools over a dict of files, whose `verification.py` compares the kernel with the right ones, character by character."""

    exhausted = False

    def __init__(self, task: Task, dialect: Dialect = CPP) -> None:
        self.program, self.dialect = parse_model(task.code), dialect
        self.files: dict[str, str] = {}
        self.commands: list[str] = []
        self.judgements: list = []

    def check(self, call: ToolCall) -> ToolCall:
        if call.name == "bash" and "command" in call.arguments:
            return call
        known = call.name == "write" and set(call.arguments) == {"path", "content"}
        return call if known else dataclasses.replace(call, error="malformed")

    async def act(self, call: ToolCall) -> str:
        if call.error is not None:
            return f"error: {call.error}"
        if call.name == "write":
            self.files[call.arguments["path"]] = call.arguments["content"] + "\n"
            return "created " + call.arguments["path"]
        self.commands.append(call.arguments["command"])
        return "correct: it is" if self.is_right else "wrong: it is not"

    @property
    def is_right(self) -> bool:
        right = [kernel_source(self.program, style) for style in self.dialect.styles]
        is_new = self.files.get("model_new.py") == model_new_source(self.program, self.dialect)
        return is_new and self.files.get(self.dialect.kernel) in right


def play(
    task: Task,
    limits: DialogueConfig,
    seed: int,
    habits: Habits | None = None,
    chat: ChatFormat | None = None,
    dialect: Dialect = CPP,
) -> tuple[list[Turn], Workdir]:
    policy = ExpertPolicy(chat, habits=habits, skill=dialect.skill, parser=limits.parser)
    system = "Answer once." if limits.kind == "single_turn" else f"Then run {VERIFY}."
    dialogue = policy.open(
        system=system, user=task.code, session_id="x", seed=seed, max_context=8192, max_reply=2048, temperature=1.0
    )
    workdir = Workdir(task, dialect)
    turns, _ = asyncio.run(run_dialogue(dialogue, workdir, make_parser(limits.parser), limits))
    return turns, workdir


def test_the_expert_is_a_function_of_task_and_seed():
    assert [turn.text for turn in play(TRAIN[0], AGENTIC, 5)[0]] == [
        turn.text for turn in play(TRAIN[0], AGENTIC, 5)[0]
    ]
    assert len({play(TRAIN[0], SINGLE, seed)[0][0].text for seed in range(20)}) > 5


def test_a_single_turn_answer_is_one_reply_that_writes_both_files():
    turns, workdir = play(HELDOUT[0], SINGLE, 0, Habits(faults=(1.0, 0, 0, 0, 0, 0)))
    assert len(turns) == 1
    assert set(workdir.files) == {"kernels/kernel.cpp", "model_new.py"}
    assert workdir.is_right


def test_drafts_are_right_and_styled_as_often_as_the_habits_say():
    habits = Habits()
    outcomes: Counter[bool] = Counter()
    parallel = 0
    for seed in range(300):
        _, workdir = play(TRAIN[seed % len(TRAIN)], SINGLE, seed)
        outcomes[workdir.is_right] += 1
        parallel += "omp parallel" in workdir.files["kernels/kernel.cpp"]
    assert outcomes[True] / 300 == pytest.approx(habits.faults[0], abs=0.09)
    assert parallel / 300 == pytest.approx(habits.styles[0] + habits.styles[2], abs=0.09)


def test_an_agent_verifies_repairs_profiles_and_improves():
    broken = Habits(
        faults=(0, 1.0, 0, 0, 0, 0), styles=(0, 0, 0, 1.0), fixes=1.0, profiles=1.0, improves=1.0, repeats=0, slips=0
    )
    turns, workdir = play(TRAIN[0], AGENTIC, 1, broken)
    assert workdir.commands == [VERIFY, VERIFY, PROFILE, VERIFY]
    assert workdir.files["kernels/kernel.cpp"] == kernel_source(workdir.program, Style.VECTOR_PARALLEL)
    assert not turns[-1].tool_calls


def test_an_agent_that_never_repairs_gives_up():
    stubborn = Habits(faults=(0, 1.0, 0, 0, 0, 0), fixes=0.0, repeats=0, slips=0)
    turns, workdir = play(TRAIN[0], AGENTIC, 1, stubborn)
    assert workdir.commands == [VERIFY] * 3
    assert not workdir.is_right
    assert not turns[-1].tool_calls


def test_slips_are_malformed_calls_and_the_dialogue_goes_on():
    turns, workdir = play(TRAIN[0], AGENTIC, 1, Habits(slips=1.0, faults=(1.0, 0, 0, 0, 0, 0)))
    assert any(call.error for turn in turns for call in turn.tool_calls)
    assert workdir.is_right


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(expert_texts(TRAIN), vocab_size=1536), folder)
    return ChatFormat.from_folder(folder)


def test_the_saved_tokenizer_is_loaded_by_transformers_and_ends_a_message(tmp_path):
    tokenizer = train_tokenizer(expert_texts(TRAIN), vocab_size=1536)
    save_tokenizer(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = HELDOUT[0].code + "an unknown word: żółw 😀\t\r\n"
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_special_tokens=False)
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text
    assert loaded.eos_token == "<|im_end|>"
    assert loaded.convert_tokens_to_ids("<|im_start|>") != loaded.unk_token_id


def test_training_the_tokenizer_is_deterministic_and_a_tiny_vocabulary_is_refused():
    texts = expert_texts(TRAIN[:2])
    assert train_tokenizer(texts, vocab_size=600).get_vocab() == train_tokenizer(texts, vocab_size=600).get_vocab()
    with pytest.raises(ValueError, match="vocab_size=200"):
        train_tokenizer(texts, vocab_size=200)


def test_a_line_of_code_and_its_quotation_in_the_kernel_are_the_same_token(chat: ChatFormat):
    for task in HELDOUT:
        kernel = chat.encode(kernel_source(parse_model(task.code), Style.VECTOR_PARALLEL))
        for step in parse_model(task.code).steps:
            (token,) = chat.encode(step.torch_line + "\n")
            assert token in chat.encode(task.code)
            assert token in kernel


def test_tags_of_tool_calls_are_single_tokens(chat: ChatFormat):
    for tag in (
        "<tool_call>\n",
        "</tool_call>",
        "<function=write>\n",
        "</function>\n",
        "<parameter=path>\n",
        "</parameter>\n",
    ):
        assert len(chat.encode(tag)) == 1, tag


def test_answers_and_dialogues_are_short(chat: ChatFormat):
    parser = make_parser("qwen3_coder")
    for task in [*TRAIN, *HELDOUT]:
        for style in Style:
            styles = tuple(float(style is other) for other in Style)
            habits = Habits(styles=styles, faults=(1.0, 0, 0, 0, 0, 0))
            script = expert_script(parse_model(task.code), np.random.default_rng(0), habits, parser, agentic=False)
            assert len(chat.encode_reply(next(script))) < 110
    for seed in range(40):
        turns, _ = play(TRAIN[seed % len(TRAIN)], AGENTIC, seed, chat=chat)
        assert len(turns[-1].prompt_token_ids) + len(turns[-1].token_ids) < 600


def test_lessons_are_new_compositions_with_the_loss_on_right_answers(chat: ChatFormat):
    tasks = lesson_tasks(0, 40, train=TRAIN, heldout=HELDOUT)
    assert tasks == lesson_tasks(0, 40, train=TRAIN, heldout=HELDOUT)
    shapes = [{(p.rows, p.cols) for p in (parse_model(task.code) for task in some)} for some in (tasks, TRAIN)]
    assert shapes[0] <= shapes[1]
    assert len({tuple(task.ops) for task in tasks}) == 40
    assert not {tuple(task.ops) for task in tasks} & {tuple(task.ops) for task in [*TRAIN, *HELDOUT]}
    sequences = lesson_sequences(tasks, chat, load_skill("cpp"), [SINGLE, AGENTIC], whole=True)
    parser, num_repaired = make_parser("qwen3_coder"), 0
    for index, (task, sequence) in enumerate(zip(tasks, sequences, strict=True)):
        taught = chat.decode(sequence.token_ids[sequence.loss_mask])
        rest = chat.decode_raw(sequence.token_ids[~sequence.loss_mask])
        assert task.code.strip() in rest
        assert chat.is_closed(sequence.token_ids)
        assert np.all(sequence.rollout_logprobs == 0)
        right = kernel_source(parse_model(task.code), list(Style)[index % 4])
        kernels = [
            call.arguments["content"] + "\n" for call in parser.parse(taught) if call.arguments.get("path") == KERNEL
        ]
        assert kernels == [right], "one right kernel is taught, a wrong draft before it is not"
        is_agentic = index // 4 % 2 == 1
        assert ("utils/verification.py" in rest) == is_agentic
        assert (VERIFY in taught) == (PASSED in rest) == is_agentic
        num_repaired += "reward: -1" in rest
    assert 1 <= num_repaired <= 12, "about a quarter of the twenty agentic lessons begin with a wrong draft"


def test_lessons_that_are_not_whole_end_with_a_right_first_answer(chat: ChatFormat):
    tasks = lesson_tasks(0, 16, train=TRAIN, heldout=HELDOUT)
    for sequence in lesson_sequences(tasks, chat, load_skill("cpp"), [SINGLE, AGENTIC], whole=False):
        (start,) = np.flatnonzero(np.diff(sequence.loss_mask))
        assert sequence.loss_mask[start + 1 :].all()
        assert len(make_parser("qwen3_coder").parse(chat.decode(sequence.token_ids[start + 1 :]))) == 2


def test_what_a_check_and_a_timing_print_in_lessons_is_what_the_judge_prints_by_form():
    program, rng = parse_model(TRAIN[0].code), np.random.default_rng(0)
    right = kernel_source(program, Style.SCALAR_SERIAL)
    number = r"[\d.e+-]+"
    forms = {
        failed_check(
            program, right.removesuffix("}\n"), rng
        ): rf"compile_error: {KERNEL}:\d+:\d+: error: expected '}}'.*",
        failed_check(
            program, right.replace("float v[C], s;\n", ""), rng
        ): rf"compile_error: {KERNEL}:\d+:6: error: 'v' .*",
        failed_check(program, right, rng): rf"wrong: check 1 .* got {number}, expected {number} .*",
        timing(
            Style.VECTOR_PARALLEL, rng
        ): rf"correct; {number} ms .*, torch.compile {number} ms: {number}x\nreward: 3",
        timing(Style.SCALAR_SERIAL, rng): r"correct; .*\nreward: [12]",
    }
    for text, form in forms.items():
        assert re.fullmatch(form, text, re.DOTALL), text


HERMES = DialogueConfig(kind="agentic", max_turns=12, parser="hermes")


def test_the_expert_writes_cuda_in_the_tool_calls_of_qwen():
    broken = Habits(
        faults=(0, 1.0, 0, 0, 0, 0, 0), styles=(0, 0, 0, 1.0), fixes=1.0, profiles=1.0, improves=1.0, repeats=0, slips=0
    )
    for task in CUDA_TRAIN[:8]:
        turns, workdir = play(task, HERMES, 1, broken, dialect=CUDA)
        assert workdir.commands == [VERIFY, VERIFY, PROFILE, VERIFY]
        assert workdir.is_right
        assert workdir.files[CUDA.kernel] == kernel_source(workdir.program, CudaStyle.BLOCK_VECTOR)
        assert turns[0].text.startswith("A block a row") and '{"name": "write", "arguments"' in turns[0].text


def test_every_damage_changes_the_text_of_every_cuda_kernel_in_one_place():
    writer, program = Writer(make_parser("hermes"), CUDA), parse_model(CUDA_TRAIN[0].code)
    for style in CUDA.styles:
        right = writer.kernel_text(program, Draft(style, program.steps)).splitlines()
        without = writer.kernel_text(program, Draft(style, program.steps, "undeclared")).splitlines()
        (gone,) = [line for line in right if line not in without]
        assert len(without) == len(right) - 1 and "float v[" in gone
        assert writer.kernel_text(program, Draft(style, program.steps, "unclosed")).splitlines() == right[:-1]
        beyond = writer.kernel_text(program, Draft(style, program.steps, "out_of_bounds")).splitlines()
        assert [line for line in beyond if line not in right] == [
            next(k for k in right if "<<<" in k).replace("R,", "R + 1,")
        ]


def test_lessons_in_cuda_teach_every_style_and_imagine_nvcc(chat: ChatFormat):
    tasks = lesson_tasks(0, 32, train=CUDA_TRAIN, heldout=[])
    assert {op for task in tasks for op in task.ops} & {"gelu", "bias", "residual", "log_softmax"}
    single = SINGLE.model_copy(update={"parser": "hermes"})
    sequences = lesson_sequences(tasks, chat, load_skill("cuda"), [single, HERMES], whole=True)
    for index, (task, sequence) in enumerate(zip(tasks, sequences, strict=True)):
        taught = make_parser("hermes").parse(chat.decode(sequence.token_ids[sequence.loss_mask]))
        kernels = [call.arguments["content"] + "\n" for call in taught if call.arguments.get("path") == CUDA.kernel]
        assert kernels == [kernel_source(parse_model(task.code), CUDA.styles[index % 4])]


@pytest.mark.nvcc
@pytest.mark.parametrize("damage", ["undeclared", "unclosed"])
def test_what_nvcc_is_imagined_to_say_is_what_it_says(damage: str, tmp_path):
    writer, program = Writer(make_parser("hermes"), CUDA), parse_model(CUDA_TRAIN[0].code)
    compiler = CompileService(CompileConfig(cache_dir=tmp_path, cuda_arch="sm_90"))
    for style in (CudaStyle.BLOCK_VECTOR, CudaStyle.BLOCK_NAIVE):
        text = writer.kernel_text(program, Draft(style, program.steps, damage))
        files = {CUDA.kernel: text, "model_new.py": model_new_source(program, CUDA)}
        said = compiler.compile("cuda", Candidate(files=files)).message.splitlines()
        imagined = failed_check(program, text, np.random.default_rng(0), CUDA).removeprefix("compile_error: ")
        first, *others = imagined.splitlines()
        assert said[0] == first
        if damage == "unclosed":
            assert [line.rstrip() for line in said[1:3]] == others[:2]
