"""A run's learner in a process of its own, which hands out any of a few sets of weights: the other end of an engine."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rollout.packages import PackedPackage

CONFIG = """
name: publishing
tasks: {{train: "synthetic:train", heldout: "synthetic:heldout", skill: cpp}}
model: {{kind: pretrained, path: {model_dir}}}
stages: [{{name: agentic, kind: ppo, updates: 1, trajectories_per_update: 1}}]
"""


class LearnerSide:
    """LearnerService behind pipes. `write` and `send` block, and may run in different threads."""

    def __init__(
        self,
        model_dir: Path,
        folder: Path,
        *,
        overrides: list[str],
        environment: Mapping[str, str | None],
        noise: float = 0.02,
    ) -> None:
        """`environment`: variables of its process; None unsets one. `noise`: standard deviation between weights."""
        context = multiprocessing.get_context("spawn")
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(CONFIG.format(model_dir=model_dir))
        self._calls, calls = context.Pipe()
        self._sends, sends = context.Pipe()
        arguments = (folder, overrides, dict(environment), noise, calls, sends)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()

    def write(self, which: int, version: int) -> Any:
        """A package of weights number `which`: 0 are those of the folder, others differ from them a little."""
        return _ask(self._calls, (which, version))

    def send(self, package: PackedPackage) -> None:
        """The learner's part in one exchange."""
        _ask(self._sends, package)

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def _ask(pipe: Connection, question: Any) -> Any:
    pipe.send(question)
    answer = pipe.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(
    folder: Path,
    overrides: list[str],
    environment: dict[str, str | None],
    noise: float,
    calls: Connection,
    sends: Connection,
) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    import jax
    import numpy as np

    from jaxagent.config.load import load_config
    from jaxagent.learner.actor import learner_environment
    from jaxagent.learner.service import LearnerService

    config = load_config(folder / "config.yaml", overrides)
    for name, value in learner_environment(config).items():
        os.environ.setdefault(name, value)
    service = LearnerService(config, str(folder / "run"))
    learner = service._learner
    original = learner._steps.actor.state

    def write(which: int, version: int) -> Any:
        rng = np.random.default_rng(which)
        moved = jax.tree.map(lambda p: p + noise * rng.standard_normal(p.shape).astype(p.dtype), original.params)
        learner._steps.actor.state = original._replace(params=moved if which else original.params)
        learner._progress.policy_version = version
        return service.write_weights()

    threading.Thread(target=_answer, args=(sends, lambda package: service.send_weights(package)), daemon=True).start()
    _answer(calls, lambda question: write(*question))


def _answer(pipe: Connection, work: Any) -> None:
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        try:
            answer = work(question)
        except Exception as error:  # the asking side raises it
            answer = error
        pipe.send(answer)
