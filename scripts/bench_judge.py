"""What the judge costs and how steady it is, each figure beside the usual way of doing it. Ends with one JSON line.

.venv/bin/python scripts/bench_judge.py [--only compile rate noise] [--repeats 3] [--judgements 20] [--folder F]

compile   one kernel by each skill's compile service, headers ready, against torch.utils.cpp_extension.load
rate      whole judgements a minute, against evaluations as KernelBench does them (kernelbench_style.py)
noise     candidate over eager in repeated judgements on one core, while another core compiles; a naive script's beside
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_judge_cases import Submission, submissions

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.device import DeviceJudge
from sandbox.judge.local import make_device_judge
from sandbox.skill import lay_out, load_skill
from sandbox.types import Artifact

STYLE = Path(__file__).with_name("kernelbench_style.py")
TARGETS = {
    "agent_over_load": 0.25,
    "native_over_load": 0.02,
    "cached_s": 0.1,
    "judge_over_style_without_compile": 1.0,
    "native_rate_with_compile": 5.0,
    "agent_rate_with_compile": 3.0,
    "variation": 0.05,
}
"""The first four and the last are upper limits, the rates with compile lower ones."""
LOWER_LIMITS = ("native_rate_with_compile", "agent_rate_with_compile")


def new_mark() -> str:
    """Makes sources that nothing has compiled yet."""
    return secrets.token_hex(8)


def timed(action: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result


def compiled(service: CompileService, submission: Submission) -> Artifact:
    result = service.compile(submission.skill, submission.candidate)
    assert result.artifact is not None, result.message
    return result.artifact


def styled(submission: Submission, folder: Path, *options: str) -> dict[str, Any]:
    """Runs kernelbench_style.py on a submission of the CUDA-Agent layout."""
    lay_out(load_skill(submission.skill), submission.task, folder)
    for name, text in submission.candidate.files.items():
        (folder / name).write_text(text)
    ran = subprocess.run([sys.executable, str(STYLE), str(folder), *options], capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(f"kernelbench_style.py failed on {submission.name}: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def measure_compile(folder: Path, repeats: int) -> dict[str, Any]:
    service = CompileService(CompileConfig(cache_dir=folder / "compile"))
    ready_s, _ = timed(lambda: compiled(service, submissions("cpp_agent", new_mark())[0]))
    seconds: dict[str, list[float]] = {"native": [], "agent": [], "cached": [], "load": []}
    for index in range(repeats):
        native, agent = (submissions(skill, new_mark())[0] for skill in ("cpp", "cpp_agent"))
        seconds["native"].append(timed(lambda one=native: compiled(service, one))[0])
        seconds["agent"].append(timed(lambda one=agent: compiled(service, one))[0])
        seconds["cached"].append(timed(lambda one=agent: compiled(service, one))[0])
        # what load() itself takes, without the start of Python and the import of torch around it
        seconds["load"].append(styled(agent, folder / "load", "--only-build")["compile_s"])
        shutil.rmtree(folder / "load")
        last = ", ".join(f"{name} {values[-1]:.3f} s" for name, values in seconds.items())
        print(f"compile {index}: {last}", flush=True)
    over = {name: _paired(seconds[name], seconds["load"]) for name in ("agent", "native")}
    return {
        "first_agent_compile_s": ready_s,  # headers and all, where the folder is new
        **{f"{name}_s": _summary(values) for name, values in seconds.items()},
        "agent_over_load": over["agent"],
        "native_over_load": over["native"],
        "cached_s_median": statistics.median(seconds["cached"]),
    }


class Rate:
    """Seconds a submission: the judge's and the style's, in turn, with and without compiling."""

    def __init__(self, folder: Path, judge: DeviceJudge, service: CompileService) -> None:
        self._folder, self._judge, self._service = folder, judge, service
        self.seconds: dict[str, list[float]] = {}

    def judged(self, name: str, one: Submission) -> None:
        compile_s, artifact = timed(lambda: compiled(self._service, one))
        judge_s, judgement = timed(lambda: self._judge.judge(one.task, one.candidate, artifact, skill=one.skill))
        assert judgement.accepted, judgement.message
        self._note(f"{name}_judge", judge_s)
        self._note(f"{name}_with_compile", compile_s + judge_s)

    def styled(self, one: Submission) -> None:
        workdir = self._folder / "style"
        whole_s, result = timed(lambda: styled(one, workdir))
        assert result["correct"], f"the style's evaluation rejects {one.name}"
        self._note("style_with_compile", whole_s)
        built = str(workdir / "build" / "cpu_extension.so")
        self._note("style", timed(lambda: styled(one, workdir, "--built", built))[0])
        shutil.rmtree(workdir)

    def _note(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)


def measure_rate(folder: Path, repeats: int) -> dict[str, Any]:
    service = CompileService(CompileConfig(cache_dir=folder / "compile"))
    compiled(service, submissions("cpp_agent", "headers")[0])
    config = JudgeConfig(quiet=False, cores_per_device=len(os.sched_getaffinity(0)), baseline_dir=folder / "baselines")
    with device(config, folder) as judge:
        for submission in submissions("cpp", "baselines"):
            judge.baseline(submission.task)  # once a task and machine, for all its submissions
        rate = Rate(folder, judge, service)
        for index in range(repeats):
            both = zip(submissions("cpp", new_mark()), submissions("cpp_agent", new_mark()), strict=True)
            for native, agent in both:
                rate.judged("native", native)
                rate.judged("agent", agent)
                rate.styled(agent)
                last = ", ".join(f"{name} {values[-1]:.2f} s" for name, values in rate.seconds.items())
                print(f"rate {index} {agent.name}: {last}", flush=True)
    seconds = rate.seconds
    skills = ("native", "agent")
    return {
        **{f"{name}_s": _summary(values) for name, values in seconds.items()},
        **{f"{name}_a_minute": 60 / statistics.fmean(values) for name, values in seconds.items()},
        "judge_over_style_without_compile": max(_paired(seconds[f"{one}_judge"], seconds["style"]) for one in skills),
        **{
            f"{one}_rate_with_compile": 1 / _paired(seconds[f"{one}_with_compile"], seconds["style_with_compile"])
            for one in skills
        },
    }


def measure_noise(folder: Path, judgements: int) -> dict[str, Any]:
    """One core, one thread, quiet lease off, while g++ keeps the other cores busy."""
    cores = sorted(os.sched_getaffinity(0))
    service = CompileService(CompileConfig(cache_dir=folder / "compile"))
    native, agent = (submissions(skill, "noise")[0] for skill in ("cpp", "cpp_agent"))
    artifact, built = compiled(service, native), folder / "cpu_extension.so"
    built.write_bytes(compiled(service, agent).shared_object)
    config = JudgeConfig(quiet=False, cores_per_device=1, baseline_dir=folder / "baselines-1")
    ratios: dict[str, list[float]] = {"judge": [], "naive": []}
    with device(config, folder) as judge:
        judge.baseline(native.task)
        with _compiling(folder, set(cores[1:])):
            for index in range(judgements):
                judgement = judge.judge(native.task, native.candidate, artifact, skill="cpp")
                assert judgement.accepted, judgement.message
                ratios["judge"].append(judgement.candidate_ms / judgement.eager_ms)  # type: ignore[operator]
                result = styled(agent, folder / "naive", "--built", str(built), "--core", str(cores[0]))
                ratios["naive"].append(result["candidate_ms"] / result["eager_ms"])
                print(f"noise {index}: judge {ratios['judge'][-1]:.4f}, naive {ratios['naive'][-1]:.4f}", flush=True)
    return {
        "variation": _variation(ratios["judge"]),
        "naive_variation": _variation(ratios["naive"]),
        **{name: [round(ratio, 4) for ratio in values] for name, values in ratios.items()},
    }


@contextlib.contextmanager
def device(config: JudgeConfig, folder: Path) -> Iterator[DeviceJudge]:
    judge = make_device_judge(config, 0, folder / "quiet")
    try:
        yield judge
    finally:
        judge.close()


@contextlib.contextmanager
def _compiling(folder: Path, cores: set[int]) -> Iterator[None]:
    """g++ over and over on `cores`."""
    if not cores:
        raise RuntimeError("the noise is measured beside a busy core; this machine has one core only")
    source = folder / "busy.cpp"
    source.write_text('#include <algorithm>\n#include <map>\n#include <regex>\nint main() { std::regex r("a+"); }\n')
    loop = f"while true; do g++ -O2 -c {source} -o {folder}/busy.o; done"
    busy = subprocess.Popen(["sh", "-c", loop], start_new_session=True)
    os.sched_setaffinity(busy.pid, cores)
    try:
        yield
    finally:
        os.killpg(busy.pid, 9)
        busy.wait()


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _paired(ours: list[float], theirs: list[float]) -> float:
    """Median over pairs of one run."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _variation(values: list[float]) -> float:
    """Standard deviation over mean."""
    return statistics.stdev(values) / statistics.fmean(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=["compile", "rate", "noise"], default=["compile", "rate", "noise"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--judgements", type=int, default=20, help="for the noise")
    parser.add_argument("--folder", type=Path, help="where headers and baselines are kept for later runs")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-judge-")))
        folder.mkdir(parents=True, exist_ok=True)
        if "compile" in arguments.only:
            figures |= measure_compile(folder, arguments.repeats)
        if "rate" in arguments.only:
            figures |= measure_rate(folder, arguments.repeats)
        if "noise" in arguments.only:
            figures |= measure_noise(folder, arguments.judgements)
    met = {
        name: (figures[key] >= limit if name in LOWER_LIMITS else figures[key] <= limit)
        for name, limit in TARGETS.items()
        for key in [{"cached_s": "cached_s_median"}.get(name, name)]
        if key in figures
    }
    print(json.dumps({"name": "judge", "figures": figures, "targets": TARGETS, "met": met, "ok": all(met.values())}))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
