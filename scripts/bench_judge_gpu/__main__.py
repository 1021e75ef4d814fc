"""The judge on this machine's GPU: verdicts, noise, noise beside other work, and judgements a minute. Ends with JSON.

.venv/bin/python scripts/bench_judge_gpu [--parts acceptance noise shared] [--repeats 20] [--out FILE]

acceptance   every case of tests/sandbox/gpu/gpu_cases.py as a good, a slow and a wrong kernel, through the whole judge,
             by skill cuda and cuda_agent: verdicts, seconds of each phase, and judgements a minute, compiles included
noise        one kernel judged again and again, in new processes each time: variation of candidate over eager, and
             judgements a minute without compiles
shared       the same while two other processes use the GPU, with and without the quiet lease
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "sandbox" / "gpu"))
import acceptance
import noise
import shared

PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "acceptance": acceptance.run,
    "noise": noise.run,
    "shared": shared.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--skills", nargs="+", choices=["cuda", "cuda_agent"], default=["cuda", "cuda_agent"])
    parser.add_argument("--cases", nargs="+", default=["matmul, bias and relu", "row sum", "elementwise chain"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile-workers", type=int, default=10)
    parser.add_argument("--cores", type=int, default=4, help="judge.cores_per_device")
    parser.add_argument("--jobs", type=int, default=3, help="judge.jobs_per_device")
    parser.add_argument("--rounds", type=int, default=9, help="judge.timed_rounds")
    parser.add_argument("--cache", type=Path, help="of compiled cuda_agent libraries; by default an empty one")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-judge-gpu-") as name:
        for part in arguments.parts:
            began = time.monotonic()
            figures[part] = PARTS[part](arguments, Path(name)) | {"part_s": time.monotonic() - began}
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(figures, indent=1))
            print(f"{part}: {figures[part]['part_s']:.1f} s", flush=True)
    ok = all(figure["ok"] for figure in figures.values())
    print(json.dumps({"name": "judge_gpu", "figures": figures, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
