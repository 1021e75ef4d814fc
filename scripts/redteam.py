"""Judges submissions that try to fool the judge, and honest ones that look as if: every verdict has to be right.

.venv/bin/python scripts/redteam.py [FOLDER …] [--only WORD …] [--timeout-s 15]

Without a folder the project's own cases are judged (tests/sandbox/redteam). A folder holds one folder a submission,
with expect.json ({"class", "verdict": "accept" | "reject", "why"}), model.py, model_new.py and kernels/. Prints a table
and ends with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.local import LocalJudge
from sandbox.types import DeviceError, Judgement

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sandbox"))
import redteam_cases
from redteam_cases import Case


@dataclass(frozen=True, slots=True)
class Result:
    """What one case got; `judgement` is None where the judge itself failed, which is never right."""

    case: Case
    judgement: Judgement | None
    message: str
    seconds: float

    @property
    def right(self) -> bool:
        return self.judgement is not None and self.case.is_right(self.judgement)


async def judge_all(cases: list[Case], timeout_s: float, console: Console) -> list[Result]:
    judge = LocalJudge(JudgeConfig(quiet=False, timeout_s=timeout_s), CompileConfig())
    results = []
    try:
        for case in cases:
            began = time.monotonic()
            try:
                judgement = await judge.judge(case.task, case.candidate, skill=case.skill)
                message = judgement.message
            except DeviceError as error:
                judgement, message = None, f"the judge failed: {error}"
            results.append(Result(case, judgement, message, time.monotonic() - began))
            mark = "right" if results[-1].right else "WRONG"
            console.print(f"{mark}  {case.name}: {_first_line(message)}", highlight=False, markup=False)
    finally:
        await judge.close()
    return results


def table_of(results: list[Result]) -> Table:
    table = Table("case", "class", "expected", "got", "seconds", "message", title="red team")
    for result in sorted(results, key=lambda result: (result.right, result.case.name)):
        got = str(result.judgement.outcome) if result.judgement else "error"
        table.add_row(
            result.case.name,
            result.case.kind,
            result.case.expected,
            got if result.right else f"[red]{got}[/red]",
            f"{result.seconds:.1f}",
            _first_line(result.message)[:90].replace("[", r"\["),
        )
    return table


def figures_of(results: list[Result]) -> dict[str, object]:
    wrong = [result for result in results if not result.right]
    return {
        "cases": len(results),
        "classes": len({result.case.kind for result in results}),
        "missed": [result.case.name for result in wrong if result.judgement and result.judgement.accepted],
        "falsely_rejected": [result.case.name for result in wrong if result.case.accept],
        "rejected_for_another_reason": [
            result.case.name
            for result in wrong
            if result.judgement and not result.judgement.accepted and not result.case.accept
        ],
        "judge_failed": [result.case.name for result in wrong if result.judgement is None],
        "seconds": round(sum(result.seconds for result in results), 1),
    }


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[redteam_cases.OWN / "cases"])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose name holds one of these")
    parser.add_argument("--timeout-s", type=float, default=15.0, help="of one candidate's checks and timing")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory(prefix="redteam-") as scratch:
        cases = [
            case
            for index, folder in enumerate(arguments.folders)
            for case in redteam_cases.load(folder, Path(scratch, str(index)))
            if not arguments.only or any(word in case.name for word in arguments.only)
        ]
        results = asyncio.run(judge_all(cases, arguments.timeout_s, console))
    console.print(table_of(results))
    ok = all(result.right for result in results)
    targets = {"missed": 0, "falsely_rejected": 0, "rejected_for_another_reason": 0, "judge_failed": 0}
    print(json.dumps({"name": "redteam", "figures": figures_of(results), "targets": targets, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
