"""What to change in a config that does not fit, the largest saving first; more devices come last."""

from __future__ import annotations

from dataclasses import dataclass

from jaxagent.config.learner import LearnerConfig
from jaxagent.mesh.devices import num_devices
from jaxagent.plan.memory import Memory, group_tokens

LEAST_CHUNK, LEAST_EXPERT_CHUNK = 128, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Keys to change together. The saving is an estimate; a plan with these changes says what it is."""

    changes: dict[str, object]
    devices: int
    saves_bytes: int
    reason: str

    @property
    def overrides(self) -> list[str]:
        return [f"--learner.{key}={str(value).lower()}" for key, value in self.changes.items()]


def advise(memory: Memory, config: LearnerConfig) -> list[Advice]:
    """Every change that makes the fullest moment of an update smaller; following the first, plan by plan, ends in a
    fit, since the last one doubles the devices."""
    found = [_recompute(memory, config), _fewer_rows(memory, config), _smaller_chunks(memory, config)]
    found += [_chunks_of_experts(memory, config), _split_parameters(memory, config), _split_rows(memory, config)]
    useful = [advice for advice in found if advice is not None and advice.saves_bytes > 0]
    useful.sort(key=lambda advice: -advice.saves_bytes)
    return [*useful, _more_devices(memory, config)]


def _recompute(memory: Memory, config: LearnerConfig) -> Advice | None:
    if config.remat is True:
        return None
    return Advice(
        changes={"remat": True},
        devices=num_devices(config.mesh),
        saves_bytes=memory.activations * (1 if config.remat == "keep_attention" else 4) // 5,
        reason="layers are computed again in the backward pass, which takes about a third longer",
    )


def _fewer_rows(memory: Memory, config: LearnerConfig) -> Advice | None:
    mesh = config.mesh
    split = mesh.data * mesh.fsdp * mesh.expert
    each = config.rows_per_microbatch // split
    if each < 2:
        return None
    return Advice(
        changes={"rows_per_microbatch": split * (each // 2)},
        devices=num_devices(mesh),
        saves_bytes=int(memory.of_tokens * (1 - each // 2 / each)),
        reason="a device computes fewer rows at a time, and the update takes more microbatches",
    )


def _smaller_chunks(memory: Memory, config: LearnerConfig) -> Advice | None:
    chunk = max(LEAST_CHUNK, config.logits_chunk_tokens // 4)
    if chunk >= config.logits_chunk_tokens:
        return None
    return Advice(
        changes={"logits_chunk_tokens": chunk},
        devices=num_devices(config.mesh),
        saves_bytes=int(memory.logits * (1 - chunk / config.logits_chunk_tokens)),
        reason="fewer logits are alive at a time",
    )


def _chunks_of_experts(memory: Memory, config: LearnerConfig) -> Advice | None:
    tokens = min(config.expert_chunk_tokens or group_tokens(config), group_tokens(config))
    chunk = max(LEAST_EXPERT_CHUNK, tokens // 8)
    if not memory.experts or chunk >= tokens:
        return None
    return Advice(
        changes={"expert_chunk_tokens": chunk},
        devices=num_devices(config.mesh),
        saves_bytes=int(memory.experts * (1 - chunk / tokens)),
        reason="a mixture computes the experts of fewer tokens at a time",
    )


def _split_parameters(memory: Memory, config: LearnerConfig) -> Advice | None:
    mesh = config.mesh
    return Advice(
        changes={"mesh.data": 1, "mesh.fsdp": mesh.data * mesh.fsdp},
        devices=num_devices(mesh),
        saves_bytes=int(memory.state * (1 - 1 / mesh.data)),
        reason="fsdp shares out rows as data does, and parameters and optimizer as well",
    )


def _split_rows(memory: Memory, config: LearnerConfig) -> Advice | None:
    """Half of an axis that shares out rows goes to the axis that splits them."""
    mesh = config.mesh
    axis = "data" if mesh.data % 2 == 0 else "fsdp"
    if getattr(mesh, axis) % 2 or not _splits_further(config):
        return None
    more_state = memory.state if axis == "fsdp" else 0
    return Advice(
        changes={
            f"mesh.{axis}": getattr(mesh, axis) // 2,
            "mesh.context": 2 * mesh.context,
            "rows_per_microbatch": config.rows_per_microbatch // 2,
        },
        devices=num_devices(mesh),
        saves_bytes=memory.of_tokens // 2 - more_state,
        reason="a device holds half as many tokens of each row",
    )


def _more_devices(memory: Memory, config: LearnerConfig) -> Advice:
    mesh = config.mesh
    if memory.of_tokens > memory.state and _splits_further(config):
        changes: dict[str, object] = {"mesh.context": 2 * mesh.context}
        saves, reason = memory.of_tokens // 2, "each row is shared out over twice as many devices"
    else:
        changes = {"mesh.fsdp": 2 * mesh.fsdp, "rows_per_microbatch": 2 * config.rows_per_microbatch}
        saves, reason = memory.state // 2, "parameters and optimizer are shared out over twice as many devices"
    return Advice(changes=changes, devices=2 * num_devices(mesh), saves_bytes=saves, reason=reason)


def _splits_further(config: LearnerConfig) -> bool:
    return config.row_tokens % (16 * config.mesh.context) == 0
