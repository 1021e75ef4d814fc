"""The CUDA-Agent layout, compiled against a torch with CUDA; no GPU needed."""

from __future__ import annotations

import re

import pytest
import torch

from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.skill import load_skill
from sandbox.symbols import check_symbols
from sandbox.types import Candidate, SandboxUnavailableError

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]  # torch's headers are precompiled once a machine: a minute

CUDA_TORCH = torch.version.cuda is not None
KERNELS = dict(re.findall(r"```cpp\n// (kernels/\S+)\n(.*?)```", load_skill("cuda_agent").guide, re.DOTALL))


@pytest.fixture(scope="module")
def compiles() -> CompileService:
    return CompileService(CompileConfig(cuda_arch="sm_90a", timeout_s=300))


@pytest.mark.skipif(CUDA_TORCH, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_is_our_trouble_and_says_what_to_do(compiles):
    with pytest.raises(SandboxUnavailableError, match="skill cuda_agent compiles against torch's CUDA build"):
        compiles.compile("cuda_agent", Candidate(files=KERNELS))


@pytest.mark.skipif(not CUDA_TORCH, reason="this torch is built without CUDA")
def test_the_guides_example_compiles_and_takes_nothing_it_may_not(compiles):
    result = compiles.compile("cuda_agent", Candidate(files=KERNELS))
    assert result.artifact is not None, result.message
    assert result.artifact.arch == "sm_90a" and result.artifact.interface == ""
    assert check_symbols(load_skill("cuda_agent"), result.artifact) is None


@pytest.mark.skipif(not CUDA_TORCH, reason="this torch is built without CUDA")
def test_an_operator_of_torch_or_a_stream_of_ones_own_is_found(compiles):
    name = "kernels/scale_tanh_binding.cpp"
    launch = "  scale_tanh_launcher(x.data_ptr"
    assert launch in KERNELS[name]
    operator = "#include <ATen/ops/tanh.h>\n" + KERNELS[name].replace(launch, "  y = at::tanh(x);\n" + launch)
    stream = KERNELS[name].replace("c10::cuda::getCurrentCUDAStream()", "c10::cuda::getStreamFromPool()")
    for source, words in ((operator, "operator tanh"), (stream, "getStreamFromPool")):
        result = compiles.compile("cuda_agent", Candidate(files=KERNELS | {name: source}))
        assert result.artifact is not None, result.message
        assert words in (check_symbols(load_skill("cuda_agent"), result.artifact) or "")
