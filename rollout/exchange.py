"""Exchanging the weights of a running vLLM engine between two tokens, and asking it afterwards what it makes of them.

pause ──► receive, check, load (in the worker) ──► label tokens ──► resume ──► probe
└──────────────────────── nothing is sampled ──────────────────────────┘
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from rollout.packages import REJECTED, Package, PackedPackage, Probe, WeightsError
from rollout.token_versions import TokenVersions

REPORT_METHOD = "jaxagent_weights_report"
_PROBE_PRIORITY = -1  # before every waiting request: whoever publishes waits for it


class Exchange:
    """Of one AsyncLLM. One exchange at a time; what any of its methods raises but WeightsError leaves it unusable."""

    def __init__(self, engine: Any, versions: TokenVersions) -> None:
        self._engine, self._versions = engine, versions
        self._group = ""
        self._num_probes = 0

    async def start(self, version: int) -> None:
        """Labels the weights that were loaded at the start."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={"version": version}))
        await self._versions.start(version)

    async def run(self, package: Package) -> dict[str, Any]:
        """Seconds and sizes. Raises WeightsError where the worker refused the bytes: the old weights then serve on."""
        began = time.monotonic()
        await self._join_group(package)
        joined = time.monotonic()
        # clear_cache also drops the keys and values of running requests: they are recomputed, see rollout.engine.
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        paused = time.monotonic()
        await self._update(package)
        await self._versions.finish_update(package.version)
        loaded = time.monotonic()
        probing = asyncio.ensure_future(self._probe(package.probe)) if package.probe else None
        try:
            await asyncio.sleep(0)  # it is sent off first, and so has a place in the first batch
            await self._engine.resume_generation()
            resumed = time.monotonic()
            gap = {} if probing is None else {"probe_gap": await probing, "probe_s": time.monotonic() - resumed}
        finally:
            if probing is not None:
                probing.cancel()
        return await self.worker_report() | gap | {
            "join_s": joined - began,
            "quiesce_s": paused - joined,
            "transfer_s": loaded - paused,
            "pause_s": resumed - joined,
            "total_s": time.monotonic() - began,
        }  # fmt: skip

    async def worker_report(self) -> dict[str, Any]:
        """Of the worker's last update, or its first version alone (rollout.weight_transfer.TransferEngine.report)."""
        return (await self._engine.collective_rpc(REPORT_METHOD))[0]

    async def _join_group(self, package: Package) -> None:
        if not isinstance(package, PackedPackage) or "join" not in package.source:
            return
        group = package.source["join"]
        if group["name"] == self._group:
            return
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={"group": group}))
        self._group = group["name"]

    async def _update(self, package: Package) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        try:
            await self._engine.start_weight_update()
            await self._engine.update_weights(WeightTransferUpdateRequest(update_info=package.update_info()))
        except Exception as error:  # vLLM hands on a worker's exception as its text alone
            if REJECTED not in str(error):
                raise
            await self._engine.resume_generation()
            raise WeightsError(str(error)) from error

    async def _probe(self, probe: Probe) -> float:
        """Mean distance of the engine's logprobs of the probe's tokens from the learner's."""
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        params = VllmSamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,  # of the prompt's own tokens alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._num_probes += 1
        request_id = f"probe#{self._num_probes}"
        output: Any = None
        stream = self._engine.generate(tokens_input(probe.token_ids), params, request_id, priority=_PROBE_PRIORITY)
        async for finished in stream:
            output = finished
        found = np.asarray(output.prompt_logprobs.logprobs, np.float64)
        expected = np.asarray(probe.logprobs, np.float64)
        if found.shape != expected.shape:
            raise RuntimeError(f"the probe has {len(expected)} logprobs, and vLLM returned {len(found)}")
        return float(np.abs(found - expected).mean())
