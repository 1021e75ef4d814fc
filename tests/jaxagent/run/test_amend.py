"""What a resumed run may change, what it may not and why, and what its folder says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from jaxagent.cli.overrides import split_overrides
from jaxagent.config.load import ConfigError, load_config, validate
from jaxagent.files.write import write_json
from jaxagent.run.amend import amended, record_change, stages_over
from jaxagent.run.folder import create_run, open_run
from jaxagent.run.metrics_log import MetricsLog

SMOKE = Path("configs/smoke.yaml")


@pytest.fixture
def run(tmp_path):
    """A run that is in its stage single_turn."""
    folder = create_run(load_config(SMOKE, ["--runs_dir", str(tmp_path)]))
    config = open_run(folder.root)[1]
    log = MetricsLog(folder)
    for stage in config.stages:
        log.write(stage=stage.name, update=0, values={})
        if stage.name == "single_turn":
            break
    log.close()
    return folder, config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stages.single_turn.actor_optimizer.learning_rate", 1e-7),
        ("stages.single_turn.critic_optimizer.max_grad_norm", 0.1),
        ("stages.agentic.actor_optimizer.warmup_updates", 5),
        ("learner.ppo.importance_cap", 1.5),
        ("learner.mesh.fsdp", 2),
        ("engine.request_timeout_s", 7.0),
        ("checkpoint.keep_last", 5),
    ],
)
def test_safe_keys_change_and_the_earlier_config_is_kept(run, key, value):
    folder, config = run
    changed = amended(folder, config, [f"--{key}", str(value)])
    assert open_run(folder.root)[1] == config, "nothing is written before the run has its folder to itself"
    ((name, (old, new)),) = record_change(folder, changed).items()
    assert (name, new) == (key, value) and old != value
    assert open_run(folder.root)[1] == changed
    kept = (folder.root / "config.1.yaml").read_text()
    assert f"{key}: {old} -> {new}" in kept
    assert validate(yaml.safe_load(kept), where="kept") == config
    assert record_change(folder, changed) == {}
    record_change(folder, config)
    assert (folder.root / "config.2.yaml").exists()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("seed", "7", "drawn from it"),
        ("name", "other", "names the folder"),
        ("model.num_layers", "3", "weights of this model"),
        ("tasks.limit", "1", "number these tasks"),
        ("stages.agentic.trajectories_per_update", "2", "fixed once its run has begun"),
        ("stages.supervised.optimizer.learning_rate", "1e-9", "that stage is over"),
        ("learner.ppo.kl_coef", "0.5", "when a stage begins"),
        ("learner.ppo.gamma", "0.9", "learned under it"),
        ("learner.param_dtype", "bfloat16", "parameters of this type"),
        ("rollout.max_staleness", "3", "let in under it"),
        ("judge.protocol", "paper", "could not be compared"),
        ("evaluation.samples_per_task", "9", "could not be compared"),
    ],
)
def test_an_unsafe_key_is_refused_by_name_with_the_reason(run, key, value, reason):
    folder, config = run
    with pytest.raises(ConfigError, match=rf"(?s)^{key}=.*this run has.*{reason}.*start a new run"):
        amended(folder, config, [f"--{key}", value])


def test_stages_cannot_be_taken_out_or_changed_in_order(run):
    folder, config = run
    stages = [stage.model_dump(mode="json") for stage in config.stages]
    with pytest.raises(ConfigError, match="cannot change"):
        amended(folder, config, ["--stages", yaml.safe_dump(stages[:-1], default_flow_style=True)])
    swapped = config.model_copy(update={"stages": [*config.stages[1:], config.stages[0]]})
    assert record_change(folder, swapped).keys() == {"stages"}


def test_an_unknown_key_of_a_resumed_run_is_told_the_nearest_one(run):
    folder, config = run
    with pytest.raises(ConfigError, match=r"did you mean stages\.single_turn\.actor_optimizer\.learning_rate"):
        amended(folder, config, ["--stages.single_turn.actor_optimizer.learning_rat", "1"])


def test_all_stages_of_a_finished_run_are_over(run):
    folder, config = run
    assert stages_over(folder, config)[-1] != config.stages[-1].name
    write_json(folder.summary, {})
    assert stages_over(folder, config) == [stage.name for stage in config.stages]


def test_stages_that_another_run_made_are_over_before_the_first_update(tmp_path):
    start = "{run: /some/run, after: supervised}"
    folder = create_run(load_config(SMOKE, ["--runs_dir", str(tmp_path), "--start_from", start]))
    assert stages_over(folder, open_run(folder.root)[1])[-1] == "supervised"


def test_an_overrides_value_is_never_taken_for_the_config():
    assert split_overrides(["train", "--resume", "R", "--seed", "1"]) == (["train", "--resume", "R"], ["--seed", "1"])
    assert split_overrides(["train", "--seed=1", "c.yaml"]) == (["train", "c.yaml"], ["--seed=1"])
    assert split_overrides(["ablate", "R", "a.yaml", "--after=s", "--x", "2"]) == (
        ["ablate", "R", "a.yaml", "--after=s"],
        ["--x", "2"],
    )
    assert split_overrides(["judge", "w", "--skill", "cpp"]) == (["judge", "w", "--skill", "cpp"], [])
