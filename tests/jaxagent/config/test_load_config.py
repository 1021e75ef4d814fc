"""Configs: overrides, and errors that say which key, what value, and what would be allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from jaxagent.config.load import ConfigError, dump_config, load_config, validate
from jaxagent.run.folder import create_run, open_run
from jaxagent.synthesis.config import load_synthesis_config

DEMO = Path("configs/demo.yaml")


def test_every_shipped_config_loads():
    found = list(Path("configs").rglob("*.yaml"))
    runs = [path for path in found if not path.name.startswith("synthesis")]
    assert runs and len(runs) < len(found)
    for path in runs:
        assert load_config(path).stages
    for path in set(found) - set(runs):
        assert load_synthesis_config(path).num_tasks


def test_overrides_reach_sections_and_stages_by_name():
    config = load_config(DEMO, ["--stages.agentic.updates", "2", "--learner.ppo.clip_low=0.1", "--seed", "7"])
    assert config.stages[-1].updates == 2
    assert config.learner.ppo.clip_low == 0.1
    assert config.seed == 7


def test_an_override_of_an_alias_leaves_its_anchor_alone():
    config = load_config(DEMO, ["--stages.agentic.dialogue.max_turns", "3"])
    dialogues = {stage.name: getattr(stage, "dialogue", None) for stage in config.stages}
    assert dialogues["agentic"].max_turns == 3
    assert dialogues["sampling"] == load_config(DEMO).evaluation.dialogue == config.evaluation.dialogue


def test_scientific_notation_without_a_dot_is_a_number():
    config = load_config(DEMO, ["--stages.agentic.actor_optimizer.learning_rate", "3e-6"])
    assert config.stages[-1].actor_optimizer.learning_rate == 3e-6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["--learner.ppo.clip_lo", "0.1"],
            r"learner\.ppo\.clip_lo: unknown key; did you mean learner\.ppo\.clip_low\?",
        ),
        (
            ["--stages.agentic.updats", "2"],
            r"stages\.agentic\.updats: unknown key; did you mean stages\.agentic\.updates",
        ),
        (["--learner.ppo.clip_low", "7"], r"learner\.ppo\.clip_low: Input should be less than 1 \(value: 7\)"),
        (["--stages.rft.data", "[foo]"], r"stages\.rft\.data: 'foo' is no earlier stage"),
        (["--evaluation.after", "[x]"], r"evaluation\.after: 'x' is no stage"),
        (
            ["--gpus.engine", "0.5", "--engine.kv_cache_gib", "null"],
            r"engine\.kv_cache_gib: missing, and gpus\.engine=0\.5",
        ),
        (["--stages.nope.x", "1"], r"'nope' is none of"),
        (["--seed"], r"--seed: a value is missing"),
        (["seed", "1"], r"expected an override"),
        (
            ["--judge.protocol", "lenient"],
            r"judge\.protocol: Input should be 'hardened' or 'paper' \(value: 'lenient'\)",
        ),
    ],
)
def test_a_bad_override_names_the_key_and_what_is_allowed(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(DEMO, overrides)


def test_a_missing_file_lists_the_configs_there_are():
    with pytest.raises(ConfigError, match=r"no such config file.*demo\.yaml"):
        load_config(Path("configs/dmo.yaml"))


def test_broken_yaml_is_a_config_error(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(path)


def test_the_resolved_config_reads_back_as_itself():
    config = load_config(DEMO)
    assert validate(yaml.safe_load(dump_config(config)), where="dump") == config


def test_a_run_folder_is_made_once_and_reopened(tmp_path):
    config = load_config(DEMO, ["--runs_dir", str(tmp_path)])
    folder = create_run(config)
    assert open_run(folder.root)[1] == config
    with pytest.raises(ConfigError, match="--resume"):
        create_run(config)
    with pytest.raises(ConfigError, match="no run here"):
        open_run(tmp_path / "other")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_an_extending_config_changes_and_leaves_out_stages_by_name(tmp_path):
    write(tmp_path, "base.yaml", DEMO.read_text())
    child = write(
        tmp_path,
        "child.yaml",
        "extends: base.yaml\nname: child\nstages: {rft: null, agentic: {updates: 3}}\nevaluation: {after: [supervised]}\n",
    )
    base, config = load_config(DEMO), load_config(child)
    assert config.name == "child"
    assert [s.name for s in config.stages] == [s.name for s in base.stages if s.name != "rft"]
    assert config.stages[-1] == base.stages[-1].model_copy(update={"updates": 3})
    assert config.learner == base.learner


def test_a_circle_of_extends_and_an_unknown_stage_are_config_errors(tmp_path):
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(ConfigError, match="circle"):
        load_config(tmp_path / "a.yaml")
    write(tmp_path, "demo.yaml", DEMO.read_text())
    bad = write(tmp_path, "bad.yaml", "extends: demo.yaml\nstages: {rtf: null}\n")
    with pytest.raises(ConfigError, match="'rtf' is none of"):
        load_config(bad)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--seed.x.y", "1"], r"--seed\.x\.y: .*single value"),
        (["--name", "[x"], r"--name: '\[x' is not a YAML value"),
        (["--stages", "[]"], r"stages: List should have at least 1 item"),
        (["--name", ".."], r"name: String should match pattern"),
    ],
)
def test_odd_overrides_are_config_errors(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(DEMO, overrides)
