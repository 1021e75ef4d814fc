"""Where generated tasks are drawn from: sizes, families and operators, for a CPU and for a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from jaxagent.synthesis.kernels import OPS, Op


@dataclass(frozen=True, slots=True)
class TaskSpace:
    """Where tasks of one device are drawn from, and how many."""

    name: str
    """Task ids begin with it."""
    cols: tuple[int, ...]
    rows: tuple[int, ...]
    elements: tuple[int, int]
    """Least and most of a matrix."""
    families: tuple[str, ...]
    """Take turns: what a task is made of, see demo._draw_ops."""
    clear_wins: tuple[str, ...]
    """Every task has one of these."""
    has_cuda_ops: bool
    num_train: int
    num_heldout: int
    num_heldout_shapes: int

    @property
    def ops(self) -> list[Op]:
        return [op for op in OPS.values() if self.has_cuda_ops or not op.only_cuda]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        least, most = self.elements
        return [(rows, cols) for cols in self.cols for rows in self.rows if least <= rows * cols <= most]


CPU_SPACE = TaskSpace(
    name="synthetic",
    cols=(512, 768, 1024, 1536, 2048),
    rows=(480, 640, 960, 1280, 1920, 2560),
    # Large enough for 2 to 10 ms of torch eager on two cores, small enough to be judged in about a second.
    elements=(650_000, 1_350_000),
    families=("chain", "row", "reduce"),
    # torch.compile's code for these takes at least twice the time of libmvec's.
    clear_wins=("tanh", "atan", "mish"),
    has_cuda_ops=False,
    num_train=24,
    num_heldout=12,
    num_heldout_shapes=4,
)
GPU_SPACE = TaskSpace(
    name="synthetic_cuda",
    # Beyond 1,024 columns TorchInductor reads a row again for each reduction; one that stays in registers is read once.
    cols=(1536, 2048, 3072, 4096, 6144),
    rows=(1536, 2048, 3072, 4096, 6144, 8192),
    # 32 to 64 MiB of float32: tens of microseconds for an operator of eager on an H200, far above a launch, and a judge
    # has the tensors of one check over the bus in a few milliseconds. The paper's 1 ms would take ten times the size.
    elements=(8_000_000, 17_000_000),
    families=("norms", "reduce", "norms", "chain"),
    clear_wins=("tanh", "atan", "mish", "softplus", "log1p", "gelu"),
    has_cuda_ops=True,
    num_train=200,
    num_heldout=60,
    num_heldout_shapes=5,
)
SPACES = {space.name: space for space in (CPU_SPACE, GPU_SPACE)}
