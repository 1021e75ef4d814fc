"""Ablations find their own earlier runs and nobody else's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jaxagent.commands.ablate import ablate, ablation_config, check_same_ablation
from jaxagent.config.load import ConfigError, load_config
from jaxagent.files.write import write_json
from jaxagent.run.folder import RunFolder, create_run, open_run, read_origin
from jaxagent.run.fork import common_stages

DEMO = Path("configs/demo.yaml")
NO_RFT = Path("configs/ablations/no_rft.yaml")


def base_run(runs: Path, name: str) -> RunFolder:
    return create_run(load_config(DEMO, ["--runs_dir", str(runs), "--name", name]))


def ablation(base: RunFolder, *overrides: str, after: str = "single_turn"):
    return ablation_config(NO_RFT, base, open_run(base.root)[1], after=after, overrides=overrides)


def started(base: RunFolder) -> RunFolder:
    origin = {"id": "its own", "started_from": read_origin(base)["id"]}
    return create_run(ablation(base), fill=lambda part: write_json(part.origin, origin))


@pytest.mark.parametrize(
    ("base", "folder"),
    [(DEMO, "configs/ablations"), (Path("configs/qwen_0.5b_1gpu.yaml"), "configs/ablations/qwen_0.5b")],
)
def test_every_shipped_ablation_can_start_from_its_base_run(base, folder):
    paths = sorted(Path(folder).glob("*.yaml"))
    assert paths
    for path in paths:
        assert common_stages(load_config(path), load_config(base), after="single_turn")[-1] == "single_turn"


def test_two_base_runs_of_one_seed_have_ablations_of_their_own(tmp_path):
    one, other = base_run(tmp_path, "one"), base_run(tmp_path, "other")
    assert ablation(one).seed == ablation(other).seed
    assert ablation(one).name == "one_no_rft" and ablation(other).name == "other_no_rft"


def test_an_ablation_is_taken_up_again_where_nothing_differs(tmp_path):
    base = base_run(tmp_path, "base")
    check_same_ablation(started(base), ablation(base), base)


@pytest.mark.parametrize(
    ("overrides", "after", "key"),
    [
        (["--learner.ppo.gamma", "0.9"], "single_turn", "learner.ppo.gamma"),
        (["--stages.agentic.updates", "1"], "single_turn", "stages.agentic.updates"),
        ([], "supervised", "start_from.after"),
    ],
)
def test_results_with_other_settings_are_not_reused(tmp_path, overrides, after, key):
    base = base_run(tmp_path, "base")
    folder = started(base)
    with pytest.raises(ConfigError, match=rf"other settings: {key} is"):
        check_same_ablation(folder, ablation(base, *overrides, after=after), base)


def test_results_of_a_base_run_that_was_made_anew_are_not_reused(tmp_path):
    base = base_run(tmp_path, "base")
    folder = started(base)
    shutil.rmtree(base.root)
    again = base_run(tmp_path, "base")
    with pytest.raises(ConfigError, match="started from an earlier run"):
        check_same_ablation(folder, ablation(again), again)


async def test_a_base_run_that_is_not_finished_is_pointed_to_resume(tmp_path):
    base = base_run(tmp_path, "base")
    with pytest.raises(ConfigError, match="not finished.*--resume"):
        await ablate(base.root, [NO_RFT], after="single_turn", overrides=[])
