"""The page: one HTML file that needs neither server nor network, and in which no text of a model can act.

Three fences, each enough by itself. What comes from a run's log reaches the document only as base64 of gzip, so it
can end no tag. The scripts put it on the page as text nodes. A content security policy names the page's own scripts
by their hashes, so nothing else runs, and nothing is fetched.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from jaxagent.evaluation.results import show, table_rows
from jaxagent.report.charts import make_charts, metric_columns, step_axis
from jaxagent.report.comparison import comparison_charts, comparison_table, joint_axis
from jaxagent.report.data import RunData, task_rows
from jaxagent.report.funnel import funnel_rows
from jaxagent.report.heldout_charts import heldout_charts
from jaxagent.schedule.stage_table import stage_rows

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("dom.js", "highlight.js", "diff.js", "charts.js", "trajectories.js", "tokens.js", "viewer.js", "page.js")


def render_page(runs: Sequence[RunData]) -> str:
    """The whole file, in ASCII: whatever else the texts hold is written as character references."""
    app = _app_script()
    library = get_plotlyjs()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    text = environment.get_template("report.html.j2").render(
        title=" · ".join(run.config.name for run in runs),
        policy=_policy(app, library),
        style=Markup((_TEMPLATES / "report.css").read_text()),
        script=Markup(app),
        library=_packed(gzip.compress(library.encode(), mtime=0)),
        runs=[_run_view(run) for run in runs],
        comparison=_comparison(runs) if len(runs) > 1 else None,
    )
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _run_view(run: RunData) -> dict[str, Any]:
    stage_columns, stages = stage_rows(run.records)
    pack = run.trajectories
    return {
        "name": run.config.name,
        "headline": run.facts,
        "is_evaluation": run.is_evaluation,
        "families": dict(zip(("columns", "rows"), table_rows(run.families), strict=True)),
        "remarks": run.remarks,
        "stages": {"columns": stage_columns, "rows": stages},
        "heldout": dict(zip(("columns", "rows"), table_rows(run.evaluations), strict=True)),
        "gains": [(label, show(interval)) for label, interval in run.gains.items()],
        "last": run.evaluations[-1].label if run.evaluations else "",
        "tasks": dict(zip(("columns", "rows"), task_rows(run.evaluations), strict=True)),
        "config": run.config_text,
        "counts": pack.counts,
        "missing": pack.shared["missing"],
        "data": _packed_json({
            "name": run.config.name,
            "axis": step_axis(run.records, [stage.name for stage in run.config.stages]),
            "charts": [chart.to_json() for chart in make_charts(run)],
            "heldout": [chart.to_json() for chart in heldout_charts(run.heldout, funnel_rows(_rollouts(run)))],
            "is_evaluation": run.is_evaluation,
            "metrics": metric_columns(run.records),
            "index": pack.index,
        }),
        "shared": _packed_json(pack.shared),
        "chunks": [_packed(chunk) for chunk in pack.chunks],
    }  # fmt: skip


def _rollouts(run: RunData) -> list[dict[str, Any]]:
    """Index rows of the stages' own trajectories, without those of evaluations."""
    stages = {stage.name for stage in run.config.stages}
    return [row for row in run.trajectories.index if row["stage"] in stages]


def _comparison(runs: Sequence[RunData]) -> dict[str, Any]:
    columns, rows = comparison_table(runs)
    charts = [chart.to_json() for chart in comparison_charts(runs)]
    return {"columns": columns, "rows": rows, "data": _packed_json({"axis": joint_axis(runs), "charts": charts})}


def _app_script() -> str:
    """All scripts as one; ASCII, so that its hash does not depend on how the file is written."""
    text = "\n".join((_TEMPLATES / name).read_text(encoding="ascii") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{text}}})();\n'


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'")  # fmt: skip


def _packed_json(value: Any) -> str:
    return _packed(gzip.compress(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"), mtime=0))


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
