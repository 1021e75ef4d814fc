"""A learner on a mesh of four devices, as one process or as one of two: what test_two_processes.py starts.

    python learner_pair.py alone FOLDER
    python learner_pair.py RANK FOLDER PORT

Two PPO updates, a step of fine-tuning and one of value pre-training, then a checkpoint under FOLDER/NAME; metrics and
weights go into FOLDER/NAME.npz. `alone` also continues from the pair's checkpoint and writes what it does next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from test_learner import log_stage, ppo_stage
from toys import make_learner, random_trajectories, weights_of

from jaxagent.config.stages import FineTuneStage, ValuePretrainStage
from jaxagent.learner.checkpoint import Checkpoints

MESH = {"fsdp": 2, "context": 2}


def trained(folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    learner, stage = make_learner(folder, mesh=MESH), ppo_stage()
    learner.start_stage(stage)
    records = [learner.ppo_update(random_trajectories(6, seed=seed), stage) for seed in range(2)]
    finetune, value = log_stage(FineTuneStage), log_stage(ValuePretrainStage)
    learner.start_stage(finetune)
    records += learner.finetune_updates(random_trajectories(6), finetune, max_updates=1)
    learner.start_stage(value)
    records += learner.value_updates(random_trajectories(6), value, max_updates=1)
    return learner, records


def leave(path: Path, learner: Any, records: list[dict[str, Any]]) -> None:
    numbers = {
        f"metric/{index}/{name}": np.float64(np.nan if value is None else value)
        for index, record in enumerate(records)
        for name, value in record.items()
        if name not in ("seconds", "tokens_per_s")
    }
    arrays = numbers | weights_of(learner)
    if jax.process_index() == 0:
        np.savez(path, **arrays)


def go_on(learner: Any) -> list[dict[str, Any]]:
    """The next step of the stage that the checkpoint is in."""
    return learner.value_updates(random_trajectories(6), log_stage(ValuePretrainStage), max_updates=1)


def main(who: str, folder: Path, port: str = "") -> None:
    if who == "alone":
        jax.config.update("jax_num_cpu_devices", 4)
    else:
        jax.config.update("jax_num_cpu_devices", 2)
        jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=int(who))
    assert jax.device_count() == 4, jax.devices()
    name = "alone" if who == "alone" else "pair"
    learner, records = trained(folder)
    leave(folder / f"{name}.npz", learner, records)
    checkpoints = Checkpoints(folder / name)
    learner.save(checkpoints, {"by": name})
    checkpoints.close()
    if who == "alone":
        restored = make_learner(folder, mesh=MESH)
        checkpoints = Checkpoints(folder / "pair", writable=False)
        assert restored.restore(checkpoints) == {"by": "pair"}
        checkpoints.close()
        leave(folder / "restored.npz", restored, records)
        leave(folder / "alone_next.npz", learner, go_on(learner))
        leave(folder / "restored_next.npz", restored, go_on(restored))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
