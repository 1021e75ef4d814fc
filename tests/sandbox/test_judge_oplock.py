"""What is left of torch once its operators are taken away; in a process of its own, as it is for good."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
    import warnings
    import torch
    warnings.simplefilter("ignore")
    sparse = torch.sparse_csr_tensor(torch.arange(3), torch.arange(2), torch.ones(2), size=(2, 2))
    packed, dense, nested = torch.ones(2, 2).to_mkldnn(), torch.randn(2, 2), torch.nested.nested_tensor([torch.ones(2)])
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    from sandbox.judge.oplock import ForeignOperatorError, OperatorLock
    lock = OperatorLock()
    lock.close()
    for act in (
        lambda: dense @ dense, lambda: sparse @ dense, lambda: packed + packed, lambda: nested * nested,
        lambda: torch.relu(quantized), lambda: dense.to_sparse(), lambda: dense.sum(),
        lambda: torch.ops.quantized.linear_prepack_fp16(dense, None),
    ):
        try:
            act()
        except ForeignOperatorError as error:
            print("refused", error)
    copy = torch.zeros(2, 2)
    copy[0] = dense.t().contiguous().half().float()[0]
    torch.empty_like(dense).copy_(dense).view(-1).clone().fill_(1)
    print("copied", copy[1, 1].item())
"""


def test_no_layout_and_no_namespace_is_left_out():
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=120, check=True
    )
    lines = ran.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["refused"] * 8 + ["copied"], ran.stdout
