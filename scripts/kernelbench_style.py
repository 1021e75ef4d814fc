"""An evaluation as KernelBench does it, in one process: what bench_judge.py compares the judge with.

    python scripts/kernelbench_style.py WORKDIR [--built NAME.so] [--core 0]

WORKDIR holds model.py, model_new.py and kernels/ in the CUDA-Agent layout, with its binding.cpp. The extension is
built by torch.utils.cpp_extension.load, or taken as built. Then five draws are compared with allclose at 1e-4 and 100
calls are timed by the process's own clock after three to warm up, eager likewise. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "cpu_extension"
NUM_CORRECT_TRIALS, NUM_PERF_TRIALS, NUM_WARMUP = 5, 100, 3
TOLERANCE = 1e-4


def build(workdir: Path) -> float:
    """Compiles and loads the extension in `workdir`; seconds."""
    from torch.utils.cpp_extension import load

    began = time.perf_counter()
    folder = workdir / "build"
    folder.mkdir(exist_ok=True)
    sys.modules[MODULE] = load(
        name=MODULE,
        sources=[str(workdir / "binding.cpp"), *map(str, sorted((workdir / "kernels").glob("*.cpp")))],
        build_directory=str(folder),
        extra_cflags=["-O3", "-march=native", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
        with_cuda=False,
    )
    return time.perf_counter() - began


def evaluate(workdir: Path) -> dict[str, Any]:
    import torch

    def timed(model: Any, inputs: list[Any]) -> float:
        for _ in range(NUM_WARMUP):
            model(*inputs)
        times = []
        for _ in range(NUM_PERF_TRIALS):
            began = time.perf_counter()
            model(*inputs)
            times.append((time.perf_counter() - began) * 1e3)
        return statistics.fmean(times)

    task, solution = _load("model", workdir / "model.py"), _load("model_new", workdir / "model_new.py")
    with torch.no_grad():
        models = []
        for kind in (task.Model, solution.ModelNew):
            torch.manual_seed(42)
            models.append(kind(*task.get_init_inputs()).eval())
        correct = 0
        for trial in range(NUM_CORRECT_TRIALS):
            torch.manual_seed(42 + trial)
            inputs = task.get_inputs()
            wanted, got = (model(*inputs) for model in models)
            correct += wanted.shape == got.shape and torch.allclose(wanted, got, atol=TOLERANCE, rtol=TOLERANCE)
        torch.manual_seed(42)
        inputs = task.get_inputs()
        return {"correct": correct == NUM_CORRECT_TRIALS} | {
            name: timed(model, inputs) for name, model in zip(("eager_ms", "candidate_ms"), models, strict=True)
        }


def _load(name: str, path: Path, loader: Any = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--built", type=Path)
    parser.add_argument("--core", type=int, help="run on this core alone, with one thread")
    parser.add_argument("--only-build", action="store_true")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, [arguments.core])
        os.environ["OMP_NUM_THREADS"] = "1"
    compile_s = 0.0
    if arguments.built:
        loader = importlib.machinery.ExtensionFileLoader(MODULE, str(arguments.built))
        import torch  # noqa: F401  the extension's libraries come with it

        sys.modules[MODULE] = _load(MODULE, arguments.built, loader)
    else:
        compile_s = build(arguments.workdir)
    result = {} if arguments.only_build else evaluate(arguments.workdir)
    print(json.dumps(result | {"compile_s": compile_s}))


if __name__ == "__main__":
    main()
