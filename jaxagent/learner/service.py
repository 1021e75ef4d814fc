"""The learner as a run uses it: built from the run's config, with its checkpoints and its outgoing weights."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxagent.batches.epochs import stable_number
from jaxagent.batches.sequences import TokenSequence
from jaxagent.config.model import PretrainedModelConfig
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import FineTuneStage, LessonStage, PPOStage, SampleStage, Stage, ValuePretrainStage
from jaxagent.learner.checkpoint import Checkpoints
from jaxagent.learner.learner import Learner
from jaxagent.learner.outgoing import make_outgoing
from jaxagent.mesh.devices import provide_devices
from jaxagent.mesh.sharding import make_mesh
from jaxagent.models.config import ComputeConfig
from jaxagent.models.export import export_hf
from jaxagent.models.families import from_scratch
from jaxagent.models.lora import add_adapters
from jaxagent.models.params import load_config, load_decoder, named_weights
from jaxagent.models.scratch_tokenizer import END_OF_MESSAGE, PADDING, save_tokenizer, train_tokenizer
from jaxagent.models.value import Critic
from jaxagent.run.folder import RunFolder, starting_model
from jaxagent.run.fork import keep_stage_end
from jaxagent.run.token_records import TokenRecords, write_token_records
from jaxagent.synthesis.expert import expert_texts
from jaxagent.synthesis.lessons import lesson_sequences, lesson_tasks
from jaxagent.synthesis.sources import resolve_tasks
from rollout.chat import ChatFormat
from rollout.packages import Package, PackedPackage, Probe
from rollout.types import Trajectory
from sandbox.quiet import QuietLease
from sandbox.skill import load_skill

PROBE_TEXT = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.relu(x)
"""
COMPILATION_CACHE = Path("~/.cache/jaxagent/xla")


class LearnerService:
    """One learner of one run. Blocking; an actor gives it a process of its own."""

    def __init__(self, config: RunConfig, root: str, *, host: str = "127.0.0.1") -> None:
        """`host`: this machine's address for engines on others."""
        self._folder = RunFolder(Path(root))
        provide_devices(config.learner.mesh)
        # A run compiles the same few functions as the last one on this machine: half a minute of the demo.
        jax.config.update("jax_compilation_cache_dir", str(COMPILATION_CACHE.expanduser()))
        self._model_dir = prepare_model(config, self._folder)
        learner = config.learner
        compute = ComputeConfig.of(learner)
        mesh = make_mesh(learner.mesh, rows_per_microbatch=learner.rows_per_microbatch)
        actor = load_decoder(self._model_dir, dtype=learner.param_dtype, compute=compute, mesh=mesh)
        if learner.lora is not None:
            add_adapters(actor, learner.lora, seed=config.seed)
        self._learner = Learner(
            actor,
            make_critic=Critic.from_decoder,
            export=named_weights,
            config=learner,
            seed=config.seed,
            dump_dir=self._folder.log,
            vocab_size=load_config(self._model_dir).vocab_size,
        )
        self._checkpoints = Checkpoints(self._folder.checkpoints, keep_last=config.checkpoint.keep_last)
        self._weights = make_outgoing(config, host=host)
        self._probe = probe_tokens(self._model_dir, config.engine.probe_tokens)
        self._config = config
        self._quiet: QuietLease | None = None
        self._lessons: dict[str, list[TokenSequence]] = {}

    def model_dir(self) -> str:
        return str(self._model_dir)

    def policy_version(self) -> int:
        return self._learner.policy_version

    def restore(self) -> dict[str, Any] | None:
        """Continues from the latest checkpoint and returns the driver's record of it; None where there is none."""
        number = self._checkpoints.latest()
        if number is None:
            return None
        driver = self._learner.restore(self._checkpoints, number)
        if driver["complete"]:  # a kill may have come between the checkpoint and its copy
            keep_stage_end(self._folder, driver["name"], number)
        return driver

    def start_stage(self, stage: Stage) -> None:
        self._learner.start_stage(stage)

    def ppo_update(self, trajectories: Sequence[Trajectory], stage: PPOStage) -> dict[str, Any]:
        update = self._learner.progress.updates

        def keep(records: TokenRecords) -> None:
            write_token_records(self._folder.tokens, stage.name, update, records)

        return self._learner.ppo_update(trajectories, stage, on_tokens=keep)

    def finetune_updates(
        self, trajectories: Sequence[Trajectory], stage: FineTuneStage, *, max_updates: int
    ) -> list[dict[str, Any]]:
        lessons = self._lessons_of(stage)
        return self._learner.finetune_updates(trajectories, stage, lessons=lessons, max_updates=max_updates)

    def lesson_updates(self, stage: LessonStage, *, max_updates: int) -> list[dict[str, Any]]:
        return self._learner.lesson_updates(self._lessons_of(stage), stage, max_updates=max_updates)

    def value_updates(
        self, trajectories: Sequence[Trajectory], stage: ValuePretrainStage, *, max_updates: int
    ) -> list[dict[str, Any]]:
        return self._learner.value_updates(trajectories, stage, max_updates=max_updates)

    def write_weights(self) -> Package:
        """The actor's weights where engines can get at them, with what it makes of a few tokens itself."""
        probe = Probe(token_ids=self._probe, logprobs=self._learner.logprobs_of(self._probe)) if self._probe else None
        return self._weights.write(self._learner.actor(), version=self._learner.policy_version, probe=probe)

    def send_weights(self, package: PackedPackage) -> None:
        """The learner's part in an engine's exchange, where one is needed; may run while anything else does."""
        with self._quiet.awake() if self._quiet is not None else contextlib.nullcontext():
            self._weights.send(package)

    def save(self, driver: dict[str, Any]) -> int:
        """A checkpoint with the driver's record; that of a stage's end is kept for runs that start from it."""
        number = self._learner.save(self._checkpoints, driver)
        if driver["complete"]:
            keep_stage_end(self._folder, driver["name"], number)
        return number

    def _lessons_of(self, stage: LessonStage | FineTuneStage) -> list[TokenSequence]:
        """Made when first needed, and kept until another stage needs its own."""
        if stage.name not in self._lessons:
            self._lessons = {stage.name: make_lessons(self._config, stage, self._model_dir) if stage.lessons else []}
        return self._lessons[stage.name]

    def join_quiet(self, registry_dir: Path) -> None:
        """This process stands still while a kernel is timed on its machine."""
        self._quiet = QuietLease(registry_dir)
        self._quiet.register(os.getpid())

    def close(self) -> None:
        self._checkpoints.close()
        self._weights.close()


def probe_tokens(model_dir: Path, count: int) -> list[int]:
    """The first so many tokens of a text that every model finds mostly likely; none for fewer than two."""
    token_ids = list(ChatFormat.from_folder(model_dir).encode(PROBE_TEXT)[:count])
    return token_ids if len(token_ids) > 1 else []


def make_lessons(config: RunConfig, stage: LessonStage | FineTuneStage, model_dir: Path) -> list[TokenSequence]:
    """Lessons with the openings of the run's own dialogues, one of each kind; no task of the run is among them.

    Each stage draws its own: the name is part of the seed. A lesson stage teaches answers, which are the hard part; a
    fine-tuning stage mixes in whole dialogues.
    """
    train, heldout = resolve_tasks(config.tasks.train), resolve_tasks(config.tasks.heldout)
    dialogues = {s.dialogue.kind: s.dialogue for s in config.stages if isinstance(s, SampleStage | PPOStage)}
    seed = stable_number(f"{config.seed}/{stage.name}") % 2**32
    tasks = lesson_tasks(seed, stage.lessons, train=train, heldout=heldout)
    chat, skill = ChatFormat.from_folder(model_dir), load_skill(config.tasks.skill)
    whole = isinstance(stage, FineTuneStage)
    return lesson_sequences(tasks, chat, skill, list(dialogues.values()), whole=whole)


def prepare_model(config: RunConfig, folder: RunFolder) -> Path:
    """The Hugging Face folder that the run starts from; a scratch model is made once, with its tokenizer."""
    if isinstance(config.model, PretrainedModelConfig) or folder.initial_model.exists():
        return starting_model(config, folder)
    texts = expert_texts(resolve_tasks(config.tasks.train), skill=config.tasks.skill)
    tokenizer = train_tokenizer(texts, vocab_size=config.model.vocab_size, max_context=config.learner.row_tokens)
    end, padding = (tokenizer.convert_tokens_to_ids(token) for token in (END_OF_MESSAGE, PADDING))
    assert isinstance(end, int) and isinstance(padding, int)
    shape = from_scratch(config.model).with_tokens(bos=None, eos=(end,), pad=padding)
    decoder = load_decoder(shape, dtype=config.learner.param_dtype, seed=config.seed)
    partial = folder.root / "initial_model.part"
    shutil.rmtree(partial, ignore_errors=True)  # of a start that was killed
    export_hf(decoder, shape, partial)
    save_tokenizer(tokenizer, partial)
    return partial.rename(folder.initial_model)
