"""The CUDA Agent paper's main table (arXiv 2602.24286), to be printed beside results on KernelBench."""

from __future__ import annotations

from collections.abc import Collection

LEVELS = ("kernelbench/level1", "kernelbench/level2", "kernelbench/level3")
COLUMNS = ["published model", "pass", "faster than eager", "faster than compile", "vs eager", "vs compile"]
# pass %, faster than eager %, faster than compile %, geomean vs eager, geomean vs compile: overall, levels 1, 2, 3
PUBLISHED: dict[str, tuple[tuple[float, float, float, float, float], ...]] = {
    "Seed1.6": ((74.0, 43.6, 27.2, 0.95, 0.69), (90, 63, 51, 1.65, 1.25), (74, 40, 16, 0.68, 0.50),
                (42, 12, 2, 0.60, 0.40)),
    "GLM 4.6": ((75.6, 44.8, 19.2, 0.78, 0.57), (86, 57, 32, 0.99, 0.73), (76, 43, 11, 0.60, 0.42),
                (54, 24, 10, 0.83, 0.62)),
    "Kimi K2": ((66.8, 40.8, 22.8, 0.93, 0.66), (85, 56, 39, 1.43, 1.00), (65, 40, 15, 0.93, 0.65),
                (34, 12, 6, 0.40, 0.29)),
    "Gemini 3 Pro": ((91.2, 87.6, 69.6, 1.92, 1.42), (95, 90, 72, 1.99, 1.51), (93, 91, 76, 2.03, 1.46),
                     (80, 76, 52, 1.58, 1.17)),
    "Claude Opus 4.5": ((95.2, 90.4, 66.4, 1.99, 1.46), (96, 88, 72, 2.03, 1.54), (98, 97, 69, 2.24, 1.60),
                        (88, 82, 50, 1.52, 1.10)),
    "CUDA Agent": ((98.8, 98.4, 96.8, 2.60, 2.11), (100, 99, 97, 2.48, 1.87), (100, 100, 100, 3.27, 2.80),
                   (94, 94, 90, 1.80, 1.52)),
}  # fmt: skip
"""Measured on H20 GPUs with the paper's own checks: pass and speed-ups of other machines and protocols differ."""


def published_table(labels: Collection[str]) -> tuple[list[str], list[list[str]]] | None:
    """Column names and rows for the levels among `labels`, and overall where all three are; None where none is."""
    places = [place for place, level in enumerate(LEVELS, start=1) if level in labels]
    if len(places) == len(LEVELS):
        places.append(0)
    if not places:
        return None
    names = ("overall", *(level.partition("/")[2] for level in LEVELS))
    rows = []
    for place in places:
        for model, figures in PUBLISHED.items():
            passed, eager, compiled, vs_eager, vs_compile = figures[place]
            rates = [f"{rate:.1f} %" for rate in (passed, eager, compiled)]
            rows.append([f"{names[place]}: {model}", *rates, f"{vs_eager:.2f}x", f"{vs_compile:.2f}x"])
    return COLUMNS, rows
