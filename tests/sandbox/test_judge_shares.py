"""Program counters of stopped processes, and whose they are; whole judgements are in redteam/."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from sandbox.judge.code_names import code_names
from sandbox.judge.libraries import COMPUTES
from sandbox.judge.shares import Shares, _Owners, running_at

BUSY = {
    "math": ("import math\nx = 0.5\nwhile True: sum(map(math.lgamma, [x] * 1000))", {"runtimes", "python"}),
    "sleep": ("import time\ntime.sleep(60)", set()),
    "python": ("while True: pass", {"python"}),
}


def stopped_samples(process: subprocess.Popen, count: int) -> list[int]:
    found = []
    for _ in range(count):
        time.sleep(0.01)
        os.kill(process.pid, signal.SIGSTOP)
        while open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[0] != "T":  # noqa: SIM115
            time.sleep(0.0005)
        found += running_at(process.pid)
        os.kill(process.pid, signal.SIGCONT)
    return found


@pytest.mark.parametrize("name", BUSY)
def test_a_stopped_process_tells_whose_code_it_runs(name: str) -> None:
    code, owners = BUSY[name]
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.5)
        found = _Owners(process.pid, own="/none")
        counts = Counter(found.of(address) for address in stopped_samples(process, 20))
        assert owners <= set(counts) and set(counts) <= owners | {"elsewhere"}, counts
        assert sum(counts.values()) == (20 if owners else 0)
    finally:
        process.kill()
        process.wait()


def test_refusal_needs_samples_a_floor_and_more_than_overhead() -> None:
    shares = Shares("/own.so")
    shares._counts.update({"torch": 23, "python": 500, "waiting": 500})
    assert not shares.is_torchs_work(0.05, 1.0) and shares.is_undecided(0.05, 1.0)
    shares._counts.update({"torch": 36})
    assert shares.is_torchs_work(0.05, 1.0) and not shares.is_undecided(0.05, 1.0)
    assert not shares.is_torchs_work(0.0, 1.0) and not shares.is_torchs_work(0.05, 0.05)
    shares._counts.update({"own": 4})
    assert not shares.is_torchs_work(0.05, 1.0) and shares.is_torchs_work(0.1, 1.0)
    assert shares.to_json()["own"] == pytest.approx(4 / 1063)


def test_few_samples_are_no_acquittal() -> None:
    """On a busy machine a kernel that lets BLAS do a third of the work was seen seven times, twice in BLAS."""
    shares = Shares("/own.so")
    shares._counts.update({"own": 5, "computing": 2, "waiting": 90})
    assert not shares.is_foreign_work() and shares.is_undecided(0.05, 1.0) and shares.is_suspect(0.05, 1.0)
    shares._counts.update({"own": 100})
    assert not shares.is_undecided(0.05, 1.0)  # two of 107 are few enough to be an accident
    shares._counts.update({"computing": 3})
    assert shares.is_foreign_work()


def test_honest_kernels_are_looked_at_until_enough_was_seen_and_never_suspected() -> None:
    shares = Shares("/own.so")
    shares._counts.update({"own": 20, "python": 10})
    assert shares.is_undecided(0.05, 1.0) and not shares.is_suspect(0.05, 1.0)
    assert not shares.is_undecided(0.05, 0.05)  # all of its time is less than what torch may take
    shares._counts.update({"python": 200})
    assert not shares.is_undecided(0.05, 1.0)  # it computes seldom, and that is all there is to be seen


def test_libraries_are_known_by_their_paths() -> None:
    owners = _Owners(os.getpid(), own="/tmp/candidate-x/extension.so")
    for path, owner in {
        "/tmp/candidate-x/extension.so": "own",
        "/tmp/candidate-y/extension.so": "elsewhere",
        "/x/site-packages/torch/lib/libtorch_cpu.so": "torch",
        "/x/site-packages/torch/lib/libtorch_python.so": "python",
        "/x/site-packages/torch/lib/libc10.so": "python",
        "/x/site-packages/torch/lib/libgomp.so.1": "waiting",
        "/x/site-packages/torch/lib/libgomp-24e2ab19.so.1.0.0": "waiting",
        "/usr/lib/x86_64-linux-gnu/libm.so.6": "runtimes",
        "/usr/lib/x86_64-linux-gnu/libc-2.31.so": "runtimes",
        "/usr/lib/x86_64-linux-gnu/libmkl_rt.so": "torch",
        "/usr/bin/python3.11": "python",
        "[vdso]": "runtimes",
        "": "generated",
        "/memfd:code (deleted)": "generated",
        "/usr/lib/x86_64-linux-gnu/libffi.so.8": "elsewhere",
    }.items():
        assert owners._owner(path) == owner, path


def test_a_part_of_foreign_work_is_enough():
    shares = Shares("/own.so")
    shares._counts.update({"own": 50, "torch": 40, "computing": 2, "generated": 1})
    assert not shares.is_foreign_work()
    shares._counts.update({"generated": 1})
    assert shares.is_foreign_work() and shares.of_foreign == pytest.approx(4 / 94)
    shares._counts.update({"own": 900})
    assert not shares.is_foreign_work()


@pytest.mark.parametrize(
    ("name", "computes"),
    [
        ("mkl_blas_avx512_sgemm_kernel_0", True),
        ("sgemm_", True),
        ("_ZN4dnnl4impl3cpu3x6415brgemm_matmul_tE", True),
        ("_ZN2at6native6AVX512L9gelu_implERNS_18TensorIteratorBaseE", True),
        (
            "_ZN3c1012function_refIFvPPcPKlllEE11callback_fnIN2at6native6AVX51214VectorizedLoop2dIZZNS6_11relu_kernel",
            True,
        ),
        ("_ZN2at6native7cpublas4gemmENS0_13TransposeTypeE", True),
        ("_ZN2at6native6AVX51218direct_copy_kernelERNS_18TensorIteratorBaseE", False),
        ("_ZN2at6native6AVX51211fill_kernelERNS_14TensorIteratorERKN3c106ScalarE", False),
        ("_ZN6fbgemm23FloatToFloat16_avx512EPKfPtmb", False),
        ("_ZN6fbgemm22fbgemmHasAvx512SupportEv", False),
        ("mkl_serv_malloc", False),
        ("MKL_Set_Num_Threads_Local", False),
        ("_ZN2at5emptyEN3c108ArrayRefIlEE", False),
        ("", False),
    ],
)
def test_functions_of_torch_that_compute_are_known_by_name(name: str, computes: bool) -> None:
    assert bool(COMPUTES.search(name)) is computes


def test_functions_of_a_library_are_found_by_their_place_in_the_file() -> None:
    library = max(Path(torch.__file__).parent.glob("lib/libtorch_cpu*"), key=lambda path: path.stat().st_size)
    owners = _Owners(os.getpid(), own="/none")
    at = ctypes.cast(ctypes.CDLL(str(library))["sgemm_"], ctypes.c_void_p).value
    assert owners.of(at) == "computing"
    start, _, _, path, offset = next(each for each in owners._ranges if each[0] <= at < each[1])
    assert code_names(path).at(at - start + offset).startswith("sgemm")


def test_code_that_no_file_holds_is_generated() -> None:
    with mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        view = ctypes.c_char.from_buffer(page)
        assert _Owners(os.getpid(), own="/none").of(ctypes.addressof(view)) == "generated"
        del view


def test_what_is_no_library_has_no_names(tmp_path) -> None:
    (tmp_path / "text").write_text("no library" * 10)
    with pytest.raises(ValueError, match="ELF"):
        code_names(str(tmp_path / "text"))


COPIES = """
import torch
torch.set_num_threads(1)
x, n = torch.randn(512, 512), torch.randint(0, 9, (512, 512))
c, y, out = torch.complex(x, x), x.double(), torch.empty(512, 512)
while True:
    x.half().float(); x.bfloat16().float(); y.float(); n.float(); x.to(torch.int8); x.bool(); c.clone(); x.t().contiguous()
    torch.zeros(512, 512); torch.full((512, 512), 2.0); torch.ones_like(y); out.copy_(x[0]); out[:, ::2] = x[:, ::2]
    n.clone().fill_(3); x.expand(2, 512, 512).reshape(-1)
"""


def test_copies_fills_and_conversions_are_no_computing() -> None:
    process = subprocess.Popen([sys.executable, "-c", COPIES])
    try:
        time.sleep(3)
        found = _Owners(process.pid, own="/none")
        counts = Counter(found.of(address) for address in stopped_samples(process, 150))
        assert counts["torch"] >= 30 and not counts["computing"] and not counts["generated"], counts
    finally:
        process.kill()
        process.wait()
