"""The whole pipeline on a few candidates: kept tasks, resuming after a kill, and a language model as composer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from planted_tasks import task

from jaxagent.cli import main
from jaxagent.synthesis.config import SynthesisConfig
from jaxagent.synthesis.evidence_log import EvidenceLog
from jaxagent.synthesis.llm_compose import LLMComposer, LLMError, parse_reply
from jaxagent.synthesis.llm_config import LLMConfig
from jaxagent.synthesis.ops6k import load_ops6k

_SETTINGS = {
    "num_tasks": 3,
    "max_candidates": 8,
    "block": 4,
    "validation": 0.4,
    "compose": {"target_ms": [0.3, 1.0], "curriculum": {1: 0.5, 2: 0.5}, "transformers_share": 0.0},
    "filters": {"min_ms": 0.001, "max_ms": 5000.0},
    "probe": {"timing_ms": 20, "warmup_ms": 10},
}


def _config(folder: Path, **changes: object) -> Path:
    path = folder / "synthesis.yaml"
    path.write_text(yaml.safe_dump(_SETTINGS | changes))
    return path


@pytest.mark.slow
def test_a_killed_synthesis_goes_on_and_repeats_nothing(tmp_path: Path):
    config, out = _config(tmp_path), tmp_path / "tasks.parquet"
    command = [sys.executable, "-m", "jaxagent", "synthesize", str(config), "--out", str(out)]
    first = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    log = tmp_path / "tasks.log" / "log-000000.bin"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size > 4000):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert not out.exists()
    assert main(command[3:]) == 2  # a log is there, and nobody said --resume
    assert main([*command[3:], "--resume"]) == 0
    report = json.loads((tmp_path / "tasks.report.json").read_text())
    assert report["results_kept_from_before"] > 0
    rows = load_ops6k(out)
    assert len(rows) == report["tasks"] == 3
    assert {row.metadata["split"] for row in rows} <= {"train", "validation"}
    assert all(row.metadata["evidence"]["time"]["median_ms"] > 0 and row.metadata["kept"] for row in rows)
    size = sum(path.stat().st_size for path in (tmp_path / "tasks.log").glob("log-*"))
    assert main([*command[3:], "--resume"]) == 0
    assert sum(path.stat().st_size for path in (tmp_path / "tasks.log").glob("log-*")) == size
    assert [row.code for row in load_ops6k(out)] == [row.code for row in rows]


@pytest.mark.slow
@pytest.mark.ray
def test_candidates_run_on_a_ray_cluster_too(tmp_path: Path):
    import ray

    config, out = _config(tmp_path, executor="ray", num_tasks=1, block=2, max_candidates=2), tmp_path / "tasks.parquet"
    try:
        assert main(["synthesize", str(config), "--out", str(out)]) == 0
    finally:
        ray.shutdown()
    assert len(load_ops6k(out)) == 1


def test_a_log_of_another_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    EvidenceLog(tmp_path / "tasks.log", SynthesisConfig(seed=1), resume=False).close()
    more = SynthesisConfig(seed=1, num_tasks=999)
    EvidenceLog(tmp_path / "tasks.log", more, resume=True).close()
    config = _config(tmp_path, seed=2)
    assert main(["synthesize", str(config), "--out", str(tmp_path / "tasks.parquet"), "--resume"]) == 2
    said = capsys.readouterr().err
    assert "was begun with another seed" in said and "another --out" in said


def test_config_errors_name_key_and_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = _config(tmp_path, filters={"min_ms": 9.0, "max_ms": 2.0}, colour="red")
    assert main(["synthesize", str(config), "--out", str(tmp_path / "tasks.parquet")]) == 2
    said = capsys.readouterr().err
    assert "colour: unknown key" in said and "min_ms 9 has to lie below max_ms 2" in said
    assert main(["synthesize", str(_config(tmp_path, source="llm")), "--out", str(tmp_path / "x.parquet")]) == 2
    assert "llm.base_url" in capsys.readouterr().err


def test_the_shipped_config_is_valid():
    from jaxagent.synthesis.config import load_synthesis_config

    config = load_synthesis_config(Path(__file__).parents[3] / "configs" / "synthesis_cpu.yaml")
    assert (config.filters.min_ms, config.filters.max_ms, config.num_tasks) == (1.3, 80.0, 200)


_GOOD = json.dumps({"ops": ["torch.nn.Tanh"], "code": task("return self.act(x)", init="self.act = nn.Tanh()")})


@pytest.fixture
def server():
    """A server with OpenAI's chat completions. Model m fails once, breaks the contract once, then answers well; slow is
    late at the first try of each candidate, and stuck always."""
    asked: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(body)
            breaks = len(asked) == 2 and body["model"] == "m"
            text = "I would rather not." if breaks else f"```json\n{_GOOD}\n```"
            if body["model"] == "stuck" or (body["model"] == "slow" and body["seed"] % 16 == 0):
                done.wait(5.0)
                return
            reply = {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
            }
            self.send_response(500 if len(asked) == 1 and body["model"] == "m" else 200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    done = threading.Event()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", asked
    finally:
        done.set()
        http.shutdown()
        thread.join()
        http.server_close()


def test_a_language_model_is_asked_again_and_its_replies_are_kept(server: tuple[str, list[dict]], tmp_path: Path):
    url, asked = server
    config = LLMConfig(
        base_url=url, model="m", concurrency=1, dollars_per_million_input=2.0, dollars_per_million_output=4.0
    )
    synthesis = SynthesisConfig(source="llm", llm=config)

    def compose() -> LLMComposer:
        log = EvidenceLog(tmp_path / "log", synthesis, resume=True)
        composer = LLMComposer(config, 0, max_operators=5, device="cpu", store=log)
        found = composer.candidates(range(2))
        log.close()
        assert [composed and composed.ops for composed in found] == [["torch.nn.Tanh"]] * 2
        return composer

    usage = compose().usage
    assert (usage.questions, usage.cached, usage.contract_broken) == (3, 0, 1)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.dollars(config)) == (300, 150, 0.0012)
    assert len(asked) == 4  # one failed at the server, one broke the contract
    assert "torch." in asked[0]["messages"][0]["content"] and "at most 5" in asked[0]["messages"][0]["content"]
    assert sum(body["messages"][-1]["content"].startswith("That breaks the contract") for body in asked) == 1
    again = compose().usage
    assert (again.questions, again.cached, len(asked)) == (3, 3, 4)


def test_a_late_reply_is_one_candidates_loss_and_a_server_that_is_always_late_is_an_error(server, tmp_path: Path):
    url, asked = server

    def composer(model: str) -> LLMComposer:
        config = LLMConfig(base_url=url, model=model, timeout_s=0.5)
        log = EvidenceLog(tmp_path / model, SynthesisConfig(source="llm", llm=config), resume=False)
        return LLMComposer(config, 0, max_operators=5, device="cpu", store=log)

    slow = composer("slow")
    assert [found and found.ops for found in slow.candidates(range(2))] == [["torch.nn.Tanh"]] * 2
    assert (slow.usage.questions, slow.usage.late, slow.usage.contract_broken, len(asked)) == (4, 2, 0, 4)
    with pytest.raises(LLMError, match=r"none of 2 candidates had a reply within llm.timeout_s=0.5; raise it"):
        composer("stuck").candidates(range(2))


def test_replies_that_break_the_contract_say_how():
    assert parse_reply(_GOOD).ops == ["torch.nn.Tanh"]
    assert parse_reply('Sure:\n{"ops": ["a"], "code": "x = 1\ny = 2"}').code == "x = 1\ny = 2"
    for text, words in (
        ("no", "no JSON object"),
        ('{"ops": ["a"]}', 'no text under "code"'),
        ('{"ops": [], "code": "x"}', 'no list of names under "ops"'),
    ):
        with pytest.raises(ValueError, match=words):
            parse_reply(text)
