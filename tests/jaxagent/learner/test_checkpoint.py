"""Save and resume: the same bits, on the same or another mesh, and never half a checkpoint."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from toys import TINY, log_stage, make_learner, ppo_stage, random_trajectories, weights_of

from jaxagent.config.stages import FineTuneStage, ValuePretrainStage
from jaxagent.learner.checkpoint import CheckpointError, Checkpoints

TIMES = {"seconds", "tokens_per_s"}


def everything(learner):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(learner._steps.arrays())]


def without_times(records):
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def ppo_updates(learner, updates, **_):
    return [learner.ppo_update(random_trajectories(5, seed=update, version=update), ppo_stage()) for update in updates]


def log_updates(kind):
    def run(learner, updates):
        call = learner.finetune_updates if kind is FineTuneStage else learner.value_updates
        return call(random_trajectories(7), log_stage(kind), max_updates=len(updates))

    return run


STAGES = {
    "ppo": (ppo_stage(), ppo_updates),
    "finetune": (log_stage(FineTuneStage), log_updates(FineTuneStage)),
    "value_pretrain": (log_stage(ValuePretrainStage), log_updates(ValuePretrainStage)),
}


@pytest.mark.parametrize("name", STAGES)
def test_four_updates_equal_two_and_a_resume_and_two_bit_for_bit(tmp_path, name):
    stage, run = STAGES[name]
    settings = {"ppo": {"kl_coef": 0.1, "minibatches": 2}} if name == "ppo" else {}
    straight = make_learner(tmp_path, **settings)
    straight.start_stage(stage)
    expected = run(straight, range(4))

    first = make_learner(tmp_path, **settings)
    first.start_stage(stage)
    records = run(first, range(2))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    first.save(checkpoints, {"stage": 1, "cursor": "segment-3:128"})
    checkpoints.close()

    resumed, checkpoints = make_learner(tmp_path, **settings), Checkpoints(tmp_path / "checkpoints")
    assert resumed.restore(checkpoints) == {"stage": 1, "cursor": "segment-3:128"}
    checkpoints.close()
    records += run(resumed, range(2, 4))
    assert without_times(records) == without_times(expected)
    assert resumed.progress == straight.progress
    for got, want in zip(everything(resumed), everything(straight), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_master_copy_outlives_a_new_stage_and_a_resume(tmp_path):
    learner, stage = make_learner(tmp_path, param_dtype="bfloat16"), log_stage(FineTuneStage)
    learner.start_stage(stage)
    log_updates(FineTuneStage)(learner, range(4))
    master = [np.asarray(leaf) for leaf in jax.tree.leaves(learner._steps.actor.state.master)]
    assert any((leaf != leaf.astype(jax.numpy.bfloat16)).any() for leaf in master)
    learner.start_stage(ppo_stage())
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    learner.save(checkpoints, {})
    resumed = make_learner(tmp_path, param_dtype="bfloat16")
    resumed.restore(checkpoints)
    checkpoints.close()
    for here in (learner, resumed):
        for got, want in zip(jax.tree.leaves(here._steps.actor.state.master), master, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_checkpoint_restores_onto_another_mesh(tmp_path):
    learner, stage = make_learner(tmp_path, mesh={"fsdp": 2}), ppo_stage()
    learner.start_stage(stage)
    ppo_updates(learner, [0])
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    learner.save(checkpoints, {})
    for mesh in ({}, {"data": 2}):
        other = make_learner(tmp_path, mesh=mesh)
        other.restore(checkpoints)
        for got, want in zip(everything(other), everything(learner), strict=True):
            np.testing.assert_array_equal(got, want)
        assert other._steps.actor.params["embedding"].get_value().sharding.mesh.shape["fsdp"] == 1
        (metrics,), (expected,) = ppo_updates(other, [1]), ppo_updates(make_resumed(tmp_path, checkpoints), [1])
        assert metrics["actor_loss"] == pytest.approx(expected["actor_loss"], rel=1e-3, abs=1e-5)
    checkpoints.close()


def make_resumed(tmp_path, checkpoints):
    learner = make_learner(tmp_path, mesh={"fsdp": 2})
    learner.restore(checkpoints)
    return learner


def test_only_the_last_few_are_kept_and_an_earlier_one_can_be_named(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    numbers = [checkpoints.save({"x": np.arange(3) + i}, {"i": i}) for i in range(4)]
    assert numbers == [0, 1, 2, 3]
    assert checkpoints.record()["i"] == 3 and checkpoints.record(2)["i"] == 2
    np.testing.assert_array_equal(checkpoints.arrays({"x": np.zeros(3, int)}, 2)["x"], [2, 3, 4])
    with pytest.raises(CheckpointError, match=r"holds no 0; found: \[2, 3\]"):
        checkpoints.record(0)


def test_what_does_not_fit_is_refused_with_the_next_step(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint.*without --resume"):
        make_learner(tmp_path).restore(Checkpoints(tmp_path / "empty"))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    make_learner(tmp_path).save(checkpoints, {})
    with pytest.raises(CheckpointError, match="seed=0 and this run has seed=1"):
        make_learner(tmp_path, seed=1).restore(checkpoints)
    wider = dataclasses.replace(TINY, intermediate_size=48)
    with pytest.raises(CheckpointError, match="another model: actor.* is .*32.* there and .*48.* here"):
        make_learner(tmp_path, config=wider).restore(checkpoints)
    with pytest.raises(TypeError, match="JSON"):
        make_learner(tmp_path).save(checkpoints, {"when": object()})
    assert checkpoints.latest() == 0


SAVES_FOREVER = """
import sys
from pathlib import Path
import numpy as np
from jaxagent.learner.checkpoint import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]))
for i in range(10_000):
    checkpoints.save({"x": np.full(4_000_000, i)}, {"i": i})
    print(i, flush=True)
"""


def test_a_kill_while_saving_leaves_whole_checkpoints_only(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SAVES_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while int(process.stdout.readline()) < 1:
            pass
        time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    checkpoints = Checkpoints(tmp_path)
    number = checkpoints.latest()
    assert number is not None and checkpoints.record()["i"] == number
    restored = checkpoints.arrays({"x": np.zeros(4_000_000, int)})["x"]
    assert (restored == number).all()
    assert checkpoints.save({"x": np.zeros(4_000_000, int)}, {"i": -1}) == number + 1


def test_weights_carry_hugging_face_names(tmp_path):
    names = weights_of(make_learner(tmp_path)).keys()
    assert "model.embed_tokens.weight" in names and "model.layers.1.mlp.down_proj.weight" in names
