from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.parsers import make_parser
from rollout.types import ToolCall

NAMES = ["qwen3_coder", "hermes", "llama", "react"]
PLAIN = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)
CODE = 'for (int i = 0; i < n; ++i) y[i] = "a\\n" + x[i]; // <b>\n\n\tif (a && b) {}\n'


def parsed(name: str, text: str) -> list[ToolCall]:
    return make_parser(name).parse(text)


@pytest.mark.parametrize("name", NAMES)
@given(content=PLAIN, key=st.sampled_from(["path", "content", "old"]))
@settings(max_examples=100, deadline=None)
def test_what_a_parser_writes_it_reads_back(name: str, content: str, key: str) -> None:
    parser = make_parser(name)
    call = ToolCall(name="write", arguments={key: content, "path2": "a.cpp"})
    text = f"Some words.\n{parser.render(call.name, call.arguments)}\nmore words"
    assert parser.parse(text) == [call]


@pytest.mark.parametrize("name", NAMES)
def test_several_calls_keep_their_order_and_code_its_characters(name: str) -> None:
    parser = make_parser(name)
    calls = [
        ToolCall(name="write", arguments={"path": "kernels/k.cpp", "content": CODE}),
        ToolCall(name="bash", arguments={"command": "python3 utils/verification.py"}),
    ]
    text = "\n".join(parser.render(call.name, call.arguments) for call in calls)
    assert parser.parse("Thought: both.\n" + text) == calls


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", "All done.", "x < y and <b>", "{'name': 3}", "I would verify, then stop."])
def test_an_answer_without_a_call_has_none(name: str, text: str) -> None:
    assert parsed(name, text) == []


@pytest.mark.parametrize("name", NAMES)
def test_calls_in_a_thought_are_not_made(name: str) -> None:
    parser = make_parser(name)
    call = parser.render("bash", {"command": "ls"})
    assert parser.parse(f"<think>\nmaybe {call}\n</think>\nNo.") == []
    assert parser.parse(f"<think>\nmaybe\n</think>\n{call}") == [ToolCall(name="bash", arguments={"command": "ls"})]
    assert parser.parse(f"<think>\nnever ends\n{call}") == []


@pytest.mark.parametrize("name", NAMES)
@given(cut=st.integers(min_value=1))
@settings(max_examples=60, deadline=None)
def test_a_call_cut_anywhere_is_an_error_or_no_call_but_never_another_call(name: str, cut: int) -> None:
    parser = make_parser(name)
    text = parser.render("write", {"path": "kernels/k.cpp", "content": CODE})
    calls = parser.parse(text[: cut % len(text)])
    assert all(call.error is not None for call in calls)


BROKEN = [
    ("qwen3_coder", "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>", "not closed"),
    ("qwen3_coder", "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>", "outside of <tool_call>"),
    ("qwen3_coder", "<tool_call>\nbash ls\n</tool_call>", "must be followed by <function=NAME>"),
    ("qwen3_coder", "<tool_call>\n<function=bash>\nls\n</function>\n</tool_call>", "found 'ls"),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "'a' stands twice",
    ),
    ("hermes", '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}\n</tool_call>', "not valid JSON"),
    ("hermes", '<tool_call>\n{"name": "bash"}\n</tool_call>', '"arguments"'),
    ("hermes", '<tool_call>\n["bash"]\n</tool_call>', "must be a JSON object"),
    ("hermes", '<tool_call>\n{"name": "bash", "arguments": {"command": "\\ud800"}}\n</tool_call>', "surrogate"),
    ("hermes", '<tool_call>\n{"name": "bash", "arguments": {}}', "expected </tool_call>"),
    ("hermes", "<tool_call>\n" + "[" * 100_000, "not valid JSON"),
    ("react", "Action: bash", "followed by a line Action Input:"),
    ("react", "Action: bash\nAction Input: ls", "not valid JSON"),
    ("react", 'Action: bash and read\nAction Input: {"command": "ls"}', "must name one tool"),
    ("react", 'Action: bash\nAction Input: {"command": "ls"} please', "unexpected text"),
    ("react", 'Action Input: {"command": "ls"}', "without a line Action"),
]


@pytest.mark.parametrize(("name", "text", "reason"), BROKEN)
def test_broken_syntax_comes_back_with_its_reason(name: str, text: str, reason: str) -> None:
    calls = parsed(name, text)
    assert len(calls) == 1
    assert calls[0].error is not None and reason in calls[0].error


@pytest.mark.parametrize("name", NAMES)
def test_a_complete_call_before_a_broken_one_is_kept(name: str) -> None:
    parser = make_parser(name)
    good = parser.render("bash", {"command": "ls"})
    calls = parser.parse(good + "\n" + good[: len(good) // 2])
    assert calls[0] == ToolCall(name="bash", arguments={"command": "ls"})
    assert len(calls) <= 2 and all(call.error for call in calls[1:])


def test_a_qwen_parameter_may_hold_what_looks_like_its_own_end() -> None:
    content = "see </parameter> and </function> and </tool_call> in the text"
    parser = make_parser("qwen3_coder")
    assert parser.parse(parser.render("write", {"content": content}))[0].arguments == {"content": content}


def test_a_hermes_string_may_hold_a_closing_tag() -> None:
    parser = make_parser("hermes")
    assert parser.parse(parser.render("write", {"content": "a </tool_call> b"}))[0].arguments == {
        "content": "a </tool_call> b"
    }


def test_what_a_react_model_imagines_after_observation_is_ignored() -> None:
    text = 'Action: bash\nAction Input: {"command": "ls"}\nObservation: a.cpp\nAction: bash\nAction Input: {"command": "rm"}'
    assert parsed("react", text) == [ToolCall(name="bash", arguments={"command": "ls"})]


def test_an_unknown_parser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="dialogue.parser='xml'.*qwen3_coder, hermes, llama, react"):
        make_parser("xml")


def test_llama_calls_are_read_with_and_without_their_tag_and_in_a_row() -> None:
    ls, cat = ToolCall(name="bash", arguments={"command": "ls"}), ToolCall(name="read", arguments={"path": "a;b"})
    one, two = '{"name": "bash", "parameters": {"command": "ls"}}', '{"name": "read", "parameters": {"path": "a;b"}}'
    assert parsed("llama", f"<|python_tag|>{one}") == [ls]
    assert parsed("llama", f"I look.\n  {one}; {two}") == [ls, cat]
    assert parsed("llama", f"{one};<|python_tag|>{two}\n{one}") == [ls, cat, ls]
    assert parsed("llama", '{"type": "function", "name": "bash", "parameters": {"command": "ls"}}') == [ls]
    assert parsed("llama", f"such a call looks like {one}, as you know") == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "bash", "arguments": {}}', '"parameters" (an object)'),
        ('{"name": "bash", "parameters": {"command": "l', "not valid JSON"),
        ("<|python_tag|>print(1)", "not valid JSON"),
        ('{"name": "", "parameters": {}}', '"name" (a string)'),
    ],
)
def test_llama_calls_that_break_the_convention_say_what_is_wrong(text: str, error: str) -> None:
    (call,) = parsed("llama", text)
    assert call.error is not None and error in call.error
