"""Bad input: one paragraph, exit code 2, and nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxagent.cli import main
from jaxagent.cli.exits import BAD_USAGE
from jaxagent.commands.preflight import check_inputs
from jaxagent.config.load import load_config
from jaxagent.run.folder import create_run

DEMO = "configs/demo.yaml"
MOE = "{kind: scratch, family: qwen3_moe, num_experts: 6, experts_per_token: 2}"


def refused(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == BAD_USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["--learner.ppo.clip_lo", "0.1"], "did you mean learner.ppo.clip_low?"),
        (
            ["--model", "{kind: pretrained, path: /no/such/model}"],
            "model.path=/no/such/model: no Hugging Face model folder",
        ),
        (["--model", MOE, "--learner.mesh.expert", "4"], "learner.mesh.expert=4 must divide the model's 6 experts"),
        (["--model", MOE, "--learner.lora", "{targets: [q_proj, up_proj]}"], "experts have no adapters, so up_proj"),
        (["--learner.lora", "{targets: [lm_head]}"], "learner.lora.targets.0: Input should be 'q_proj'"),
        (["--tasks.train", "/no/such/tasks"], "/no/such/tasks does not exist"),
        (["--tasks.train", "synthetic:all"], "synthetic:train or synthetic:heldout"),
        (["--tasks.skill", "cobol"], "skill='cobol' is not known; allowed: cpp, cpp_agent"),
        (["--tasks.skill", "cuda"], "kernels of tasks.skill=cuda run on cuda; set judge.device to cuda"),
        (["--judge.device", "cuda"], "kernels of tasks.skill=cpp run on cpu"),
        (["--judge.cores_per_device", "4096"], "judge.cores_per_device=4096: this machine has"),
        (
            ["--learner.mesh.fsdp", "2"],
            "learner.rows_per_microbatch=1 must be a multiple of mesh.data x mesh.fsdp x mesh.expert = 2",
        ),
        (["--learner.mesh.context", "2", "--learner.row_tokens", "2001"], "row_tokens=2001 must be a multiple of 8 x"),
        (["--engine.weight_transfer", "ipc"], "gpus.learner=0, gpus.engine=0: engine.weight_transfer=ipc needs the"),
        (
            ["--gpus", "{learner: 0.6, engine: 0.6}", "--engine.weight_transfer", "ipc"],
            "gpus.learner=0.6 and gpus.engine=0.6 for 1 engine(s) are 1.2 of one GPU",
        ),
        (["--gpus.learner", "2"], "gpus.learner=2: learner.mesh (one device) needs 1 device(s); set gpus.learner to 1"),
        (["--gpus.learner", "1.5"], "1.5 is neither a share of one GPU nor a whole number of them"),
        (["--engine.max_model_len", "300"], "more than engine.max_model_len=300"),
        (["--learner.row_tokens", "300"], "more than learner.row_tokens=300"),
        (["--start_from", "{run: /no/such/run, after: supervised}"], "no run here"),
    ],
)
def test_a_run_that_cannot_start_says_why_and_leaves_no_folder(capsys, tmp_path, overrides, says):
    assert says in refused(capsys, "train", DEMO, "--runs_dir", str(tmp_path), *overrides)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_another_architecture_is_named_with_those_that_are_supported(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    model = f"{{kind: pretrained, path: {tmp_path / 'model'}}}"
    error = refused(capsys, "train", DEMO, "--runs_dir", str(tmp_path / "runs"), "--model", model)
    assert "MambaForCausalLM" in error and "supported are LlamaForCausalLM" in error
    assert not (tmp_path / "runs").exists()


def test_a_task_without_model_is_named(capsys, tmp_path):
    task = tmp_path / "task.py"
    task.write_text("def get_inputs(): return []\ndef get_init_inputs(): return []\n")
    error = refused(capsys, "train", DEMO, "--runs_dir", str(tmp_path / "runs"), "--tasks.train", str(task))
    assert "task.py defines no class Model" in error
    assert not (tmp_path / "runs").exists()


def test_the_expert_does_not_pretend_to_know_other_tasks(capsys, tmp_path):
    task = tmp_path / "task.py"
    task.write_text("class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n")
    error = refused(capsys, "train", DEMO, "--runs_dir", str(tmp_path / "runs"), "--tasks.train", str(task))
    assert "scripted expert and its lessons cover synthetic tasks" in error


def test_the_expert_writes_each_language_for_its_own_tasks_and_calls_in_one_way(capsys, tmp_path):
    error = refused(capsys, "train", DEMO, "--runs_dir", str(tmp_path), "--tasks.train", "synthetic_cuda:train")
    assert "CUDA (cuda) for synthetic_cuda:train; here tasks.skill=cpp" in error
    hermes = ["--stages.expert_agentic.dialogue.parser", "hermes"]
    error = refused(capsys, "train", DEMO, "--runs_dir", str(tmp_path), *hermes)
    assert "stages.expert_agentic.dialogue.parser=hermes: the scripted expert writes tool calls in one way" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["qwen_0.5b_1gpu", "qwen_0.5b_2gpu"])
def test_runs_on_gpus_can_start_where_their_model_is(tmp_path, name):
    qwen = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151_936, "hidden_size": 896}
    qwen |= {"intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(qwen | {"rope_theta": 1e6, "hidden_act": "silu"}))
    train, heldout = check_inputs(load_config(Path(f"configs/{name}.yaml"), ["--model.path", str(tmp_path)]))
    assert (len(train), len(heldout)) == (200, 70)
    assert [task.task_id for task in heldout[60:]][:2] == ["1_rotary", "2_box_blur_sharpen"]
    assert not {task.code for task in train} & {task.code for task in heldout}


def test_a_second_run_of_a_name_is_pointed_to_resume(capsys, tmp_path):
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "config.yaml").write_text(Path(DEMO).read_text())
    assert "--resume" in refused(capsys, "train", DEMO, "--runs_dir", str(tmp_path))
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


def test_a_resumed_run_takes_no_other_config(capsys, tmp_path):
    assert "takes no config" in refused(capsys, "train", DEMO, "--resume", str(tmp_path))


def test_a_resumed_run_refuses_an_unsafe_override_and_says_why(capsys, tmp_path):
    folder = create_run(load_config(Path(DEMO), ["--runs_dir", str(tmp_path)]))
    before = folder.config.read_text()
    error = refused(capsys, "train", "--resume", str(folder.root), "--seed", "99")
    assert "seed=99: this run has" in error and "drawn from it" in error
    assert folder.config.read_text() == before and not list(folder.root.glob("config.*.yaml"))


def test_train_without_a_config_says_what_to_name(capsys):
    assert "configs/demo.yaml" in refused(capsys, "train")


def test_judge_names_what_a_workdir_lacks(capsys, tmp_path):
    assert "model.py is missing" in refused(capsys, "judge", str(tmp_path), "--skill", "cpp", "--json")


def test_report_of_no_run_says_so(capsys, tmp_path):
    assert "no run here" in refused(capsys, "report", str(tmp_path))
