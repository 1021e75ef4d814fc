"""A run's actor as a Hugging Face folder: transformers computes what the learner computes."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from learner_process import SMALL
from transformers import AutoModelForCausalLM, AutoTokenizer

from jaxagent.cli import main
from jaxagent.cli.exits import BAD_USAGE, DONE
from jaxagent.config.load import ConfigError, load_config
from jaxagent.learner import service as learner_service
from jaxagent.learner.service import LearnerService
from jaxagent.run.folder import create_run

CONFIG = Path("configs/demo_fsdp2.yaml")
TOKEN_IDS = np.random.default_rng(0).integers(0, 1000, (2, 48)).astype(np.int32)


@nnx.jit
def _forward(actor, token_ids):
    positions = jnp.broadcast_to(jnp.arange(token_ids.shape[1]), token_ids.shape)
    return actor.logits(actor(token_ids, positions, jnp.ones_like(token_ids)))


def learner_logits(service: LearnerService) -> np.ndarray:
    return np.asarray(_forward(service._learner._steps.actor.module(), TOKEN_IDS))


def exported_logits(folder: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor(TOKEN_IDS)).logits.numpy()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two devices after its first stage and one update of the second; the logits at both moments."""
    config = load_config(CONFIG, [*SMALL, "--runs_dir", str(tmp_path_factory.mktemp("runs"))])
    folder = create_run(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner_service, "COMPILATION_CACHE", Path(jax.config.jax_compilation_cache_dir))
        service = LearnerService(config, str(folder.root))
    logits = {}
    for index, (name, updates) in enumerate([("lessons", 2), ("supervised", 1)]):
        stage = config.stages[0].model_copy(update={"name": name})
        service.start_stage(stage)
        service.lesson_updates(stage, max_updates=updates)
        service.save({"stage": index, "name": name, "updates": updates, "complete": name == "lessons"})
        logits[name] = learner_logits(service)
    service.close()
    return folder.root, logits


@pytest.mark.parametrize("stage", ["lessons", None], ids=["end of a stage", "newest checkpoint"])
def test_transformers_computes_the_learners_logits(run, stage, tmp_path, capsys):
    root, logits = run
    chosen = ["--stage", stage] if stage else []
    assert main(["model", "export", str(root), str(tmp_path / "out"), *chosen]) == DONE
    shown = capsys.readouterr()
    assert shown.out.strip() == str(tmp_path / "out")
    assert ("stage lessons after 2 updates" if stage else "stage supervised after 1 updates") in shown.err
    expected = logits[stage or "supervised"]
    np.testing.assert_allclose(exported_logits(tmp_path / "out"), expected, atol=1e-4)
    assert np.abs(logits["lessons"] - logits["supervised"]).max() > 2e-3  # so that a mix-up would be seen


def test_the_tokenizer_comes_with_it(run, tmp_path):
    assert main(["model", "export", str(run[0]), str(tmp_path / "out")]) == DONE
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (run[0] / "initial_model", tmp_path / "out"))
    text = "class ModelNew(nn.Module):"
    assert after(text)["input_ids"] == before(text)["input_ids"] and after.eos_token == before.eos_token


def test_what_cannot_be_exported_is_told_why(run, tmp_path, capsys):
    root, _ = run
    for arguments, says in (
        ([str(tmp_path), str(tmp_path / "out")], "no run here"),
        (
            [str(root), str(tmp_path / "out"), "--stage", "value"],
            "no checkpoint of that stage's end; there are: lessons",
        ),
    ):
        assert main(["model", "export", *arguments]) == BAD_USAGE
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_checkpoint_is_told_when_there_is_one(tmp_path):
    from jaxagent.learner.export import export_run

    folder = create_run(load_config(CONFIG, ["--runs_dir", str(tmp_path)]))
    with pytest.raises(ConfigError, match="no checkpoint yet; the first comes with"):
        export_run(folder.root, tmp_path / "out")


def test_adapters_are_merged_into_the_base_they_were_trained_on(tmp_path):
    lora = ["--learner.lora", "{rank: 2, targets: [q_proj, down_proj]}"]
    config = load_config(CONFIG, [*SMALL, *lora, "--runs_dir", str(tmp_path)])
    folder = create_run(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner_service, "COMPILATION_CACHE", Path(jax.config.jax_compilation_cache_dir))
        service = LearnerService(config, str(folder.root))
    untrained = learner_logits(service)
    service.start_stage(config.stages[0])
    service.lesson_updates(config.stages[0], max_updates=2)
    service.save({"stage": 0, "name": "lessons", "updates": 2, "complete": True})
    trained = learner_logits(service)
    service.close()
    assert np.abs(trained - untrained).max() > 1e-3
    assert main(["model", "export", str(folder.root), str(tmp_path / "out")]) == DONE
    np.testing.assert_allclose(exported_logits(tmp_path / "out"), trained, atol=2e-4)
