"""The socket between a workdir's tools and the judge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from sandbox.backends import open_sandbox
from sandbox.config import SandboxConfig
from sandbox.service import WorkdirService, judgement_text
from sandbox.skill import lay_out, load_skill
from sandbox.types import Artifact, Candidate, CompileResult, DeviceError, Judgement, Outcome, Sanitized, Task

TASK = Task(task_id="t", code="class Model: ...")


class RuleJudge:
    """Judges by a rule on the text, so that a test decides what the verdict is; the real judge has tests of its own."""

    def __init__(self) -> None:
        self.calls: list[tuple[Candidate, str, bool]] = []
        self.gate: asyncio.Event | None = None

    async def sanitize(self, task: Task, candidate: Candidate, *, skill: str) -> Sanitized:
        clean = "right" in candidate.files.get("model_new.py", "")
        return Sanitized(clean=clean, text="found nothing" if clean else "k.cu:7: Invalid __global__ write")

    async def judge(self, task: Task, candidate: Candidate, *, skill: str, timed: bool = True) -> Judgement:
        self.calls.append((candidate, skill, timed))
        if self.gate:
            await self.gate.wait()
        text = candidate.files.get("model_new.py", "")
        if "broken device" in text:
            raise DeviceError("the device is gone")
        if "right" not in text:
            return Judgement(outcome=Outcome.WRONG, reward=-1.0, message="output 0 differs by 3")
        if not timed:
            return Judgement(outcome=Outcome.CORRECT, reward=None, message="")
        times = {"candidate_ms": 0.5, "eager_ms": 2.0, "compile_ms": 1.0}
        message = "correct; 0.5 ms, torch eager 2 ms: 4.00x"
        return Judgement(outcome=Outcome.CORRECT, reward=3.0, message=message, **times)


async def ask(workdir: Path, line: bytes) -> dict:
    reader, writer = await connect(workdir)
    writer.write(line)
    writer.write_eof()
    reply = json.loads(await reader.readline())
    writer.close()
    return reply


async def connect(workdir: Path):
    fd = os.open(workdir / ".service", os.O_DIRECTORY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{fd}/sock")
    finally:
        os.close(fd)


def request(command: str) -> bytes:
    return json.dumps({"command": command}).encode() + b"\n"


@pytest.fixture
async def service(tmp_path: Path):
    workdir = tmp_path / ("a long name " * 15)  # longer than a socket's path may be
    workdir.mkdir()
    service = WorkdirService(RuleJudge(), TASK, "cpp", workdir)
    await service.start()
    yield service
    await service.close()


async def test_verify_and_profile_judge_the_files_as_they_are_at_that_moment(service) -> None:
    workdir = service._workdir
    (workdir / "model_new.py").write_text("wrong")
    assert await ask(workdir, request("verify")) == {
        "ok": False,
        "text": "wrong: output 0 differs by 3\nreward: -1",
        "judgement": service.judgements[0].to_json(),
    }
    (workdir / "model_new.py").write_text("right")
    assert (await ask(workdir, request("verify")))["text"] == "correct"
    reply = await ask(workdir, request("profile"))
    assert reply["ok"] and Judgement.from_json(reply["judgement"]) == service.last_judgement
    assert reply["text"] == "correct; 0.5 ms, torch eager 2 ms: 4.00x\nreward: 3"
    assert [timed for _, _, timed in service._judge.calls] == [False, False, True]
    assert len(service.judgements) == 3


async def test_compile_uses_the_compiler_alone_where_there_is_one(tmp_path: Path) -> None:
    def compiler(skill: str, candidate: Candidate) -> CompileResult:
        good = Artifact(sha256="0", arch="x", shared_object=b"", log="") if candidate.files else None
        return CompileResult(artifact=good, message="" if good else "no kernels/", seconds=0.0)

    service = WorkdirService(RuleJudge(), TASK, "cpp", tmp_path, compile=compiler)
    await service.start()
    assert await ask(tmp_path, request("compile")) == {"ok": False, "text": "no kernels/", "judgement": None}
    (tmp_path / "model_new.py").write_text("right")
    assert await ask(tmp_path, request("compile")) == {"ok": True, "text": "compiled", "judgement": None}
    assert service.judgements == [] and service._judge.calls == []
    await service.close()


async def test_compile_without_a_compiler_is_judged(service) -> None:
    assert await ask(service._workdir, request("compile")) == {"ok": True, "text": "compiled", "judgement": None}


async def test_sanitize_tells_what_was_found_and_counts_as_no_judgement(service) -> None:
    (service._workdir / "model_new.py").write_text("astray")
    found = await ask(service._workdir, request("sanitize"))
    assert found == {"ok": False, "text": "k.cu:7: Invalid __global__ write", "judgement": None}
    (service._workdir / "model_new.py").write_text("right")
    assert (await ask(service._workdir, request("sanitize")))["ok"] and service.judgements == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"verify\n",
        b"[]\n",
        b"{}\n",
        b'{"command": 3}\n',
        b'{"command": "rm"}\n',
        b"\xff\xfe\n",
        b"[" * 3000 + b"\n",
        b"x" * 9000 + b"\n",
    ],
)
async def test_what_is_no_request_is_answered_and_harmless(service, line: bytes) -> None:
    reply = await ask(service._workdir, line)
    assert reply["ok"] is False and '{"command": "verify"}' in reply["text"]
    assert (await ask(service._workdir, request("verify")))["text"].startswith("wrong")


async def test_trouble_of_ours_is_kept_for_the_rollout_and_hidden_from_the_agent(service) -> None:
    (service._workdir / "model_new.py").write_text("broken device")
    service.raise_failure()
    reply = await ask(service._workdir, request("verify"))
    assert reply == {"ok": False, "text": "the judge is not available", "judgement": None}
    with pytest.raises(DeviceError, match="the device is gone"):
        service.raise_failure()
    assert service.judgements == []


async def test_too_many_requests_at_once_are_turned_away(service) -> None:
    service._judge.gate = asyncio.Event()
    waiting = [asyncio.create_task(ask(service._workdir, request("verify"))) for _ in range(4)]
    while len(service._handlers) < 4:
        await asyncio.sleep(0.01)
    assert "busy" in (await ask(service._workdir, request("verify")))["text"]
    service._judge.gate.set()
    assert {reply["text"].split(":")[0] for reply in await asyncio.gather(*waiting)} == {"wrong"}


async def test_the_clock_is_held_exactly_while_the_judge_works(tmp_path: Path) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def hold():
        events.append("hold")
        yield
        events.append("release")

    judge = RuleJudge()
    judge.gate = asyncio.Event()
    service = WorkdirService(judge, TASK, "cpp", tmp_path, hold_clock=hold)
    answer = asyncio.create_task(service.answer("verify"))
    while not judge.calls:
        await asyncio.sleep(0.01)
    assert events == ["hold"]
    judge.gate.set()
    await answer
    assert events == ["hold", "release"]


async def test_close_gives_up_waiting_requests_and_removes_only_its_socket(service) -> None:
    service._judge.gate = asyncio.Event()
    reader, writer = await connect(service._workdir)
    writer.write(request("verify"))
    while not service._judge.calls:
        await asyncio.sleep(0.01)
    await service.close()
    assert await reader.read() == b""
    writer.close()
    await service.close()
    assert list((service._workdir / ".service").iterdir()) == []


async def test_a_link_in_place_of_the_sockets_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "sock").write_text("precious")
    workdir = tmp_path / "task"
    workdir.mkdir()
    (workdir / ".service").symlink_to(outside)
    service = WorkdirService(RuleJudge(), TASK, "cpp", workdir)
    with pytest.raises(OSError):
        await service.start()
    (workdir / ".service").unlink()
    await service.start()
    (workdir / ".service").rename(workdir / "moved")
    (workdir / ".service").symlink_to(outside)
    await service.close()
    assert (outside / "sock").read_text() == "precious"


@pytest.mark.parametrize("backend", ["process", pytest.param("docker", marks=pytest.mark.docker)])
async def test_the_tools_of_a_workdir_reach_the_service_and_wait_without_losing_their_time(
    tmp_path: Path, backend
) -> None:
    workdir = tmp_path / "task"
    lay_out(load_skill("cpp"), TASK, workdir)
    judge = RuleJudge()
    async with contextlib.AsyncExitStack() as stack:
        box = await open_sandbox(SandboxConfig(backend=backend, warm_containers=0), workdir)
        stack.push_async_callback(box.close)
        service = WorkdirService(judge, TASK, "cpp", box.workdir, hold_clock=box.hold_clock)
        await service.start()
        stack.push_async_callback(service.close)
        result = await box.exec("echo nothing > model_new.py; python3 utils/verification.py", timeout_s=20)
        assert (result.exit_code, result.output) == (1, "wrong: output 0 differs by 3\nreward: -1\n")
        result = await box.exec("echo right > model_new.py; bash utils/compile.sh", timeout_s=20)
        assert (result.exit_code, result.output) == (0, "compiled\n")
        judge.gate = asyncio.Event()
        command = asyncio.create_task(box.exec("cd kernels; python3 ../utils/profiling.py", timeout_s=1.5))
        await asyncio.sleep(2.2)
        judge.gate.set()
        result = await command
        assert result.exit_code == 0 and result.output.endswith("reward: 3\n"), result
        assert service.last_judgement and service.last_judgement.reward == 3.0
        await service.close()
        result = await box.exec("cd ..; python3 utils/verification.py", timeout_s=20)
        assert result.exit_code == 3 and "no answer from the judge" in result.output


def test_text_of_a_refusal_has_no_times() -> None:
    text = judgement_text(Judgement(outcome=Outcome.REFUSED, reward=-1.0, message="imports numpy"))
    assert text == "refused: imports numpy\nreward: -1"
