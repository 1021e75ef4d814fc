"""Two judgements at once on one device of cores: real processes, of which only one's are awake while it is timed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import judge_cases as cases
import pytest

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.device import DeviceJudge
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.workers import Pair, Workers
from sandbox.types import Artifact, Candidate, Judgement, Outcome

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="candidates need users of their own")
TIMEOUT_S = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("side-by-side")
    cases.baseline_dir(folder)
    return folder


@pytest.fixture(scope="module")
def artifact(folder: Path) -> Artifact:
    found = CompileService(CompileConfig(cache_dir=folder / "compile")).compile("cpp", cases.HONEST).artifact
    assert found is not None
    return found


@pytest.fixture(scope="module")
def device(folder: Path) -> Iterator[DeviceJudge]:
    device = DeviceJudge(
        JudgeConfig(
            baseline_dir=folder / "baselines",
            quiet=False,
            timeout_s=TIMEOUT_S,
            timed_rounds=5,
            warmup_ms=10,
            jobs_per_device=2,
        ),
        DeviceSpec(cores=sorted(os.sched_getaffinity(0))[:2]),
    )
    yield device
    device.close()


@pytest.fixture
def submit(device: DeviceJudge, artifact: Artifact):
    """Starts a judgement in a thread of its own."""
    with ThreadPoolExecutor(2) as threads:

        def start(candidate: Candidate, *, timed: bool = False) -> Future[Judgement]:
            judge = lambda: device.judge(cases.CHAIN_TASK, candidate, artifact, skill="cpp", timed=timed)  # noqa: E731
            return threads.submit(judge)

        yield start


def chain(forward: str = cases.HONEST_FORWARD, *, top: str = "") -> Candidate:
    return cases.candidate(cases.chain_model(forward, top=top), chain=cases.CHAIN_KERNEL)


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] in "TtZX"


def awake_candidates(pairs: list[Pair]) -> list[int]:
    """Pids of candidates that are not stopped; one that ends meanwhile is not awake."""
    awake = []
    for pair in pairs:
        try:
            if not is_stopped(pair.candidate.pid):
                awake.append(pair.candidate.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return awake


@dataclass
class Seen:
    """Of turns at the clock, looked at from outside while they go on."""

    turns: list[tuple[float, float]] = field(default_factory=list)
    """From and to."""
    awake: list[list[int]] = field(default_factory=list)
    """Candidates that were not stopped, although another was timed; [] where all is well."""


@pytest.fixture
def seen(device, monkeypatch) -> Seen:
    pairs: list[Pair] = []
    seen = Seen()
    start_pair, take = Workers._start_pair, device._turns.take

    def kept(self: Workers) -> Pair:
        pairs.append(start_pair(self))
        return pairs[-1]

    class Watched:
        def __init__(self, *timed, probe):
            self._timed, self._turn, self._over = timed, take(*timed, probe=probe), threading.Event()

        def _look(self) -> None:
            mine = {worker.pid for worker in self._timed}
            while not self._over.wait(0.002):
                others = [pair for pair in list(pairs) if pair.candidate.pid not in mine]
                if awake := awake_candidates(others):
                    seen.awake.append(awake)

        def __enter__(self):
            self._report = self._turn.__enter__()
            self._began = time.monotonic()
            self._looking = threading.Thread(target=self._look)
            self._looking.start()
            return self._report

        def __exit__(self, *error):
            self._over.set()
            self._looking.join()
            seen.turns.append((self._began, time.monotonic()))
            return self._turn.__exit__(*error)

    device.baseline(cases.CHAIN_TASK)
    monkeypatch.setattr(Workers, "_start_pair", kept)
    monkeypatch.setattr(device._turns, "take", Watched)
    return seen


def test_both_are_judged_and_only_one_is_awake_while_a_clock_runs(submit, seen):
    began = time.monotonic()
    judgements = [each.result() for each in [submit(chain(), timed=True) for _ in range(4)]]
    elapsed = time.monotonic() - began
    assert all(each.accepted for each in judgements), [each.message for each in judgements]
    assert not any("first_try" in each.details for each in judgements)
    assert len(seen.turns) >= 4  # a baseline that no longer fits is timed again
    assert all(before[1] <= after[0] for before, after in zip(seen.turns, seen.turns[1:], strict=False))
    assert not seen.awake
    assert sum(each.details["phases"]["total_s"] for each in judgements) > 1.2 * elapsed  # they were side by side
    assert any(each.details["phases"].get("way_s", 0.0) or each.details["turn"]["waited_s"] for each in judgements)


HANGS_WHEN_TIMED = """
self.calls += 1
while self.calls > 30:
    pass
"""


def test_one_that_hangs_while_it_is_timed_is_gone_before_the_next_is(submit, seen):
    forward = HANGS_WHEN_TIMED + cases.HONEST_FORWARD
    model = cases.chain_model(forward, init="self.calls = 0")
    hanging = submit(cases.candidate(model, chain=cases.CHAIN_KERNEL), timed=True)
    honest = [submit(chain(), timed=True) for _ in range(2)]
    assert all(each.result().accepted for each in honest), [each.result().message for each in honest]
    judgement = hanging.result()
    assert judgement.outcome is Outcome.TIMEOUT and "first_try" in judgement.details, judgement.message
    assert len(seen.turns) >= 4 and not seen.awake  # it had two, and hung in both


def test_limits_of_time_stand_still_while_a_neighbour_is_timed(device, submit):
    judged = submit(chain(cases.HONEST_FORWARD, top="import time; time.sleep(1)"))
    time.sleep(0.5)  # it loads
    with device._turns.take(probe=None) as turn:
        time.sleep(TIMEOUT_S + 1)
    judgement = judged.result()
    assert judgement.outcome is Outcome.CORRECT and "first_try" not in judgement.details, judgement.message
    assert judgement.details["phases"]["way_s"] > TIMEOUT_S and turn.waited_s > 0.1


def test_one_that_never_ends_is_heard_twice_and_costs_its_neighbour_nothing(submit):
    endless = submit(chain("while True: pass"))
    time.sleep(1.0)
    honest = submit(chain(), timed=True)
    judgement = endless.result()
    assert judgement.outcome is Outcome.TIMEOUT and "no end after" in judgement.details["first_try"]
    assert honest.result().accepted, honest.result().message


SPY = """
import os
tried = dict()
for path in ({path!r}, os.path.dirname(os.path.dirname(__file__))):
    try:
        tried[path] = os.listdir(path) if os.path.isdir(path) else open(path).read()
    except OSError as error:
        tried[path] = type(error).__name__
raise KeyError(list(tried.values()))
"""


def test_a_candidate_cannot_read_or_find_its_neighbours_files(device, submit):
    slow = submit(chain(top="import time; time.sleep(3)"))
    while not (found := list(device.folder.glob("*/model_new.py"))) and not slow.done():
        time.sleep(0.02)
    [path] = found
    spy = submit(chain(top=SPY.format(path=str(path)))).result()
    assert "['PermissionError', 'PermissionError']" in spy.message, spy.message
    assert slow.result().outcome is Outcome.CORRECT


def test_trouble_of_ours_beside_a_neighbour_counts_only_when_it_happens_alone(device, submit, monkeypatch):
    """A worker of the reference that is killed, as a machine without memory would, is asked again without neighbours."""
    from sandbox.judge.checks import Checker

    check, killed = Checker.run, []

    def kill_once(self: Checker):
        if not killed:
            killed.append(self._oracle.worker.kill())
        return check(self)

    monkeypatch.setattr(Checker, "run", kill_once)
    judgement = submit(chain()).result()
    assert judgement.outcome is Outcome.CORRECT and "process failed" in judgement.details["first_try"]
