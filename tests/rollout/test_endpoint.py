from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from openai_server import OpenAIServer, serve

from rollout.agent_loop import run_dialogue
from rollout.config import DialogueConfig, EndpointConfig
from rollout.endpoint import EndpointError, EndpointPolicy
from rollout.parsers import make_parser
from rollout.tools import agent_tools
from rollout.types import ContextFullError, StopReason
from sandbox.backends import open_sandbox
from sandbox.config import SandboxConfig

PARSER = make_parser("hermes")
BUSY = (503, {"message": "overloaded"}, {"retry-after": "0.01"})


def answer(messages: list[dict[str, str]]) -> str:
    """Looks first, and ends once a tool has told it something."""
    if messages[-1]["content"].startswith("<tool_response>"):
        return "I saw " + messages[-1]["content"].splitlines()[1]
    return PARSER.render("bash", {"command": "echo the files"})


@pytest.fixture
def server():
    server = OpenAIServer(answer)
    with serve(server) as url:
        server.url = url  # type: ignore[attr-defined]
        yield server


def endpoint(server: OpenAIServer, **changes) -> EndpointPolicy:
    config = {"base_url": server.url, "model": "scripted", "timeout_s": 10.0, "max_retries": 2}  # type: ignore[attr-defined]
    return EndpointPolicy(EndpointConfig(**config | changes))


def opened(policy: EndpointPolicy, *, max_context: int = 1000, max_reply: int = 100, user: str = "go"):
    return policy.open(
        system="You write kernels.", user=user, session_id="s", seed=5, max_context=max_context,
        max_reply=max_reply, temperature=0.5,
    )  # fmt: skip


async def test_a_dialogue_with_an_endpoint_runs_tools_and_ends(server: OpenAIServer, tmp_path: Path) -> None:
    (tmp_path / "workdir").mkdir()
    sandbox = await open_sandbox(SandboxConfig(backend="process"), tmp_path / "workdir")
    async with endpoint(server) as policy:
        tools = agent_tools(sandbox, timeout_s=20, max_chars=500)
        turns, reason = await run_dialogue(opened(policy), tools, PARSER, DialogueConfig())
    await sandbox.close()
    assert reason is StopReason.FINISHED
    assert [turn.text for turn in turns][1] == "I saw the files"
    assert turns[0].observations == ["the files"] and len(turns[0].token_ids) == 0
    first, second = server.requests
    assert first["messages"] == [
        {"role": "system", "content": "You write kernels."},
        {"role": "user", "content": "go"},
    ]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("scripted", 0.5, 100)
    assert second["messages"][:2] == first["messages"] and len(second["messages"]) == 4
    assert second["messages"][2] == {"role": "assistant", "content": turns[0].text}
    assert first["seed"] != second["seed"]


async def test_trouble_that_passes_is_retried_after_the_time_the_server_asks_for(server: OpenAIServer) -> None:
    server.failures = [BUSY, (429, {"message": "slow down"}, {"retry-after": "0.5"})]
    started = time.monotonic()
    async with endpoint(server) as policy:
        reply = await opened(policy).generate()
    assert reply.text == answer([{"role": "user", "content": "go"}])
    assert len(server.requests) == 3 and time.monotonic() - started > 0.5


async def test_trouble_that_stays_is_an_error_that_says_where_and_how_often(server: OpenAIServer) -> None:
    server.failures = [BUSY] * 9
    async with endpoint(server) as policy:
        with pytest.raises(EndpointError, match=r"endpoint http://127.*\(model 'scripted'\): failed after 3 attempts"):
            await opened(policy).generate()
    assert len(server.requests) == 3


async def test_a_reply_cut_by_the_server_is_marked(server: OpenAIServer) -> None:
    server.answer = lambda messages: "x" * 1000
    async with endpoint(server) as policy:
        reply = await opened(policy, max_reply=20).generate()
    assert reply.completion.finish_reason == "length" and len(reply.text) == 80


async def test_half_a_surrogate_pair_becomes_a_character_that_a_log_can_hold(server: OpenAIServer) -> None:
    server.raw_content = '"a\\ud800b"'
    async with endpoint(server) as policy:
        assert (await opened(policy).generate()).text == "a?b"


async def test_the_context_is_full_when_the_server_has_counted_so(server: OpenAIServer) -> None:
    server.answer = lambda messages: "x" * 400
    async with endpoint(server) as policy:
        dialogue = opened(policy, max_context=230)
        await dialogue.generate()
        dialogue.observe(["y" * 300])
        with pytest.raises(ContextFullError):
            await dialogue.generate()
    assert len(server.requests) == 1


async def test_a_server_that_finds_the_conversation_too_long_fills_the_context(server: OpenAIServer) -> None:
    server.context = 50
    async with endpoint(server) as policy:
        with pytest.raises(ContextFullError, match="maximum context length is 50"):
            await opened(policy).generate()


async def test_a_model_that_wants_the_newer_limit_gets_it_from_then_on(server: OpenAIServer) -> None:
    server.refuses_max_tokens = True
    async with endpoint(server) as policy:
        await opened(policy).generate()
        await opened(policy).generate()
    assert ["max_tokens" in request for request in server.requests] == [True, False, False]
    assert server.requests[2]["max_completion_tokens"] == 100


async def test_the_key_comes_from_the_environment_and_its_absence_is_named(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "sesame"
    monkeypatch.delenv("KERNEL_KEY", raising=False)
    async with endpoint(server, api_key_env="KERNEL_KEY") as policy:
        with pytest.raises(EndpointError, match="access denied; the environment variable KERNEL_KEY is not set"):
            await opened(policy).generate()
    monkeypatch.setenv("KERNEL_KEY", "wrong")
    async with endpoint(server, api_key_env="KERNEL_KEY") as policy:
        with pytest.raises(EndpointError, match="KERNEL_KEY is set but refused"):
            await opened(policy).generate()
    monkeypatch.setenv("KERNEL_KEY", "sesame")
    async with endpoint(server, api_key_env="KERNEL_KEY") as policy:
        assert (await opened(policy).generate()).text


async def test_an_unknown_model_is_an_error_that_lists_the_known_ones(server: OpenAIServer) -> None:
    async with endpoint(server, model="gpt-oops") as policy:
        with pytest.raises(EndpointError, match="'gpt-oops'.*not found; models served there: scripted"):
            await opened(policy).generate()
    assert len(server.requests) == 1  # asking again would not help


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    config = EndpointConfig(base_url=f"http://127.0.0.1:{port}/v1", model="m", max_retries=1)
    async with EndpointPolicy(config) as policy:
        with pytest.raises(EndpointError, match=f"127.0.0.1:{port}.*cannot connect, after 2 attempts.*running at that"):
            await opened(policy).generate()


async def test_a_server_that_does_not_answer_in_time_is_named(server: OpenAIServer) -> None:
    server.delay_s = 1.0
    async with endpoint(server, timeout_s=0.2, max_retries=0) as policy:
        with pytest.raises(EndpointError, match="no answer within endpoint.timeout_s=0.2"):
            await opened(policy).generate()


async def test_a_check_beforehand_says_what_is_wrong_with_a_server_and_asks_for_no_reply(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with endpoint(server) as policy:
        await policy.check()
    async with endpoint(server, model="other") as policy:
        with pytest.raises(EndpointError, match="no model 'other' there; it serves scripted"):
            await policy.check()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.key = "secret"
    async with endpoint(server) as policy:
        with pytest.raises(EndpointError, match="access denied; the environment variable OPENAI_API_KEY is not set"):
            await policy.check()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with EndpointPolicy(EndpointConfig(base_url=f"http://127.0.0.1:{port}/v1", model="m")) as policy:
        with pytest.raises(EndpointError, match="cannot connect, at once"):
            await policy.check()
    assert server.requests == []


async def test_a_reply_carries_what_the_server_counted(server: OpenAIServer) -> None:
    async with endpoint(server) as policy:
        reply = await opened(policy).generate()
    assert reply.completion.usage is not None
    assert reply.completion.usage.prompt_tokens == len("You write kernels." + "go") // 4
    assert reply.completion.usage.completion_tokens == len(reply.text) // 4
    server.raw_content = '"four words of text"'
    async with endpoint(server) as policy:
        silent = await opened(policy).generate()
    assert silent.completion.usage is not None and silent.completion.usage.completion_tokens > 0, "guessed by length"
