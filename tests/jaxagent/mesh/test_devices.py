"""Virtual CPU devices: the demo's whole schedule at fsdp=2 in a learner process, against the same on one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jaxagent.config.learner import MeshConfig
from jaxagent.config.load import ConfigError, load_config
from jaxagent.mesh.devices import check_count, provide_devices

CONFIG = "configs/demo_fsdp2.yaml"
HELPERS = Path(__file__).parents[1]


def environment(home: Path, **changes: str) -> dict[str, str]:
    """As a run's learner finds it: nobody has chosen a number of devices."""
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    paths = os.pathsep.join([str(HELPERS.parents[1]), str(HELPERS)])
    return kept | {"PYTHONPATH": paths, "HOME": str(home), "JAX_PLATFORMS": "cpu"} | changes


def python(*arguments: str, home: Path, **changes: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment(home, **changes), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{fsdp: what learner_process.py left}."""
    home, found = tmp_path_factory.mktemp("home"), {}
    for fsdp in (1, 2):
        folder = home / f"fsdp{fsdp}"
        python(
            str(HELPERS / "learner_process.py"), CONFIG, str(fsdp), str(folder),
            home=home, JAX_DISABLE_MOST_OPTIMIZATIONS="1",
        )  # fmt: skip
        found[fsdp] = SimpleNamespace(
            **json.loads((folder / "result.json").read_text()), weights=dict(np.load(folder / "weights.npz"))
        )
    return found


def test_a_learner_gets_as_many_cpu_devices_as_its_mesh_needs(trained):
    assert len(trained[1].facts["devices"]) == 1 and len(trained[2].facts["devices"]) == 2
    (rows, width), whole = trained[2].facts["shard"], trained[2].facts["whole"]
    assert [rows, 2 * width] == whole == trained[1].facts["shard"]


def test_every_stage_of_the_demo_makes_two_updates(trained):
    names = ["lessons", "supervised", "single_turn", "rft", "value", "agentic"]
    assert {name: len(records) for name, records in trained[2].records.items()} == dict.fromkeys(names, 2)


def test_every_stage_reports_on_two_devices_what_it_reports_on_one(trained):
    for stage, expected in trained[1].records.items():
        for got, want in zip(trained[2].records[stage], expected, strict=True):
            assert got.keys() == want.keys()
            for name in want.keys() - {"seconds", "tokens_per_s"}:
                assert (got[name] is None) == (want[name] is None), (stage, name)
                if want[name] is not None:
                    message = f"{stage}: {name}"
                    np.testing.assert_allclose(got[name], want[name], rtol=2e-4, atol=1e-5, err_msg=message)


def test_weights_published_from_a_split_actor_are_those_of_one_device(trained):
    one, two = trained[1].weights, trained[2].weights
    assert trained[2].facts["version"] == trained[1].facts["version"] == 2 * 5  # the critic's stage adds none
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_count_that_the_user_has_set_stays(tmp_path):
    script = (
        "from jaxagent.config.learner import MeshConfig; from jaxagent.mesh.devices import provide_devices; import jax;"
        "provide_devices(MeshConfig(fsdp=2)); print(len(jax.devices()))"
    )
    assert python("-c", script, home=tmp_path).strip() == "2"
    flags = "--xla_force_host_platform_device_count=3"
    assert python("-c", script, home=tmp_path, XLA_FLAGS=flags).strip() == "3"
    assert python("-c", script, home=tmp_path, JAX_NUM_CPU_DEVICES="4").strip() == "4"


def test_a_process_that_computes_already_keeps_its_devices(monkeypatch):
    import jax

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = jax.devices()
    provide_devices(MeshConfig(fsdp=4))
    assert jax.devices() == before and "XLA_FLAGS" not in os.environ


@pytest.mark.parametrize(
    ("platform", "says"),
    [
        ("gpu", r"learner.mesh \(data=2, fsdp=4\) needs 8 devices and JAX sees 1 \(gpu\); lower an axis, use a host with 8"),
        ("cpu", r"needs 8 devices and JAX sees 1 \(cpu\); .*leave XLA_FLAGS=--xla_force_host.* unset"),
    ],
)  # fmt: skip
def test_too_few_devices_are_an_error_with_the_next_step(platform, says):
    with pytest.raises(ConfigError, match=says):
        check_count(MeshConfig(data=2, fsdp=4), found=1, platform=platform)
    check_count(MeshConfig(data=2), found=2, platform=platform)


def test_the_shipped_config_splits_the_demo_and_nothing_else():
    demo, split = load_config(Path("configs/demo.yaml")), load_config(Path(CONFIG))
    assert split.learner.mesh == MeshConfig(fsdp=2)
    assert [(s.name, s.kind) for s in split.stages] == [(s.name, s.kind) for s in demo.stages]
    assert (split.model, split.engine, split.tasks.skill) == (demo.model, demo.engine, demo.tasks.skill)
