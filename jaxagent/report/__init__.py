"""`jaxagent report`: one self-contained HTML file with the curves, tables and trajectories of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxagent.config.load import ConfigError
from jaxagent.files.write import write_atomically
from jaxagent.report.data import load_run
from jaxagent.report.evaluation_data import is_evaluation, load_evaluation
from jaxagent.report.page import render_page

__all__ = ["write_report"]


def write_report(run_dirs: Sequence[Path], *, out: Path | None = None) -> Path:
    """Reads the folders of runs (which may still be going on) and evaluations, and writes the page; returns its path.

    `out` None: report.html in the folder of the one run, comparison.html in that of the first of several.
    Raises ConfigError where a folder holds no run or `out` is no file name, StoreError where a log cannot be read.
    """
    if not run_dirs:
        raise ConfigError("name at least one run folder: jaxagent report RUN_DIR")
    if out is not None and out.is_dir():
        raise ConfigError(f"--out {out}: that is a folder; name the file to write, for example {out / 'report.html'}")
    runs = [load_evaluation(root) if is_evaluation(root) else load_run(root) for root in run_dirs]
    path = out or runs[0].folder.root / ("report.html" if len(runs) == 1 else "comparison.html")
    page = render_page(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return path.resolve()
