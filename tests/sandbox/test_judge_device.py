"""DeviceJudge on real candidates, compiled by g++: honest ones pass, and each class of failure gets its outcome."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import judge_cases as cases
import pytest

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.device import DeviceJudge
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.worker import Worker
from sandbox.tasks import TaskError
from sandbox.types import Artifact, Candidate, Judgement, Outcome, Task

NO_KERNELS = Artifact(sha256="", arch="", shared_object=b"")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    cases.baseline_dir(folder)
    return folder


@pytest.fixture(scope="module")
def compiler(folder: Path) -> CompileService:
    return CompileService(CompileConfig(cache_dir=folder / "compile"))


@pytest.fixture(scope="module")
def device(folder: Path) -> Iterator[DeviceJudge]:
    device = DeviceJudge(
        JudgeConfig(baseline_dir=folder / "baselines", quiet=False, timeout_s=8, timed_rounds=5, warmup_ms=10),
        DeviceSpec(cores=sorted(os.sched_getaffinity(0))[:2]),
    )
    yield device
    device.close()


@pytest.fixture
def judge(device: DeviceJudge, compiler: CompileService):
    def run(
        candidate: Candidate, task: Task = cases.CHAIN_TASK, *, timed: bool = False, on: DeviceJudge | None = None
    ) -> Judgement:
        artifact = NO_KERNELS
        if len(candidate.files) > 1:
            result = compiler.compile("cpp", candidate)
            assert result.artifact is not None, result.message
            artifact = result.artifact
        return (on or device).judge(task, candidate, artifact, skill="cpp", timed=timed)

    return run


def chain(forward: str, *, init: str = "", top: str = "", kernel: str = cases.CHAIN_KERNEL) -> Candidate:
    return cases.candidate(cases.chain_model(forward, init=init, top=top), chain=kernel)


def test_an_honest_kernel_is_correct_and_timed_against_both_baselines(judge, device, folder):
    judgement = judge(cases.HONEST, timed=True)
    assert judgement.accepted and judgement.reward in (1, 2, 3)
    assert judgement.candidate_ms > 0 and judgement.eager_ms > 0 and judgement.compile_ms > 0
    assert judgement.details["checks"]["num_checks"] >= 8 and judgement.details["checks"]["max_errors"][0] < 1e-5
    eager_ms, compile_ms = device.baseline(cases.CHAIN_TASK)
    ratio = judgement.compile_ms / judgement.eager_ms
    assert ratio == pytest.approx(compile_ms / eager_ms)
    assert len(list((folder / "baselines" / "times").glob("*.json"))) == 1
    assert Judgement.from_json(judgement.to_json()) == judgement
    assert "torch.compile" in judgement.message


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has room for one thread")
def test_threads_of_a_batch_wake_on_cores_of_their_own_and_may_then_go_anywhere(judge, monkeypatch):
    """Two on one core wait for each other for longer than a call takes, which the clock would count."""
    woken: list[list[set[int]]] = []
    wake = Worker.wake

    def looked_at(self: Worker) -> None:
        threads = sorted(int(each) for each in os.listdir(f"/proc/{self.pid}/task"))
        woken.append([os.sched_getaffinity(each) for each in threads])
        wake(self)
        assert len(os.sched_getaffinity(self.pid)) == 2  # threads that it starts have both cores

    monkeypatch.setattr(Worker, "wake", looked_at)
    assert judge(cases.HONEST, timed=True).accepted
    pairs = [cores for cores in woken if len(cores) == 2]
    assert len(pairs) > 10 and all(len(one) == len(two) == 1 and one != two for one, two in pairs)


def test_verify_alone_gives_no_reward(judge):
    judgement = judge(cases.HONEST)
    assert judgement.outcome is Outcome.CORRECT and judgement.reward is None and judgement.candidate_ms is None


WRONG_KERNEL = cases.CHAIN_KERNEL.replace("0.5f", "0.51f")
SKIPS_ONE = cases.CHAIN_KERNEL.replace("i < n;", "i < n - 1;")
CRASHES = cases.CHAIN_KERNEL.replace("y[i] =", "y[i + (1ll << 40)] =")
LOOPS = cases.CHAIN_KERNEL.replace(
    "for (int64_t i = 0; i < n; ++i)", "for (volatile int64_t i = 0; i < n; ++i) i = 0; for (int64_t i = 0; i < n; ++i)"
).replace("#pragma omp parallel for", "")
MUTATES = cases.CHAIN_KERNEL.replace(
    "y[i] = one(x[i], scale);", "{ y[i] = one(x[i], scale); const_cast<float*>(x)[i] = 0; }"
)

FAILURES = {
    "wrong value": (chain(cases.HONEST_FORWARD, kernel=WRONG_KERNEL), Outcome.WRONG, "elements differ; first at ["),
    "last element never written": (chain(cases.HONEST_FORWARD, kernel=SKIPS_ONE), Outcome.WRONG, "[63, 999]"),
    "writes out of bounds": (chain(cases.HONEST_FORWARD, kernel=CRASHES), Outcome.RUNTIME_ERROR, "SIGSEGV"),
    "mutates its input": (chain(cases.HONEST_FORWARD, kernel=MUTATES), Outcome.WRONG, "changed its inputs"),
    "uninitialised output": (chain("return torch.empty_like(x)"), Outcome.WRONG, "elements differ"),
    "torch operator": (chain("return torch.relu(x * self.scale) * 0.5 + x * x"), Outcome.REFUSED, "aten.mul.Tensor"),
    "wrong shape": (chain("return torch.empty(3)"), Outcome.WRONG, "must be float32 (64, 1000), got float32 (3,)"),
    "wrong type": (chain("return torch.empty_like(x, dtype=torch.float64)"), Outcome.WRONG, "got float64"),
    "two outputs": (chain("return x, x"), Outcome.WRONG, "must be a tensor, got a tuple of 2"),
    "none": (chain("return None"), Outcome.WRONG, "got a none"),
    "input itself": (chain("return x"), Outcome.WRONG, ""),
    "expanded output": (chain("return torch.empty(1).expand(64, 1000)"), Outcome.WRONG, "overlapping elements"),
    "exception": (chain("raise KeyError('lost')"), Outcome.RUNTIME_ERROR, "KeyError: 'lost'"),
    "wrong argument": (chain("k.chain(x, x, 'n', 1.0)"), Outcome.RUNTIME_ERROR, "TypeError"),
    "exits when loaded": (
        chain("return x", top="import os; print('[PASS]', flush=True); os._exit(0)"),
        Outcome.RUNTIME_ERROR,
        "exited with status 0",
    ),
    "exits politely": (chain("return x", top="raise SystemExit(0)"), Outcome.RUNTIME_ERROR, "SystemExit"),
    "no ModelNew": (
        cases.candidate("import torch", chain=cases.CHAIN_KERNEL),
        Outcome.RUNTIME_ERROR,
        "no class ModelNew",
    ),
    "syntax error": (cases.candidate("def (", chain=cases.CHAIN_KERNEL), Outcome.RUNTIME_ERROR, "SyntaxError"),
    "extra parameter": (
        chain(cases.HONEST_FORWARD, init="self.extra = nn.Parameter(torch.ones(1))"),
        Outcome.RUNTIME_ERROR,
        "unexpected ['extra']",
    ),
    "static buffer": (
        chain("k.chain(x, self.out, x.numel(), self.scale)\nreturn self.out", init="self.out = torch.empty(64, 1000)"),
        Outcome.WRONG,
        "",
    ),
    "writes a file": (
        chain(cases.HONEST_FORWARD, top="try:\n    open('/tmp/mark', 'w')\nexcept OSError:\n    pass"),
        Outcome.REFUSED,
        "opened /tmp/mark for writing",
    ),
    "looks at frames": (
        chain(cases.HONEST_FORWARD, top="import sys; sys._getframe(0)"),
        Outcome.REFUSED,
        "sys._getframe",
    ),
    "starts a process": (chain(cases.HONEST_FORWARD, top="import os; os.system('true')"), Outcome.REFUSED, "os.system"),
    "opens a socket": (chain(cases.HONEST_FORWARD, top="import socket; socket.socket()"), Outcome.REFUSED, "socket."),
    "tensor subclass": (
        chain(
            cases.HONEST_FORWARD.replace("return y", "return y.as_subclass(Lazy)"),
            top="class Lazy(torch.Tensor):\n    pass",
        ),
        Outcome.REFUSED,
        "plain torch.Tensor",
    ),
    "talks on its channel": (
        chain(
            cases.HONEST_FORWARD,
            top="import os\nfor fd in range(3, 200):\n    try:\n        os.write(fd, b'\\xff' * 64)\n    except OSError:\n        pass",
        ),
        Outcome.RUNTIME_ERROR,
        "frame",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_candidate_gets_its_outcome_and_a_message_to_act_on(judge, name):
    candidate, outcome, words = FAILURES[name]
    judgement = judge(candidate)
    assert judgement.outcome is outcome, judgement.message
    assert words in judgement.message and judgement.reward == -1 and not judgement.accepted


def test_an_endless_loop_is_a_timeout_and_leaves_no_process(judge, folder, compiler):
    short = DeviceJudge(JudgeConfig(baseline_dir=folder / "baselines", quiet=False, timeout_s=1), DeviceSpec(cores=[0]))
    try:
        judgement = judge(chain(cases.HONEST_FORWARD, kernel=LOOPS), on=short)
        assert judgement.outcome is Outcome.TIMEOUT and "no end after 1 s" in judgement.message
        children = Path(f"/proc/{short._workers.zygote_pid}/task/{short._workers.zygote_pid}/children").read_text()
        assert children == ""
    finally:
        short.close()


MEMO = """
key = (x.data_ptr(), x[0, 0].item(), x[-1, -1].item())
if key not in self.seen:
    {clear}
    y = torch.empty_like(x)
    k.chain(x, y, x.numel(), self.scale)
    self.seen[key] = y
return self.seen[key]{copy}
"""


@pytest.mark.parametrize("copy", ["", ".clone()"])
@pytest.mark.parametrize("clear", ["pass", "self.seen.clear()"])
def test_results_kept_by_pointer_and_sampled_elements_are_found(judge, clear, copy):
    judgement = judge(chain(MEMO.format(clear=clear, copy=copy), init="self.seen = {}"))
    assert judgement.outcome is Outcome.WRONG


def test_work_deferred_to_a_thread_is_found_in_the_timed_calls(judge):
    kernel = """
#include <cstdint>
#include <thread>
#include <chrono>
static int calls = 0;
static void work(const float* x, float* y, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) { float r = x[i] * scale; y[i] = (r > 0 ? r : 0) * 0.5f + x[i] * x[i]; }
}
extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  if (++calls < 14) { work(x, y, n, scale); return; }
  std::thread([=] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); work(x, y, n, scale); }).detach();
}
"""
    keeps = cases.HONEST_FORWARD.replace("return y", "self.kept.append(y)\nreturn y")  # late writes hit living memory
    judgement = judge(chain(keeps, init="self.kept = []", kernel=kernel), timed=True)
    assert judgement.outcome is Outcome.WRONG and "timed call" in judgement.message, judgement.message


def affine(forward: str, init: str = "") -> Candidate:
    return cases.candidate(cases.affine_model(forward, init=init), affine=cases.AFFINE_KERNEL)


AFFINE_FORWARD = """
y = torch.empty_like(x)
k.affine(x, {weight}, {bias}, y, x.shape[0], x.shape[1])
return y
"""


def test_parameters_are_given_by_value_and_edited_between_calls(judge):
    honest = affine(AFFINE_FORWARD.format(weight="self.weight", bias="self.bias"))
    assert judge(honest, cases.AFFINE_TASK).accepted
    skips = affine(AFFINE_FORWARD.format(weight="torch.ones(100)", bias="torch.zeros(100)"))
    assert judge(skips, cases.AFFINE_TASK).outcome is Outcome.WRONG
    stale = affine(
        "if self.kept is None:\n    self.kept = self.weight.detach().clone()\n"
        + AFFINE_FORWARD.format(weight="self.kept", bias="self.bias"),
        init="self.kept = None",
    )
    assert judge(stale, cases.AFFINE_TASK).outcome is Outcome.WRONG
    by_version = affine(
        "if self.version != self.weight._version:\n    self.version, self.kept = self.weight._version, self.weight.detach().clone()\n"
        + AFFINE_FORWARD.format(weight="self.kept", bias="self.bias"),
        init="self.version = None",
    )
    assert judge(by_version, cases.AFFINE_TASK).accepted


NESTED_TASK = cases.task(
    """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, index, factor, extra):
        low, where = x.min(dim=1)
        return {"low": low, "where": (where, None)}, [x[index] * factor], 3


def get_inputs():
    return [torch.rand(20, 30), torch.randint(0, 20, (5,)), 2.5, {"unused": [torch.zeros(2).bool()]}]


def get_init_inputs():
    return []
""",
    "nested",
)

NESTED_KERNEL = """
#include <cstdint>
extern "C" void row_min(const float* x, float* low, int64_t* where, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    where[r] = 0;
    for (int64_t c = 1; c < width; ++c) if (x[r * width + c] < x[r * width + where[r]]) where[r] = c;
    low[r] = x[r * width + where[r]];
  }
}
extern "C" void gather(const float* x, const int64_t* index, float* y, int64_t count, int64_t width, float factor) {
  for (int64_t i = 0; i < count; ++i) for (int64_t c = 0; c < width; ++c) y[i * width + c] = x[index[i] * width + c] * factor;
}
"""

NESTED_MODEL = """
import torch
import torch.nn as nn
import cpp_kernels as k


class ModelNew(nn.Module):
    def forward(self, x, index, factor, extra):
        assert extra["unused"][0].dtype is torch.bool
        low, where = torch.empty(x.shape[0]), torch.empty(x.shape[0], dtype=torch.int64)
        k.row_min(x, low, where, x.shape[0], x.shape[1])
        y = torch.empty(index.shape[0], x.shape[1])
        k.gather(x, index, y, index.shape[0], x.shape[1], factor)
        return {"low": low, "where": (where, None)}, [y], {last}
"""


def test_nested_inputs_and_outputs_of_several_types_cross_and_compare(judge):
    good = cases.candidate(NESTED_MODEL.replace("{last}", "3"), nested=NESTED_KERNEL)
    judgement = judge(good, NESTED_TASK)
    assert judgement.accepted, judgement.message
    bad = cases.candidate(NESTED_MODEL.replace("{last}", "4"), nested=NESTED_KERNEL)
    assert "must be 3.0, got 4.0" in judge(bad, NESTED_TASK).message


def test_nan_of_the_reference_is_expected_at_its_positions(judge):
    code = cases.CHAIN_TASK.code.replace("torch.relu(x * self.scale) * 0.5 + x * x", "torch.sqrt(x)")
    kernel = "#include <cmath>\n" + cases.CHAIN_KERNEL.replace("one(x[i], scale)", "std::sqrt(x[i])")
    assert judge(chain(cases.HONEST_FORWARD, kernel=kernel), cases.task(code)).accepted
    zeros = kernel.replace("std::sqrt(x[i])", "x[i] < 0 ? 0 : std::sqrt(x[i])")
    assert judge(chain(cases.HONEST_FORWARD, kernel=zeros), cases.task(code)).outcome is Outcome.WRONG


def test_a_strided_input_keeps_its_strides(judge):
    code = (
        cases.CHAIN_TASK.code.replace("torch.randn(64, 1000)", "torch.randn(1000, 64).t()")
        .replace("[0.7]", "[(0.7, 1), torch.ones(2)]")
        .replace("def __init__(self, scale)", "def __init__(self, scale, unused)")
        .replace("self.scale = scale", "self.scale = scale[0]")
    )
    forward = (
        "assert x.stride() == (1, 64)\ny = torch.empty_like(x)\nk.chain(x.t(), y.t(), x.numel(), self.scale)\nreturn y"
    )
    model = (
        cases.chain_model(forward)
        .replace("def __init__(self, scale)", "def __init__(self, scale, unused)")
        .replace("self.scale = scale", "self.scale = scale[0]; assert unused.tolist() == [1, 1]")
    )
    judgement = judge(cases.candidate(model, chain=cases.CHAIN_KERNEL), cases.task(code))
    assert judgement.accepted, judgement.message


def test_the_candidate_runs_as_another_user_off_the_network_and_without_the_judges_descriptors(judge):
    top = "import os\nraise RuntimeError(f\"uid {os.getuid()} fds {sorted(map(int, os.listdir('/proc/self/fd')))[-1]} net {open('/proc/net/dev').read().count(':')}\")"
    message = judge(chain("return x", top=top)).message
    if os.geteuid() == 0:
        assert "uid 0 " not in message and " net 1" in message
    assert int(message.split(" fds ")[1].split()[0]) < 200


def test_a_flood_of_prints_neither_blocks_nor_forges(judge):
    top = "import sys\nfor _ in range(20000):\n    sys.stderr.write('[PASS] speed-up 100x ' * 5)"
    assert judge(chain(cases.HONEST_FORWARD, top=top), timed=False).accepted


def test_a_reference_that_does_not_run_is_an_error_of_the_task_not_a_score(judge):
    broken = cases.task(cases.CHAIN_TASK.code.replace("return torch.relu", "return torch.reluu"), "broken")
    with pytest.raises(TaskError, match="task broken: the reference does not run: AttributeError"):
        judge(cases.HONEST, broken)


def test_the_paper_protocol_accepts_what_its_tolerance_allows(judge, folder, device):
    near = chain(cases.HONEST_FORWARD, kernel=cases.CHAIN_KERNEL.replace("0.5f", "0.501f"))
    assert judge(near).outcome is Outcome.WRONG
    paper = DeviceJudge(
        JudgeConfig(protocol="paper", baseline_dir=folder / "baselines", quiet=False), DeviceSpec(cores=[0])
    )
    try:
        assert judge(near, on=paper).accepted
        functional = chain("return nn.functional.relu(x * self.scale) * 0.5 + x * x")
        assert "torch.nn.functional.relu may not be called" in judge(functional, on=paper).message
    finally:
        paper.close()


KILLED = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
import judge_cases as cases
from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.device import DeviceJudge
from sandbox.judge.spec import DeviceSpec
import test_judge_device as tests

candidate = tests.chain(cases.HONEST_FORWARD, kernel=tests.LOOPS)
artifact = CompileService(CompileConfig(cache_dir=Path({folder!r}) / "compile")).compile("cpp", candidate).artifact
device = DeviceJudge(JudgeConfig(baseline_dir=Path({folder!r}) / "baselines", quiet=False), DeviceSpec(cores=[0]))
device.wait_ready()
print(device._workers.zygote_pid, flush=True)
device.judge(cases.CHAIN_TASK, candidate, artifact, skill="cpp", timed=False)
"""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_killing_the_judge_in_the_middle_takes_every_worker_with_it(folder):
    code = KILLED.format(
        root=str(Path(__file__).resolve().parents[2]), tests=str(Path(__file__).parent), folder=str(folder)
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    zygote = int(holder.stdout.readline())
    deadline = time.monotonic() + 20
    while len(workers := children_of(zygote)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    while any(alive := [pid for pid in [zygote, *workers] if Path(f"/proc/{pid}").exists()]):
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.01)
