"""The GPUs of a run, reserved as one Ray placement group, so that parts that share a GPU get the same one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jaxagent.config.gpus import GpuConfig, GpuPlan, plan_gpus
from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig
from sandbox.actors.devices import PROFILER_RESOURCE

_SAY_EVERY_S = 10.0


class Placement:
    """Options for the actors of a run's parts; a run without GPUs has none, and its actors run where Ray likes."""

    def __init__(self, gpus: GpuConfig, plan: GpuPlan, group: Any = None) -> None:
        self._gpus, self._plan, self._group = gpus, plan, group

    def learner(self) -> dict[str, Any]:
        return {} if self._plan.learner is None else self._options(self._gpus.learner, self._plan.learner)

    def engine(self, index: int) -> dict[str, Any]:
        return self._options(self._gpus.engine, self._plan.engines[index]) if self._plan.engines else {}

    def profilers(self) -> list[dict[str, Any]]:
        """One entry for each device that has a place here."""
        return [self._options(self._gpus.profiler, bundle) for bundle in self._plan.profilers]

    def release(self) -> None:
        """Gives the GPUs back, and ends what still runs on them."""
        if self._group is not None:
            remove_placement_group(self._group)

    def _options(self, share: float, bundle: int) -> dict[str, Any]:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        return {"num_gpus": share, "scheduling_strategy": strategy}


async def place(
    config: RunConfig, *, with_learner: bool, with_judge: bool, own_ray: bool, say: Callable[[str], None]
) -> Placement:
    """Waits until the GPUs are there, and says every ten seconds what for.

    Where the cluster names machines for profilers (the resource `profiler`), those are not placed here. Raises
    ConfigError where shares contradict each other, or GPUs do not come within gpus.wait_s.
    """
    # Somebody else's judge, and machines of profilers' own, bring their GPUs along.
    places_profilers = with_judge and config.judge.device == "cuda" and PROFILER_RESOURCE not in ray.cluster_resources()
    try:
        plan = plan_gpus(
            config.gpus,
            with_learner=with_learner,
            num_engines=config.engine.num_engines,
            num_profilers=config.judge.num_devices if places_profilers else 0,
            weight_transfer=config.engine.weight_transfer,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not plan.bundles:
        return Placement(config.gpus, plan)
    one_host = with_learner and config.engine.weight_transfer != "nccl"
    group = placement_group([{"GPU": size} for size in plan.bundles], strategy="STRICT_PACK" if one_host else "PACK")
    try:
        await _ready(group, _asked(plan, config, one_host=one_host), config.gpus.wait_s, own_ray=own_ray, say=say)
    except BaseException:  # cancellation too: nothing stays reserved; raised again
        remove_placement_group(group)
        raise
    return Placement(config.gpus, plan, group)


async def _ready(group: Any, asked: str, wait_s: float, *, own_ray: bool, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + wait_s
    needed = sum(bundle["GPU"] for bundle in group.bundle_specs)
    ready = asyncio.ensure_future(_until(group.ready()))
    try:
        while True:
            left = deadline - time.monotonic()
            # A Ray of this run's own gets no more machines, so what it lacks now is not waited for.
            never = own_ray and ray.cluster_resources().get("GPU", 0.0) < needed
            if not never and (await asyncio.wait([ready], timeout=max(0.0, min(_SAY_EVERY_S, left))))[0]:
                return await ready
            found = "Ray has {:g} GPU(s), {:g} free".format(
                *(count.get("GPU", 0.0) for count in (ray.cluster_resources(), ray.available_resources()))
            )
            if never or left <= 0:
                raise ConfigError(f"{asked}, and {found}; lower the shares in gpus, or start Ray on more machines")
            say(f"waiting for GPUs: {asked}; {found}")
    finally:
        ready.cancel()


async def _until(reference: Any) -> None:
    await reference


def _asked(plan: GpuPlan, config: RunConfig, *, one_host: bool) -> str:
    learner = [] if plan.learner is None else [plan.learner]
    parts = {"learner": learner, "engines": plan.engines, "profilers": plan.profilers}
    shown = [f"{name} on {', '.join(map(str, sorted(set(places))))}" for name, places in parts.items() if places]
    where = " of one host" if one_host and sum(plan.bundles) > 1 else ""
    return f"gpus of run {config.name} asks for {sum(plan.bundles)} whole GPU(s){where} ({'; '.join(shown)})"
