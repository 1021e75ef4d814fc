"""The trajectories of one optimizer step: as sequences, packed on the host, and on the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxagent.batches.batch import Batch
from jaxagent.batches.packing import Packed, pack
from jaxagent.batches.sequences import TokenSequence
from jaxagent.config.learner import LearnerConfig
from jaxagent.mesh.host import to_host
from jaxagent.mesh.sharding import batch_sharding


@dataclass(frozen=True, kw_only=True)
class Minibatch:
    sequences: list[TokenSequence]
    packed: Packed
    batch: Batch
    """packed.batch on the mesh, its rows shared out over data, fsdp and expert, and their tokens over context."""
    mesh: Mesh

    @classmethod
    def of(
        cls,
        sequences: Sequence[TokenSequence],
        rewards: Sequence[float],
        *,
        config: LearnerConfig,
        row_tokens: int,
        mesh: Mesh,
    ) -> Minibatch:
        """A microbatch holds the same number of tokens whatever the length of its rows."""
        rows = config.rows_per_microbatch * (config.row_tokens // row_tokens)
        packed = pack(
            sequences, rewards, row_tokens=row_tokens, rows_per_microbatch=rows, aggregation=config.ppo.aggregation
        )
        batch = jax.device_put(packed.batch, batch_sharding(mesh))
        return cls(sequences=list(sequences), packed=packed, batch=batch, mesh=mesh)

    @classmethod
    def short(cls, sequence: TokenSequence, *, config: LearnerConfig, mesh: Mesh) -> Minibatch:
        """One sequence in the smallest batch that the mesh can share out, for what is computed beside training."""
        multiple = 8 * config.mesh.context  # as of learner.row_tokens
        rows = config.mesh.data * config.mesh.fsdp * config.mesh.expert
        packed = pack(
            [sequence],
            [0.0],
            row_tokens=-(-sequence.num_tokens // multiple) * multiple,
            rows_per_microbatch=rows,
            aggregation=config.ppo.aggregation,
        )
        batch = jax.device_put(packed.batch, batch_sharding(mesh))
        return cls(sequences=[sequence], packed=packed, batch=batch, mesh=mesh)

    @property
    def num_microbatches(self) -> np.int32:
        return np.int32(self.packed.num_microbatches)

    def put(self, array: np.ndarray) -> jax.Array:
        """[M, B, T] beside the batch."""
        return jax.device_put(array, batch_sharding(self.mesh))

    def policy_tokens(self, per_token: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """[M, B, T] arrays, on device or host -> the entries of the policy's tokens."""
        mask = self.packed.batch.loss_mask
        return {name: array[mask] for name, array in to_host(dict(per_token)).items()}

    def per_sequence(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """One [length] array a sequence -> the entries of the policy's tokens."""
        return self.packed.scatter(arrays)[self.packed.batch.loss_mask]
