"""Where a config's tasks come from: files, or the generated tasks of the demo."""

from __future__ import annotations

from jaxagent.synthesis.demo import synthetic_tasks
from sandbox.tasks import TaskError, load_tasks
from sandbox.types import Task


def resolve_tasks(source: str) -> list[Task]:
    """`synthetic:train[:SEED]`, `synthetic:heldout[:SEED]`, or a path as sandbox.tasks.load_tasks takes it.

    SEED (default 0) chooses the set; it is apart from the run's seed, so that runs of several seeds share tasks and
    their cached baselines. Raises TaskError for an unknown form and for a file that cannot be used.
    """
    if not source.startswith("synthetic:"):
        return load_tasks(source)
    _, _, rest = source.partition(":")
    split, _, seed = rest.partition(":")
    if split not in ("train", "heldout") or (seed and not seed.isdigit()):
        raise TaskError(
            f"tasks: {source!r} is not understood; write synthetic:train or synthetic:heldout, with :SEED behind it "
            "for another set, or the path of a file or folder"
        )
    train, heldout = synthetic_tasks(int(seed or 0))
    return train if split == "train" else heldout
