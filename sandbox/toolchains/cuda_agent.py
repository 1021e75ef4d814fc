"""nvcc and g++ toolchain of the `cuda_agent` skill: the CUDA-Agent layout on a GPU.

kernels/*.cu hold kernels and launchers and compile with nvcc without torch's headers (a .cu that includes them takes
most of a minute); kernels/*_binding.cpp wrap them for tensors and compile with g++ on precompiled headers.
"""

from __future__ import annotations

import re
from pathlib import Path

from sandbox.cache import ContentCache
from sandbox.toolchains.cpp import Deadline
from sandbox.toolchains.cpp_agent import AgentToolchain
from sandbox.toolchains.cuda import DEVICE_FLAGS, HOST_FLAGS, compile_cuda
from sandbox.toolchains.cuda_toolkit import cuda_identity, cuda_libraries, present_arch, toolkit
from sandbox.toolchains.torch_headers import torch_root, torch_version
from sandbox.types import SandboxUnavailableError


class CudaAgentToolchain(AgentToolchain):
    """Compiles kernels/*.cu, their bindings and the skill's binding.cpp into the extension module `cuda_extension`."""

    skill = "cuda_agent"
    module = "cuda_extension"
    device_headers = "#include <cuda_runtime.h>\n#include <c10/cuda/CUDAStream.h>\n"
    torch_libraries = ["torch_python", "torch_cuda", "torch_cpu", "torch", "c10_cuda", "c10"]

    def __init__(self, fixed: dict[str, str], cache: ContentCache, arch: str | None) -> None:
        """`arch` as CompileConfig.cuda_arch."""
        super().__init__(fixed, cache)
        self._arch = arch

    def fingerprint(self) -> str:
        """Everything but the sources that the object depends on."""
        _require_cuda_torch()
        return "\n".join([super().fingerprint(), self.arch(), cuda_identity(), *DEVICE_FLAGS, *HOST_FLAGS])

    def arch(self) -> str:
        return self._arch or present_arch()

    def flags(self) -> list[str]:
        headers = [*toolkit().own_include, *toolkit().include]
        return [*super().flags(), *(argument for path in headers for argument in ("-isystem", path))]

    def compile_kernels(self, sources: dict[str, str], folder: Path, deadline: Deadline) -> tuple[list[str], str]:
        return compile_cuda(sources, self.arch(), folder, deadline)

    def libraries(self) -> list[str]:
        return cuda_libraries()


def _require_cuda_torch() -> None:
    """Raises SandboxUnavailableError where torch is a build without CUDA, or one of another major release of it."""
    built_with = re.search(r"^cuda(?:: [^=]*)? = '(\d+)\.", torch_version(), re.MULTILINE)
    if built_with is None or not (torch_root() / "lib" / "libc10_cuda.so").exists():
        raise SandboxUnavailableError(
            f"skill cuda_agent compiles against torch's CUDA build, and {torch_root()} is none; install the torch that "
            "the profiler devices have, or use skill cuda, which needs nvcc alone"
        )
    if built_with[1] != toolkit().version.partition(".")[0]:
        raise SandboxUnavailableError(
            f"torch was built with CUDA {built_with[1]}, nvcc is {toolkit().version}; their major releases must agree"
        )
