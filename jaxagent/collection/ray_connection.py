"""The Ray that a run uses: a cluster that runs already, or one of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

OBJECT_STORE_BYTES = 512 << 20
"""Of a Ray that this run starts for itself: a batch of trajectories is a few MiB."""


@contextmanager
def ray_for_this_process() -> Iterator[None]:
    """Ray as connect_ray finds or starts it; ended again where it was started here."""
    own = connect_ray()
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def connect_ray() -> bool:
    """Joins the cluster that RAY_ADDRESS names (a Ray job sets it), else starts Ray for this run alone.

    Returns whether this process started it, and so has to end it.
    """
    if ray.is_initialized():
        return False
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
        return False
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    return True
