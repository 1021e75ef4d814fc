from __future__ import annotations

import time
from pathlib import Path

import pytest

from rollout.tools import ToolBox, agent_tools, answer_tools
from rollout.tools.base import cut_middle
from rollout.tools.schema import Parameter, ToolSchema, check_call
from rollout.tools.search import glob_to_regex
from rollout.types import ToolCall
from sandbox.backends import open_sandbox
from sandbox.backends.files_only import FilesSandbox
from sandbox.config import SandboxConfig
from sandbox.types import DeviceError


@pytest.fixture
async def sandbox(tmp_path: Path):
    workdir = tmp_path / "workdir"
    (workdir / "kernels").mkdir(parents=True)
    (workdir / "model.py").write_text("class Model:\n    size = 3\n")
    sandbox = await open_sandbox(SandboxConfig(backend="process"), workdir)
    yield sandbox
    await sandbox.close()


@pytest.fixture
def tools(sandbox) -> ToolBox:
    return agent_tools(sandbox, timeout_s=20.0, max_chars=2000)


async def act(tools: ToolBox, name: str, **arguments) -> str:
    call = tools.check(ToolCall(name=name, arguments=arguments))
    return await tools.act(call)


async def test_bash_keeps_its_directory_and_variables_and_reports_what_is_not_seen(tools: ToolBox) -> None:
    assert await act(tools, "bash", command="cd kernels && export X=5") == "[no output]"
    assert (await act(tools, "bash", command="basename $PWD; echo $X")).split() == ["kernels", "5"]
    assert await act(tools, "bash", command="echo out; echo err >&2; (exit 3)") == "out\nerr\n[exit 3]"
    slow = await act(tools, "bash", command="echo before; sleep 30", timeout_s="1")
    assert slow.startswith("before\n[timed out after 1 s") and slow.count("timed out") == 1
    assert (await act(tools, "bash", command=" ")).startswith("error: command is empty")


async def test_a_background_command_is_watched_and_ended(tools: ToolBox) -> None:
    assert "job_id 1" in await act(tools, "bash", command="echo one; sleep 60", background="true")
    assert "job_id 2" in await act(tools, "bash", command="echo two; exit 4", background="true")
    await act(tools, "bash", command="sleep 0.5")
    assert await act(tools, "bash_output", job_id="1") == "one\n[running]"
    assert await act(tools, "bash_output", job_id="1") == "[running]"
    assert await act(tools, "bash_output", job_id="2") == "two\n[exit 4]"
    assert await act(tools, "kill_bash", job_id="1") == "killed job 1"
    assert await act(tools, "bash_output", job_id="1") == "[killed]"
    assert "no background command has job_id '9'; there are: 1, 2" in await act(tools, "bash_output", job_id="9")


async def test_an_existing_file_is_only_overwritten_after_it_was_read(tools: ToolBox, sandbox) -> None:
    await act(tools, "bash", command="echo old > kernels/k.cpp")
    assert await act(tools, "write", path="kernels/k.cpp", content="new") == (
        "error: kernels/k.cpp exists and you have not read it; read it first"
    )
    assert await act(tools, "read", path="./kernels//k.cpp") == "old"
    assert await act(tools, "write", path="kernels/k.cpp", content="new") == "wrote kernels/k.cpp"
    assert await act(tools, "write", path="kernels/k.cpp", content="newer") == "wrote kernels/k.cpp"
    await act(tools, "bash", command="echo other > kernels/k.cpp")
    assert "changed since you read it" in await act(tools, "write", path="kernels/k.cpp", content="x")
    assert "changed since you read it" in await act(tools, "edit", path="kernels/k.cpp", old="other", new="x")
    assert await sandbox.read_file("kernels/k.cpp") == "other\n"
    assert await act(tools, "write", path="kernels/new.cpp", content="n") == "created kernels/new.cpp"
    assert await sandbox.read_file("kernels/new.cpp") == "n\n"


async def test_read_shows_the_lines_asked_for(tools: ToolBox) -> None:
    await act(tools, "write", path="model_new.py", content="a\nb\nc\n")
    assert await act(tools, "read", path="model_new.py") == "a\nb\nc"
    assert await act(tools, "read", path="model_new.py", offset="2", limit="1") == "b"
    assert "has 3 lines, offset is 9" in await act(tools, "read", path="model_new.py", offset="9")
    assert await act(tools, "read", path="kernels/none.cpp") == "error: no such file: kernels/none.cpp"
    assert await act(tools, "read", path="kernels") == "error: kernels: Is a directory"


async def test_edit_replaces_one_exact_place(tools: ToolBox, sandbox) -> None:
    await act(tools, "write", path="model_new.py", content="x = 1\ny = 1\n")
    assert "old occurs 2 times" in await act(tools, "edit", path="model_new.py", old="1", new="2")
    assert "old does not occur" in await act(tools, "edit", path="model_new.py", old="z", new="2")
    assert "are the same" in await act(tools, "edit", path="model_new.py", old="x", new="x")
    assert await act(tools, "edit", path="model_new.py", old="x = 1", new="x = 2") == "edited model_new.py"
    assert await act(tools, "edit", path="model_new.py", old="y", new="z", replace_all="True") == "edited model_new.py"
    assert await sandbox.read_file("model_new.py") == "x = 2\nz = 1\n"
    assert "does not exist" in await act(tools, "edit", path="kernels/q.cpp", old="a", new="b")


async def test_multi_edit_makes_all_replacements_or_none(tools: ToolBox, sandbox) -> None:
    await act(tools, "write", path="model_new.py", content="a\nb\n")
    failed = await act(
        tools, "multi_edit", path="model_new.py", edits=[{"old": "a", "new": "c"}, {"old": "z", "new": "y"}]
    )
    assert "edit 2 of 2: old does not occur" in failed and "nothing was changed" in failed
    assert await sandbox.read_file("model_new.py") == "a\nb\n"
    done = await act(
        tools, "multi_edit", path="model_new.py", edits='[{"old": "a", "new": "c"}, {"old": "c", "new": "d"}]'
    )
    assert done == "made 2 edits in model_new.py"
    assert await sandbox.read_file("model_new.py") == "d\nb\n"
    await act(tools, "write", path="model_new.py", content="a a\n")
    once = [{"old": "a", "new": "c"}]
    assert "occurs 2 times" in await act(tools, "multi_edit", path="model_new.py", edits=once)
    await act(tools, "multi_edit", path="model_new.py", edits=[once[0] | {"replace_all": True}])
    assert await sandbox.read_file("model_new.py") == "c c\n"


async def test_files_outside_the_workdir_or_of_the_task_are_refused(tools: ToolBox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    assert "outside the workdir" in await act(tools, "read", path="../secret")
    assert "leaves the workdir" in await act(tools, "read", path="/etc/passwd")
    await act(tools, "bash", command="ln -s ../secret leak")
    assert "leaves the workdir" in await act(tools, "read", path="leak")
    await act(tools, "read", path="model.py")
    assert "read-only" in await act(tools, "write", path="model.py", content="class Model: pass")


async def test_glob_and_grep_find_files_and_lines(tools: ToolBox) -> None:
    await act(tools, "write", path="kernels/b.cpp", content='int b; // "relu"')
    await act(tools, "write", path="kernels/a.cpp", content="int a;\nint aa;")
    await act(tools, "bash", command="cd /")  # the model's own directory does not matter
    assert await act(tools, "glob", pattern="kernels/*.cpp") == "kernels/a.cpp\nkernels/b.cpp"
    assert await act(tools, "glob", pattern="**/*.py") == "model.py"
    assert await act(tools, "glob", pattern="*.cpp") == "no file matches"
    assert await act(tools, "glob", pattern="*.cpp", path="./kernels") == "kernels/a.cpp\nkernels/b.cpp"
    assert "No such file" in await act(tools, "glob", pattern="*", path="nowhere")
    assert await act(tools, "grep", pattern="int a+;") == "kernels/a.cpp:1:int a;\nkernels/a.cpp:2:int aa;"
    assert await act(tools, "grep", pattern='"relu"', path="kernels/b.cpp") == 'kernels/b.cpp:1:int b; // "relu"'
    assert await act(tools, "grep", pattern="nothing") == "no line matches"
    assert await act(tools, "grep", pattern="CLASS", ignore_case=True) == "model.py:1:class Model:"
    assert await act(tools, "grep", pattern="int|size", include="*.py") == "model.py:2:    size = 3"
    assert (await act(tools, "grep", pattern="(", path="kernels")).startswith("error: grep:")


def test_glob_patterns_match_as_in_a_shell() -> None:
    cases = [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "d/e/a.py", True),
        ("d/**", "d/e/a.py", True),
        ("?.[ch]", "a.c", True),
        ("[!a].c", "a.c", False),
        ("a+b", "a+b", True),
        ("a.b", "axb", False),
    ]
    for pattern, path, expected in cases:
        assert (glob_to_regex(pattern).fullmatch(path) is not None) is expected, (pattern, path)


async def test_notebooks_and_todos(tools: ToolBox) -> None:
    await act(tools, "write", path="n.ipynb", content='{"cells": [{"cell_type": "code", "source": "1"}]}')
    assert (
        await act(tools, "notebook_edit", path="n.ipynb", cell="1", mode="insert", source="2") == "n.ipynb has 2 cells"
    )
    assert await act(tools, "notebook_edit", path="n.ipynb", cell="0", mode="delete") == "n.ipynb has 1 cells"
    assert "not within 0 to 0" in await act(tools, "notebook_edit", path="n.ipynb", cell="3", source="x")
    todos = [{"content": "verify", "status": "completed"}, {"content": "profile", "status": "pending"}]
    assert await act(tools, "todo_write", todos=todos) == "[x] verify\n[ ] profile"


async def test_a_long_result_is_cut_in_its_middle_and_says_so(sandbox) -> None:
    tools = agent_tools(sandbox, timeout_s=20.0, max_chars=300)
    text = await act(tools, "bash", command="echo first; seq 1 1000; echo last")
    assert len(text) <= 300 and text.startswith("first") and text.endswith("last") and "characters cut" in text
    assert cut_middle("x" * 300, 300) == "x" * 300


async def test_calls_that_the_schema_refuses_come_back_as_errors(tools: ToolBox) -> None:
    assert await act(tools, "delete", path="x") == (
        "error: unknown tool 'delete'; tools: bash, read, write, edit, bash_output, kill_bash, multi_edit, glob, grep, "
        "notebook_edit, todo_write, compile, verify, profile"
    )
    assert await act(tools, "read") == "error: read needs the parameter 'path'"
    assert "has no parameter 'file'; it takes: path, offset, limit" in await act(tools, "read", path="a", file="b")
    assert "offset must be JSON of type integer" in await act(tools, "read", path="a", offset="first")
    assert "offset must be of type integer, got True" in await act(tools, "read", path="a", offset=True)
    edit = "error: multi_edit: edits[0] "
    assert (await act(tools, "multi_edit", path="a", edits=[{"old": "x"}])) == (
        edit + "must be an object with the keys old, new (and may have replace_all)"
    )
    wrong = [{"old": "x", "new": "y", "replace_all": "yes"}]
    assert await act(tools, "multi_edit", path="a", edits=wrong) == edit + "needs a boolean as replace_all, got 'yes'"
    todo = await act(tools, "todo_write", todos=[{"content": "c", "status": "done"}])
    assert "needs one of pending, in_progress, completed as status, got 'done'" in todo
    mode = await act(tools, "notebook_edit", path="n.ipynb", cell="0", mode="add")
    assert mode == "error: notebook_edit: mode must be one of replace, insert, delete, got 'add'"


def test_schemas_have_the_form_that_chat_apis_take() -> None:
    schema = ToolSchema(
        "read", "Reads.", (Parameter("path", "string", "File."), Parameter("n", "integer", "N.", False))
    )
    assert schema.to_json() == {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "File."},
                    "n": {"type": "integer", "description": "N."},
                },
                "required": ["path"],
            },
        },
    }
    broken = ToolCall(name="read", arguments={}, error="broken")
    assert check_call(broken, [schema]) is broken


async def test_the_judge_is_asked_by_tools_of_its_own_and_its_trouble_is_raised(sandbox) -> None:
    asked: list[str] = []

    async def ask(command: str) -> dict[str, object]:
        asked.append(command)
        if command == "profile":
            raise DeviceError("the device is gone")
        return {"ok": False, "text": f"{command}: no good"}

    tools = agent_tools(sandbox, timeout_s=20.0, max_chars=2000, ask=ask)
    assert await act(tools, "compile") == "compile: no good"
    assert await act(tools, "verify") == "verify: no good"
    assert await act(tools, "verify", path="x") == "error: verify has no parameter 'path'; it takes: none"
    with pytest.raises(DeviceError):
        await act(tools, "profile")
    assert asked == ["compile", "verify", "profile"]


async def test_a_small_models_tools_stay_four(sandbox) -> None:
    tools = agent_tools(sandbox, timeout_s=20.0, max_chars=2000, full=False)
    assert [schema.name for schema in tools.schemas] == ["bash", "read", "write", "edit"]


async def test_commands_share_the_sandbox_time_of_their_dialogue(sandbox) -> None:
    tools = agent_tools(sandbox, timeout_s=20.0, max_chars=2000, max_sandbox_s=2.0)
    assert await act(tools, "bash", command="sleep 0.5; echo a") == "a" and not tools.exhausted
    began = time.monotonic()
    assert "timed out" in await act(tools, "bash", command="sleep 10")
    assert time.monotonic() - began < 5 and tools.exhausted
    over = "[timed out: this dialogue's 2 s of sandbox time are used up]"
    assert await act(tools, "bash", command="touch kernels/never.cpp") == over
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("kernels/never.cpp")


async def test_trouble_of_the_sandbox_is_raised_not_observed(tools: ToolBox, sandbox) -> None:
    from sandbox.types import SandboxUnavailableError

    await sandbox.close()
    with pytest.raises(SandboxUnavailableError):
        await act(tools, "read", path="model.py")


async def test_a_single_turn_answer_may_only_write(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "model.py").write_text("x")
    files = FilesSandbox(tmp_path)
    tools = answer_tools(files, max_chars=500)
    assert await act(tools, "write", path="kernels/k.cpp", content="int a;") == "created kernels/k.cpp"
    assert await act(tools, "write", path="kernels/k.cpp", content="int b;") == "wrote kernels/k.cpp"
    assert "read-only" in await act(tools, "write", path="model.py", content="y")
    assert await act(tools, "bash", command="touch ran") == "error: unknown tool 'bash'; tools: write"
    with pytest.raises(PermissionError, match="nothing is executed"):
        await files.exec("touch ran", timeout_s=1)
    await files.close()
    assert (tmp_path / "kernels/k.cpp").read_text() == "int b;\n"
    assert not (tmp_path / "ran").exists() and (tmp_path / "model.py").read_text() == "x"
