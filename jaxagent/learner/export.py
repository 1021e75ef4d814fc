"""`jaxagent model export`: a run's actor as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
from flax import nnx

from jaxagent.config.learner import LearnerConfig
from jaxagent.config.load import ConfigError
from jaxagent.learner.checkpoint import Checkpoints
from jaxagent.learner.types import TrainState
from jaxagent.models.decoder import Decoder, abstract_decoder
from jaxagent.models.export import export_hf
from jaxagent.models.lora import add_adapters, trainable
from jaxagent.models.params import load_config, load_decoder
from jaxagent.run.folder import RunFolder, open_run, starting_model


@dataclass(frozen=True, slots=True)
class Exported:
    """A folder, and which weights of the run are in it."""

    path: Path
    stage: str
    updates: int
    """Of that stage, that the weights have seen."""


def export_run(run_dir: Path, out: Path, *, stage: str | None = None) -> Exported:
    """Writes the actor of the newest checkpoint, or of the end of `stage`, to the new or empty folder `out`.

    config.json, tokenizer and the dtype of every tensor are those of the model that the run started from. Reads the
    actor's parameters alone, and may run beside the run that is being exported.

    Raises ConfigError (no run, no checkpoint, no such stage), CheckpointError, FileExistsError where `out` holds files.
    """
    folder, config = open_run(run_dir)
    model_dir = starting_model(config, folder)
    checkpoints = Checkpoints(checkpoint_folder(folder, stage), writable=False)
    try:
        at = checkpoints.record()["driver"]
        decoder = _actor(checkpoints, model_dir, config.learner)
    finally:
        checkpoints.close()
    path = export_hf(decoder, decoder.config, out, source=model_dir)
    return Exported(path, at["name"], at["updates"])


def checkpoint_folder(folder: RunFolder, stage: str | None) -> Path:
    """The checkpoints of a run, or the one at the end of a stage. Raises ConfigError where there are none."""
    if stage is not None:
        chosen = folder.stage_end(stage)
        if not chosen.is_dir():
            ended = sorted(path.name for path in chosen.parent.glob("*") if path.is_dir())
            raise ConfigError(
                f"--stage {stage}: {folder.root} has no checkpoint of that stage's end; there are: "
                f"{', '.join(ended) or 'none'}"
            )
        return chosen
    if not folder.checkpoints.is_dir() or not any(path.name.isdigit() for path in folder.checkpoints.iterdir()):
        raise ConfigError(
            f"{folder.root}: the run has no checkpoint yet; the first comes with the end of its first stage that "
            "trains, or after checkpoint.every_updates (every_log_updates) updates"
        )
    return folder.checkpoints


def _actor(checkpoints: Checkpoints, model_dir: Path, learner: LearnerConfig) -> Decoder:
    """The decoder on one device, whatever mesh it was saved from. Of one with adapters these alone were saved."""
    if learner.lora is None:
        decoder, saved = abstract_decoder(load_config(model_dir), param_dtype=learner.param_dtype), nnx.Param
    else:
        decoder, saved = load_decoder(model_dir, dtype=learner.param_dtype), trainable
        add_adapters(decoder, learner.lora)
    graphdef, params, rest = nnx.split(decoder, saved, ...)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), params)
    like = {"actor": TrainState(params=shapes, opt_state=None, num_steps=None, num_skipped=None)}  # type: ignore[arg-type]
    return nnx.merge(graphdef, checkpoints.some_arrays(like)["actor"].params, rest)
