"""The learner's part of a whole schedule, in a process of its own as in a run: what test_devices.py starts.

    python learner_process.py CONFIG FSDP FOLDER

Trains every stage of CONFIG for its updates on random trajectories with a mesh of FSDP devices, and leaves metrics,
the weights published at the end and facts about the devices in FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from toys import random_trajectories

from jaxagent.config.load import load_config
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import FineTuneStage, LessonStage, PPOStage, ValuePretrainStage
from jaxagent.learner.service import LearnerService

SMALL = ["--model.num_layers=2", "--model.hidden_size=64", "--model.intermediate_size=128", "--model.num_heads=2"]
SMALL += ["--model.num_kv_heads=1"]
"""Half of the demo's layers, a quarter of its width: most of the time goes into compilation."""


def train_stage(service: LearnerService, stage: Any, config: RunConfig) -> list[dict[str, Any]]:
    service.start_stage(stage)
    if isinstance(stage, LessonStage):
        return service.lesson_updates(stage, max_updates=99)
    if isinstance(stage, PPOStage):
        return [
            service.ppo_update(
                random_trajectories(stage.trajectories_per_update, seed=update, version=service.policy_version()), stage
            )
            for update in range(stage.updates)
        ]
    trajectories = random_trajectories(sum(s.trajectories for s in config.stages if s.name in stage.data), seed=7)
    method = service.finetune_updates if isinstance(stage, FineTuneStage) else service.value_updates
    return method(trajectories, stage, max_updates=99)


def main(config_path: str, fsdp: str, folder: Path) -> None:
    config = load_config(Path(config_path), ["--learner.mesh.fsdp", fsdp, *SMALL])
    folder.mkdir(parents=True)
    service = LearnerService(config, str(folder / "run"))
    trained = (LessonStage, FineTuneStage, ValuePretrainStage, PPOStage)
    records = {stage.name: train_stage(service, stage, config) for stage in config.stages if isinstance(stage, trained)}
    package = service.write_weights()
    weights = {name: value for file in package.files for name, value in load_file(file.path).items()}
    np.savez(folder / "weights.npz", **weights)
    service.save({"stage": 0, "name": "all", "updates": 1, "complete": True})
    embedding = service._learner._steps.actor.params["embedding"].get_value()
    facts = {
        "devices": [str(device) for device in embedding.sharding.device_set],
        "shard": embedding.addressable_shards[0].data.shape,
        "whole": embedding.shape,
        "version": package.version,
    }
    (folder / "result.json").write_text(json.dumps({"records": records, "facts": facts}))
    service.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
