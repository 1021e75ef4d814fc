"""What can be known to be wrong before a run begins: found before a folder is made or a device is touched."""

from __future__ import annotations

import json
import os

from jaxagent.config.gpus import plan_gpus
from jaxagent.config.load import ConfigError
from jaxagent.config.model import ScratchModelConfig
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import LessonStage, PPOStage, SampleStage
from jaxagent.mesh.devices import check_mesh, num_devices, shown
from jaxagent.models.config import DecoderConfig, UnsupportedModelError
from jaxagent.models.families import from_hf, from_scratch
from jaxagent.models.stored import ATTENTION_MATRICES
from jaxagent.run.trackers import check_tracking
from jaxagent.synthesis.frames import DIALECTS
from jaxagent.synthesis.sources import is_synthetic, resolve_tasks
from jaxagent.synthesis.task_spaces import GPU_SPACE
from rollout.config import DialogueConfig
from sandbox.skill import load_skill
from sandbox.types import Task


def check_inputs(config: RunConfig) -> tuple[list[Task], list[Task]]:
    """The train and held-out tasks of a run that can start.

    Raises ConfigError, TaskError or SkillError with one paragraph that names the key and the next step.
    """
    load_skill(config.tasks.skill)
    check_tracking(config.tracking)
    _check_model(config)
    if config.learner.num_learners != 1:
        raise ConfigError(
            f"learner.num_learners={config.learner.num_learners}: this version runs one learner; set it to 1"
        )
    check_mesh(config.learner.mesh, rows_per_microbatch=config.learner.rows_per_microbatch)
    _check_device(config)
    _check_gpus(config)
    _check_lengths(config)
    train, heldout = (
        resolve_tasks(source)[: config.tasks.limit] for source in (config.tasks.train, config.tasks.heldout)
    )
    _check_synthetic(config)
    return train, heldout


def check_evaluation(config: RunConfig, *, uses_engine: bool) -> None:
    """The same for an evaluation alone: of what it reads. Raises ConfigError or SkillError."""
    _check_device(config)
    if uses_engine:
        _check_length(
            "evaluation.dialogue", config.evaluation.dialogue, "engine.max_model_len", config.engine.max_model_len
        )


def _check_model(config: RunConfig) -> None:
    try:
        shape = _shape_of(config)
    except UnsupportedModelError as error:
        raise ConfigError(f"model: {error}") from None
    mesh, lora = config.learner.mesh, config.learner.lora
    if shape.num_experts % mesh.expert:
        raise ConfigError(
            f"learner.mesh.expert={mesh.expert} must divide the model's {shape.num_experts} experts; lower it to one "
            "that does"
        )
    without_adapter = [name for name in (lora.targets if lora else []) if name not in ATTENTION_MATRICES]
    if shape.num_experts and without_adapter:
        raise ConfigError(
            f"learner.lora.targets: experts have no adapters, so {', '.join(without_adapter)} can't be among them; "
            f"use {', '.join(ATTENTION_MATRICES)}"
        )


def _shape_of(config: RunConfig) -> DecoderConfig:
    if isinstance(config.model, ScratchModelConfig):
        return from_scratch(config.model)
    path = config.model.path.expanduser() / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"model.path={config.model.path}: no Hugging Face model folder is there (no config.json); fetch one "
            f"with `jaxagent model fetch NAME --out {config.model.path}`, or name another folder"
        )
    return from_hf(json.loads(path.read_text()))


def _check_device(config: RunConfig) -> None:
    needed, there = config.judge.num_devices * config.judge.cores_per_device, os.cpu_count() or 1
    wanted = load_skill(config.tasks.skill).device
    if wanted != config.judge.device:
        raise ConfigError(
            f"judge.device={config.judge.device}: kernels of tasks.skill={config.tasks.skill} run on {wanted}; set "
            f"judge.device to {wanted}, or choose another skill"
        )
    if wanted == "cpu" and config.judge.num_devices == 1 and needed > there:
        raise ConfigError(
            f"judge.cores_per_device={config.judge.cores_per_device}: this machine has {there} cores; lower it to that"
        )


def _check_gpus(config: RunConfig) -> None:
    """The shares of GPUs fit together, and the learner's its mesh; whether the GPUs are there, Ray says later."""
    gpus, needed = config.gpus, num_devices(config.learner.mesh)
    try:
        plan_gpus(
            gpus,
            with_learner=True,
            num_engines=config.engine.num_engines,
            num_profilers=config.judge.num_devices if config.judge.device == "cuda" else 0,
            weight_transfer=config.engine.weight_transfer,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if gpus.learner and needed != max(1, gpus.learner):
        raise ConfigError(
            f"gpus.learner={gpus.learner:g}: learner.mesh ({shown(config.learner.mesh)}) needs {needed} device(s); set "
            f"gpus.learner to {needed}, or change an axis of the mesh"
        )


def _check_lengths(config: RunConfig) -> None:
    """A trajectory has to fit the engine and a row of the learner."""
    with_dialogue = [stage for stage in config.stages if isinstance(stage, SampleStage | PPOStage)]
    dialogues = {f"stages.{stage.name}.dialogue": stage.dialogue for stage in with_dialogue}
    dialogues["evaluation.dialogue"] = config.evaluation.dialogue
    for key, dialogue in dialogues.items():
        _check_length(key, dialogue, "engine.max_model_len", config.engine.max_model_len)
        _check_length(key, dialogue, "learner.row_tokens", config.learner.row_tokens)


def _check_length(key: str, dialogue: DialogueConfig, name: str, limit: int) -> None:
    if dialogue.max_context_tokens > limit:
        raise ConfigError(
            f"{key}.max_context_tokens={dialogue.max_context_tokens} is more than {name}={limit}; "
            "lower the one or raise the other"
        )


def _check_synthetic(config: RunConfig) -> None:
    """Lessons and the scripted expert know the generated tasks only, each in the language that they are for."""
    source, skill = config.tasks.train, config.tasks.skill
    for stage in config.stages:
        needs_them = isinstance(stage, LessonStage) or (isinstance(stage, SampleStage) and stage.policy == "expert")
        if needs_them and not is_synthetic(source):
            raise ConfigError(
                f"stages.{stage.name}: the scripted expert and its lessons cover synthetic tasks, and "
                f"tasks.train={source}; use synthetic:train, or leave this stage out and start from a "
                "pretrained model"
            )
        if needs_them and (skill not in DIALECTS or (source.startswith(GPU_SPACE.name) and skill != "cuda")):
            raise ConfigError(
                f"stages.{stage.name}: the scripted expert writes C++ (tasks.skill: cpp) for synthetic:train and CUDA "
                f"(cuda) for {GPU_SPACE.name}:train; here tasks.skill={skill} and tasks.train={source}"
            )
    experts = [stage for stage in config.stages if isinstance(stage, SampleStage) and stage.policy == "expert"]
    if len({stage.dialogue.parser for stage in experts}) > 1:
        names = ", ".join(f"stages.{stage.name}.dialogue.parser={stage.dialogue.parser}" for stage in experts)
        raise ConfigError(f"{names}: the scripted expert writes tool calls in one way; give these stages one parser")
