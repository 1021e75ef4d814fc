from __future__ import annotations

import pytest

from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.judge.fits import check_fits
from sandbox.judge.spec import DeviceSpec
from sandbox.types import Artifact, Candidate, DeviceError

H200 = {"name": "NVIDIA H200", "capability": [9, 0], "cuda": "13.0"}
GPU, CPU = DeviceSpec(kind="cuda", cores=[0], visible="0"), DeviceSpec(cores=[0])
NOTHING = Artifact(sha256="", arch="", shared_object=b"")


@pytest.mark.parametrize(("skill", "spec", "wanted"), [("cuda", CPU, "cuda"), ("cpp_agent", GPU, "cpu")])
def test_a_skill_of_another_device_is_a_wrong_setting(skill, spec, wanted):
    with pytest.raises(ValueError, match=f"set judge.device to {wanted}"):
        check_fits(skill, NOTHING, spec, {})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Artifact:
    compiles = CompileService(CompileConfig(cache_dir=tmp_path_factory.mktemp("fits"), cuda_arch="sm_90"))
    kernel = '__global__ void k() {}\nextern "C" void f() { k<<<1, 1>>>(); }\n'
    made = compiles.compile("cuda", Candidate(files={"kernels/k.cu": kernel})).artifact
    assert made is not None
    return made


@pytest.mark.nvcc
def test_code_of_another_gpu_or_cuda_release_is_our_trouble(artifact):
    from sandbox.toolchains.cuda_toolkit import toolkit

    major = toolkit().version.partition(".")[0]
    check_fits("cuda", artifact, GPU, H200 | {"cuda": f"{major}.9"})
    with pytest.raises(DeviceError, match="compiled for sm_90, the profiler device A100 is sm_80"):
        check_fits("cuda", artifact, GPU, H200 | {"name": "A100", "capability": [8, 0]})
    with pytest.raises(DeviceError, match=f"compiled with CUDA {major}, torch on the profiler device has CUDA 99"):
        check_fits("cuda", artifact, GPU, H200 | {"cuda": "99.0"})
