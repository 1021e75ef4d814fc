"""The learner: actor and critic on one mesh, trained stage by stage on trajectories."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxagent.batches.epochs import digest, epoch_groups
from jaxagent.batches.minibatch import Minibatch
from jaxagent.batches.rewards import training_reward
from jaxagent.batches.sequences import TokenSequence, to_sequence
from jaxagent.config.learner import LearnerConfig
from jaxagent.config.stages import AnyStage, FineTuneStage, LessonStage, OptimizerConfig, PPOStage, ValuePretrainStage
from jaxagent.learner.checkpoint import Checkpoints
from jaxagent.learner.metrics import Metrics, explained_variance, finetune_metrics, trajectory_metrics
from jaxagent.learner.portable import PortableCheckpoint
from jaxagent.learner.ppo_update import run_ppo_update
from jaxagent.learner.state import LearnerState, Progress
from jaxagent.learner.steps import Steps
from jaxagent.run.token_records import TokenRecords
from rollout.types import Trajectory

LogStage = LessonStage | FineTuneStage | ValuePretrainStage
Update = Callable[[Sequence[TokenSequence], list[int]], Metrics]
"""One optimizer step on the sequences with the given indices."""
Export = Callable[[Any], Iterator[tuple[str, np.ndarray]]]


class Learner:
    """Trains; knows nothing of engines, sandboxes or where trajectories come from.

    A stage begins with `start_stage`; then `ppo_update` is called once a batch, or `finetune_updates` /
    `value_updates` until they return nothing. `save` and `restore` hold everything in between, so a resumed run on
    the same mesh computes the same bits. Trajectories that can't be trained on raise TrajectoryError before anything
    changes: `jaxagent.batches.sequences.screen` finds them beforehand.
    """

    def __init__(
        self,
        actor: nnx.Module,
        *,
        make_critic: Callable[[Any], nnx.Module],
        export: Export,
        config: LearnerConfig,
        seed: int,
        dump_dir: Path,
        vocab_size: int | None = None,
    ) -> None:
        """`make_critic` copies an actor's backbone under a value head of zeros; `export` names weights for the
        engine. `dump_dir` gets the batch that made training stop on non-finite numbers. Takes over `actor`."""
        self._config, self._seed, self._vocab_size = config, seed, vocab_size
        self._make_critic, self._export = make_critic, export
        self._steps = Steps(actor, make_critic(actor), config=config, dump_dir=dump_dir)
        self._progress = Progress()
        self._value_targets: list[np.ndarray] = []

    @property
    def policy_version(self) -> int:
        """Updates of the actor so far; the engine's weights carry it, 0 is the model as loaded."""
        return self._progress.policy_version

    @property
    def progress(self) -> Progress:
        """A copy of where the learner stands."""
        return dataclasses.replace(self._progress)

    def start_stage(self, stage: AnyStage) -> None:
        """Fresh optimizers for what the stage trains. The first stage that needs the critic copies the actor into it.

        Not to be called again for a stage that `restore` continues.
        """
        progress = self._progress
        if isinstance(stage, PPOStage | ValuePretrainStage) and not progress.critic_started:
            self._steps.critic.load(self._make_critic(self._steps.actor.module()))
            progress.critic_started = True
        if isinstance(stage, PPOStage):
            if stage.dialogue.temperature == 0:
                raise ValueError(
                    f"stages.{stage.name}.dialogue.temperature=0: greedy rollouts have no log-probs to "
                    "train on; set it above 0 (1.0 in the paper's recipe)"
                )
            self._steps.actor.start(stage.actor_optimizer)
            self._steps.critic.start(stage.critic_optimizer)
            self._steps.keep_reference()
        elif isinstance(stage, LessonStage | FineTuneStage):
            self._steps.actor.start(stage.optimizer)
        elif isinstance(stage, ValuePretrainStage):
            self._steps.critic.start(stage.optimizer)
        self._value_targets = []
        progress.begin(stage.name)

    def ppo_update(
        self,
        trajectories: Sequence[Trajectory],
        stage: PPOStage,
        *,
        on_tokens: Callable[[TokenRecords], None] | None = None,
    ) -> Metrics:
        """One update of actor and critic on one batch of rollouts; `on_tokens` as of run_ppo_update."""
        started = time.perf_counter()
        self._expect(stage)
        sequences = self._sequences(trajectories, need_logprobs=True)
        rewards = [
            training_reward(trajectory, kind=stage.reward, source=stage.reward_from) for trajectory in trajectories
        ]
        metrics = trajectory_metrics(trajectories, sequences, rewards, policy_version=self.policy_version)
        self._fit_rows(sequences)
        groups = epoch_groups(
            len(sequences),
            group_size=-(-len(sequences) // self._config.ppo.minibatches),
            seed=self._seed,
            stage=f"{stage.name}/minibatches",
            epoch=self._progress.updates,
        )
        minibatches = [self._minibatch(sequences, rewards, group) for group in groups]
        metrics |= run_ppo_update(
            self._steps, minibatches, stage=stage, policy_version=self.policy_version, on_tokens=on_tokens
        )
        self._progress.policy_version += 1
        self._progress.updates += 1
        return metrics | _speed(sequences, started)

    def finetune_updates(
        self,
        trajectories: Sequence[Trajectory],
        stage: FineTuneStage,
        *,
        lessons: Sequence[TokenSequence] = (),
        max_updates: int | None = None,
    ) -> list[Metrics]:
        """The next updates of the actor on the stage's trajectories and lessons, [] once all its epochs are done.

        Every call of a stage gets the same ones in the same order; where to go on is the learner's own state.
        """
        sequences = [*self._sequences(trajectories, need_logprobs=False), *lessons]
        return self._offline_updates(sequences, stage, self._finetune_update(stage.optimizer), max_updates=max_updates)

    def lesson_updates(
        self, lessons: Sequence[TokenSequence], stage: LessonStage, *, max_updates: int | None = None
    ) -> list[Metrics]:
        """The next updates of the actor on generated lessons, [] once each was seen. Otherwise as finetune_updates."""
        return self._offline_updates(lessons, stage, self._finetune_update(stage.optimizer), max_updates=max_updates)

    def value_updates(
        self,
        trajectories: Sequence[Trajectory],
        stage: ValuePretrainStage,
        *,
        rewards: Sequence[float] | None = None,
        max_updates: int | None = None,
    ) -> list[Metrics]:
        """The next updates of the critic towards V + A, computed anew with the critic of each epoch's start.

        `rewards` default to those that the stage names. Otherwise as finetune_updates.
        """
        if rewards is None:
            rewards = [
                training_reward(trajectory, kind=stage.reward, source=stage.reward_from) for trajectory in trajectories
            ]

        def update(sequences: Sequence[TokenSequence], group: list[int]) -> Metrics:
            if self._progress.group == 0:
                self._refresh_value_targets(sequences, rewards, group_size=stage.trajectories_per_update)
            minibatch = self._minibatch(sequences, rewards, group)
            returns = minibatch.packed.scatter([self._value_targets[index] for index in group])
            output = self._steps.value(minibatch, returns, stage.optimizer)
            values = minibatch.policy_tokens(output.per_token)["values"]
            targets = returns[minibatch.packed.batch.loss_mask]
            return {
                "explained_variance": explained_variance(values, targets),
                "mean_value": float(values.mean()),
                "mean_reward": float(np.mean([rewards[index] for index in group])),
                **self._steps.report("critic", output),
            }

        sequences = self._sequences(trajectories, need_logprobs=False)
        return self._offline_updates(sequences, stage, update, max_updates=max_updates)

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """The actor's weights under their Hugging Face names, one at a time."""
        return self._export(self.actor())

    def actor(self) -> Any:
        """The actor as a module with its current parameters, until the next update."""
        return self._steps.actor.module()

    def logprobs_of(self, token_ids: Sequence[int]) -> list[float]:
        """The actor's logprobs of token_ids[1:], each after those before it, at temperature 1."""
        ids = np.asarray(token_ids, np.int32)
        sequence = TokenSequence(
            trajectory_id="probe",
            token_ids=ids,
            loss_mask=np.arange(len(ids)) > 0,
            rollout_logprobs=np.zeros(len(ids), np.float32),
            policy_versions=np.full(len(ids), -1, np.int32),
            truncated=False,
        )
        minibatch = Minibatch.short(sequence, config=self._config, mesh=self._steps.mesh)
        logprobs = self._steps.logprobs(minibatch, temperature=1.0)
        return minibatch.policy_tokens({"logprobs": logprobs})["logprobs"].tolist()

    def save(self, checkpoints: Checkpoints | PortableCheckpoint, driver: dict[str, Any]) -> int:
        """Saves everything, and the driver's own JSON record; returns the checkpoint's number."""
        state = LearnerState(self._progress, self._seed, self._value_targets)
        return checkpoints.save(
            self._steps.arrays() | state.arrays(),
            {"learner": state.record() | self._steps.record(), "driver": driver},
        )

    def restore(self, checkpoints: Checkpoints | PortableCheckpoint, number: int | None = None) -> dict[str, Any]:
        """Continues from a checkpoint, by default the latest, also on another mesh; returns the driver's record."""
        record = checkpoints.record(number)
        state = LearnerState.of(record["learner"], seed=self._seed)
        self._steps.check_base(record["learner"])
        has_reference = record["learner"]["has_reference"]
        restored = checkpoints.arrays(self._steps.arrays(with_reference=has_reference) | state.arrays(), number)
        self._steps.load_arrays(restored)
        self._progress, self._value_targets = state.progress, state.split_targets(restored["value_targets"])
        return record["driver"]

    def _finetune_update(self, optimizer: OptimizerConfig) -> Update:
        def update(sequences: Sequence[TokenSequence], group: list[int]) -> Metrics:
            minibatch = self._minibatch(sequences, [0.0] * len(sequences), group)
            output = self._steps.finetune(minibatch, optimizer)
            self._progress.policy_version += 1
            return finetune_metrics(minibatch.policy_tokens(output.per_token)) | self._steps.report("actor", output)

        return update

    def _offline_updates(
        self, sequences: Sequence[TokenSequence], stage: LogStage, update: Update, *, max_updates: int | None
    ) -> list[Metrics]:
        self._expect(stage)
        progress = self._progress
        progress.check_data(digest([sequence.trajectory_id for sequence in sequences]))
        self._fit_rows(sequences)
        done: list[Metrics] = []
        while progress.epoch < stage.epochs and (max_updates is None or len(done) < max_updates):
            started = time.perf_counter()
            groups = epoch_groups(
                len(sequences),
                group_size=stage.trajectories_per_update,
                seed=self._seed,
                stage=stage.name,
                epoch=progress.epoch,
            )
            group = groups[progress.group]
            metrics = update(sequences, group) | {"epoch": progress.epoch}
            done.append(metrics | _speed([sequences[index] for index in group], started))
            progress.advance(num_groups=len(groups))
        return done

    def _refresh_value_targets(
        self, sequences: Sequence[TokenSequence], rewards: Sequence[float], *, group_size: int
    ) -> None:
        targets: list[np.ndarray] = [np.zeros(0, np.float32)] * len(sequences)
        for start in range(0, len(sequences), group_size):
            group = list(range(start, min(start + group_size, len(sequences))))
            minibatch = self._minibatch(sequences, rewards, group)
            returns = minibatch.packed.gather(self._steps.value_targets(minibatch)["returns"])
            for index, values in zip(group, returns, strict=True):
                targets[index] = values.copy()
        self._value_targets = targets

    def _sequences(self, trajectories: Sequence[Trajectory], *, need_logprobs: bool) -> list[TokenSequence]:
        if not trajectories:
            raise ValueError("an update needs at least one trajectory; the stage's data is empty after filtering")
        return [
            to_sequence(
                trajectory, row_tokens=self._config.row_tokens, vocab_size=self._vocab_size, need_logprobs=need_logprobs
            )
            for trajectory in trajectories
        ]

    def _fit_rows(self, sequences: Sequence[TokenSequence]) -> None:
        """Rows of a stage only ever grow, so it compiles for at most three lengths."""
        longest = max(sequence.num_tokens for sequence in sequences)
        self._progress.fit_rows(longest, row_tokens=self._config.row_tokens)

    def _minibatch(
        self, sequences: Sequence[TokenSequence], rewards: Sequence[float], group: Sequence[int]
    ) -> Minibatch:
        return Minibatch.of(
            [sequences[index] for index in group],
            [rewards[index] for index in group],
            config=self._config,
            row_tokens=self._progress.row_tokens,
            mesh=self._steps.mesh,
        )

    def _expect(self, stage: AnyStage) -> None:
        if self._progress.stage != stage.name:
            raise ValueError(
                f"the learner is in stage {self._progress.stage!r}, not {stage.name!r}; call start_stage first"
            )


def _speed(sequences: Sequence[TokenSequence], started: float) -> Metrics:
    tokens, seconds = sum(sequence.num_tokens for sequence in sequences), time.perf_counter() - started
    return {
        "tokens": float(tokens),
        "policy_tokens": float(sum(sequence.num_policy_tokens for sequence in sequences)),
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
    }
