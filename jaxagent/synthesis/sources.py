"""Where a config's tasks come from: files, or the generated tasks of the demo."""

from __future__ import annotations

from jaxagent.synthesis.demo import synthetic_tasks
from jaxagent.synthesis.task_spaces import SPACES
from sandbox.tasks import TaskError, load_tasks
from sandbox.types import Task


def is_synthetic(source: str) -> bool:
    """Whether a source names generated tasks, which lessons and the scripted expert know."""
    return source.partition(":")[0] in SPACES


def resolve_tasks(source: str) -> list[Task]:
    """`synthetic:train[:SEED]`, `synthetic:heldout[:SEED]`, the same of `synthetic_cuda` for a GPU, or a path as
    sandbox.tasks.load_tasks takes it. Several with ` + ` between them are joined.

    SEED (default 0) chooses the set; it is apart from the run's seed, so that runs of several seeds share tasks and
    their cached baselines. Raises TaskError for an unknown form and for a file that cannot be used.
    """
    if " + " in source:
        return [task for part in source.split(" + ") for task in resolve_tasks(part.strip())]
    if not is_synthetic(source):
        return load_tasks(source)
    space, _, rest = source.partition(":")
    split, _, seed = rest.partition(":")
    if split not in ("train", "heldout") or (seed and not seed.isdigit()):
        raise TaskError(
            f"tasks: {source!r} is not understood; write {space}:train or {space}:heldout, with :SEED behind it "
            "for another set, or the path of a file or folder"
        )
    train, heldout = synthetic_tasks(int(seed or 0), space=SPACES[space])
    return train if split == "train" else heldout
