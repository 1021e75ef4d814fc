"""A vLLM engine as the project uses it: token ids in, sampled token ids, logprobs and weight versions out.

What the logprobs mean. vLLM runs with `logprobs_mode="processed_logprobs"`: the logprob of a sampled token is taken
from log_softmax(logits / T), the very distribution it was drawn from, at top_p = 1 and without top-k or penalties. (The
default, raw_logprobs, ignores T.) So a learner compares like with like only if it divides its logits by the same T
before its own log_softmax, in `logprobs` and in `old_logprobs` alike; at T = 1 there is nothing to do. T = 0 is argmax:
the distribution is a point, and the logprobs reported are those at T = 1, for reading, not for training.

What a weight version means. Generation stops between two tokens, weights are exchanged, generation goes on. Keys and
values computed with the old weights are dropped and recomputed with the new ones, so every logprob is that of exactly
one policy given its prefix, and the token's version (rollout.token_versions) says which.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rollout.config import EngineConfig
from rollout.engine_process import build_engine, check_plugin, check_transfer, engine_processes
from rollout.engine_requests import check_request, completion, vllm_params, vllm_prompt
from rollout.exchange import Exchange
from rollout.packages import Package, WeightsError, check_layout, read_layout
from rollout.token_versions import TokenVersions, token_versions
from rollout.types import Completion, EngineError, SamplingParams

_GRACE_S = 1.0  # there is nothing to save in the engine's process, and it takes seconds to take itself apart
_SHUTDOWN_S = 20.0


class VllmEngine:
    """One vLLM engine with a process of its own. Errors of the engine are EngineError: start another one.

    Use from one event loop: `start`, then any number of concurrent `generate` and `publish`, then `close`.
    """

    def __init__(self, model_dir: str | Path, config: EngineConfig) -> None:
        """`model_dir` holds config.json and *.safetensors; no tokenizer is needed, or loaded."""
        self._model_dir = Path(model_dir)
        self._config = config
        self._engine: Any = None
        self._versions: TokenVersions
        self._exchange: Exchange
        self._failure: str | None = "it was not started"
        self._version = 0
        self._vocab_size = 0
        self._layout: dict[str, tuple[int, ...]] = {}
        self._processes: list[psutil.Process] = []
        self._requests = itertools.count()
        self._publish_lock = asyncio.Lock()

    @property
    def version(self) -> int:
        """Of the weights that are being sampled from; 0 until the first `publish`."""
        return self._version

    async def start(self, *, version: int = 0) -> float:
        """Loads the model and labels its weights `version`; returns the seconds it took.

        Raises EngineError after `start_timeout_s`, or when vLLM does not come up; no process stays behind.
        """
        files = sorted(self._model_dir.glob("*.safetensors"))
        if not files or not (self._model_dir / "config.json").is_file():
            raise ValueError(
                f"{self._model_dir} is no model folder: config.json and *.safetensors are needed. "
                f"Point model.path at one, or make one with `jaxagent model fetch`"
            )
        check_plugin()
        await asyncio.to_thread(check_transfer, self._config)
        self._layout = read_layout(files)
        began = time.monotonic()
        before = {process.pid for process in multiprocessing.active_children()}
        abandoned = threading.Event()
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                self._engine = await asyncio.to_thread(build_engine, self._model_dir, self._config, abandoned)
                self._processes = engine_processes(before)
                self._vocab_size = self._engine.model_config.get_vocab_size()
                self._failure = None
                self._versions = token_versions(self._engine, max_num_seqs=self._config.max_num_seqs)
                self._exchange = Exchange(self._engine, self._versions)
                await self._exchange.start(version)
                await self.generate([0], SamplingParams(max_tokens=1))  # a shape its kernels lack shows only now
        except BaseException as error:  # cancellation too: a half-started engine must not stay behind
            abandoned.set()
            self._processes = engine_processes(before)
            self._fail(
                f"it was not ready after engine.start_timeout_s={self._config.start_timeout_s}"
                if isinstance(error, TimeoutError)
                else f"it did not start: {error}"
            )
            if not isinstance(error, Exception):
                raise
            raise self._error() from error
        self._version = version
        return time.monotonic() - began

    async def generate(
        self, prompt_token_ids: Sequence[int] | np.ndarray, params: SamplingParams, session_id: str = ""
    ) -> Completion:
        """Samples until a stop token, `max_tokens` or the end of the context; cancelling it frees the engine.

        prompt_token_ids: [P], 0 < P < max_model_len. The stop token, if one was sampled, is the last of `token_ids`.
        Raises ValueError for a request that cannot be served, EngineError when the engine is gone or silent.
        """
        self._check_alive()
        prompt = np.asarray(prompt_token_ids).tolist()
        check_request(prompt, params, config=self._config, vocab_size=self._vocab_size, model_dir=self._model_dir)
        asked = vllm_params(params, num_prompt_tokens=len(prompt), config=self._config)
        request_id = f"{session_id}#{next(self._requests)}"
        output, versions = None, None
        self._versions.begin(request_id)
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                async for finished in self._engine.generate(vllm_prompt(prompt), asked, request_id):
                    output = finished  # the only one: output_kind is FINAL_ONLY
            versions = self._versions.of(request_id, output.outputs[0]) if output and output.outputs else None
        except TimeoutError as error:
            raise EngineError(
                f"{request_id}: no answer within engine.request_timeout_s={self._config.request_timeout_s}"
            ) from error
        except Exception as error:  # EngineDeadError and its kin, which only vLLM can name
            if self._failure is None and not self._engine.errored:
                raise EngineError(f"{request_id} failed: {error}") from error
            self._failure = self._failure or f"its process is gone: {error}"
            raise self._error() from error
        finally:
            self._versions.end(request_id)
        return completion(output, versions, request_id)

    async def publish(self, package: Package, version: int | None = None) -> dict[str, Any]:
        """Exchanges the weights between two tokens; running requests go on with the new ones.

        Returns version, checksum, num_bytes, and what Exchange.run reports: in seconds pause_s (nothing was sampled),
        transfer_s, total_s and their parts, loaded_bytes, and probe_gap where the package has a probe.
        Raises WeightsError when the package is not whole or not this model's: the engine then goes on with the old
        weights and version. Raises EngineError when the exchange broke off halfway, took longer than
        `publish_timeout_s`, or left an engine whose logprobs are not the learner's (`probe_gap`): it is then shut down,
        since its weights are in no known state. A cancelled caller does not stop the exchange.
        """
        if version is not None and version != package.version:
            raise ValueError(f"version={version}, but the package holds version {package.version}")
        return await asyncio.shield(asyncio.ensure_future(self._publish(package)))

    async def check_health(self, *, timeout_s: float = 30.0) -> None:
        """Asks the engine's process for its weight version. Raises EngineError if it does not answer, or disagrees."""
        self._check_alive()
        async with self._publish_lock:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = (await self._exchange.worker_report()).get("version")
            except TimeoutError as error:
                raise EngineError(f"the engine's process gave no sign of life for {timeout_s} s") from error
            except Exception as error:  # see generate
                self._fail(f"its process is gone: {error}")
                raise self._error() from error
            if answer != self._version:
                raise EngineError(f"the engine samples from version {answer}, and was told {self._version}")

    def process_ids(self) -> list[int]:
        """The engine's own processes, for the registry of what is frozen while a kernel is timed.

        The process that calls this one is not among them.
        """
        return [process.pid for process in self._processes if process.is_running()]

    async def close(self) -> None:
        """Ends the engine and its processes; safe to call twice, and after a failure."""
        engine, self._engine = self._engine, None
        if self._failure is None:
            self._failure = "it was closed"
        if engine is not None:
            try:
                async with asyncio.timeout(_SHUTDOWN_S):
                    await asyncio.to_thread(engine.shutdown, _GRACE_S)
            except TimeoutError:
                pass  # what is left is killed below
        await asyncio.to_thread(self._kill)

    async def _publish(self, package: Package) -> dict[str, Any]:
        async with self._publish_lock:
            self._check_alive()
            await asyncio.to_thread(check_layout, package, self._layout, model=self._model_dir)
            try:
                async with asyncio.timeout(self._config.publish_timeout_s):
                    report = await self._exchange.run(package)
            except WeightsError:
                raise
            except Exception as error:  # whatever it was, the weights are in no known state: the engine ends
                self._fail(
                    f"publishing version {package.version} took longer than "
                    f"engine.publish_timeout_s={self._config.publish_timeout_s}"
                    if isinstance(error, TimeoutError)
                    else f"publishing version {package.version} broke off: {error}"
                )
                raise self._error() from error
            self._check_probe(package.version, report.get("probe_gap"))
            self._version = package.version
            return {"num_bytes": package.num_bytes} | report | {"checksum": package.checksum}

    def _check_probe(self, version: int, gap: float | None) -> None:
        # Not `gap > bound`: a NaN is no small gap.
        if gap is not None and not gap <= self._config.probe_gap:
            self._fail(
                f"after version {version} was published its logprobs are {gap:.3g} from the learner's on average, "
                f"allowed is engine.probe_gap={self._config.probe_gap}. The bytes were received as they were sent, so "
                f"vLLM made another model of them, or computes too coarsely (engine.dtype)"
            )
            raise self._error()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._error()

    def _error(self) -> EngineError:
        return EngineError(f"the engine of {self._model_dir} cannot be used: {self._failure}")

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(self._processes, timeout=5.0)
        self._processes = []
