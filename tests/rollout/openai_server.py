"""A local HTTP server that speaks OpenAI's chat API with a scripted model: a peer for tests of the endpoint policy."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import fastapi
import uvicorn
from fastapi.responses import JSONResponse


class OpenAIServer:
    """Counts about four characters as one token, keeps every request, and can be told to fail the next ones."""

    def __init__(self, answer: Callable[[list[dict[str, str]]], str], *, key: str | None = None, context: int = 4096):
        self.answer = answer
        self.key = key
        self.context = context
        self.requests: list[dict[str, Any]] = []
        self.failures: list[tuple[int, dict[str, Any], dict[str, str]]] = []
        """(status, error, headers) of the next requests, first one first."""
        self.delay_s = 0.0
        self.refuses_max_tokens = False
        self.raw_content: str | None = None
        """JSON text of the answer, sent as it stands."""
        self.app = fastapi.FastAPI()
        self.app.post("/v1/chat/completions")(self._complete)
        self.app.get("/v1/models")(self._models)

    def _models(self, authorization: str = fastapi.Header("")) -> Any:
        if self.key is not None and authorization != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "bad key"}}, status_code=401)
        return {
            "object": "list",
            "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}],
        }

    def _complete(self, body: dict[str, Any], authorization: str = fastapi.Header("")) -> Any:
        self.requests.append(body)
        time.sleep(self.delay_s)
        if self.failures:
            status, error, headers = self.failures.pop(0)
            return JSONResponse({"error": error}, status_code=status, headers=headers)
        if self.key is not None and authorization != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "bad key"}}, status_code=401)
        if body["model"] != "scripted":
            return JSONResponse({"error": {"message": f"no model {body['model']}"}}, status_code=404)
        if self.refuses_max_tokens and "max_tokens" in body:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return JSONResponse({"error": {"message": message}}, status_code=400)
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        prompt_tokens = sum(len(message["content"]) for message in body["messages"]) // 4
        if prompt_tokens + limit > self.context:
            message = f"This model's maximum context length is {self.context} tokens."
            return JSONResponse({"error": {"message": message, "code": "context_length_exceeded"}}, status_code=400)
        if self.raw_content is not None:
            choice = f'{{"index": 0, "finish_reason": "stop", "message": {{"role": "assistant", "content": {self.raw_content}}}}}'
            raw = (
                f'{{"id": "c", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [{choice}]}}'
            )
            return fastapi.Response(raw, media_type="application/json")
        text = self.answer(body["messages"])
        cut = text[: limit * 4]
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": cut},
                    "finish_reason": "stop" if cut == text else "length",
                }
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": len(cut) // 4,
                "total_tokens": prompt_tokens + len(cut) // 4,
            },
        }


@contextlib.contextmanager
def serve(server: OpenAIServer):
    """Yields the base URL of `server`, listening on a free port of this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    # without a configuration of logging: making one closes the handlers there are, and absl's closes pytest's stderr
    config = uvicorn.Config(server.app, log_config=None, log_level="error", lifespan="off", ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        running.should_exit = True
        thread.join(10)
        listener.close()
