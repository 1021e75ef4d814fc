from __future__ import annotations

import pytest

from sandbox.config import JudgeConfig
from sandbox.judge.spec import DeviceSpec, device_spec
from sandbox.toolchains.cuda_toolkit import arch_of, runs_on


def test_a_cpu_device_is_its_share_of_the_cores():
    spec = device_spec(JudgeConfig(cores_per_device=1), 0)
    assert spec == DeviceSpec(kind="cpu", cores=spec.cores) and len(spec.cores) == 1


@pytest.mark.parametrize(
    ("shown", "index", "gpu", "visible"),
    [(None, 0, None, "0"), ("3,5", 0, None, "3"), ("GPU-a, MIG-b", 0, 1, "MIG-b"), ("7", 0, 0, "7")],
)
def test_a_gpu_keeps_the_name_under_which_it_is_visible(monkeypatch, shown, index, gpu, visible):
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    spec = device_spec(JudgeConfig(device="cuda", cores_per_device=1), index, gpu=gpu)
    assert spec.kind == "cuda" and spec.visible == visible


def test_more_devices_than_visible_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=2 shows 1 GPUs"):
        device_spec(JudgeConfig(device="cuda", num_devices=2, cores_per_device=1), 0, gpu=1)


def test_code_runs_on_later_gpus_of_its_generation_unless_it_is_for_one_chip():
    assert arch_of(9, 0) == "sm_90a" and arch_of(8, 6) == "sm_86" and arch_of(12, 0) == "sm_120a"
    assert runs_on("sm_80", 8, 6) and runs_on("sm_90a", 9, 0) and runs_on("sm_90", 9, 0) and runs_on("sm_120", 12, 0)
    assert not runs_on("sm_86", 8, 0) and not runs_on("sm_80", 9, 0) and not runs_on("sm_100a", 10, 3)
    assert not runs_on("x86_64-native-0", 9, 0)
