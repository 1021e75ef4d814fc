"""Compile time is most of these tests: little optimisation, and equal programs are compiled once a session."""

from __future__ import annotations

import tempfile

import pytest


@pytest.fixture(scope="session", autouse=True)
def cheap_compilation():
    import jax

    with tempfile.TemporaryDirectory(prefix="jaxagent-xla-", ignore_cleanup_errors=True) as folder:
        jax.config.update("jax_disable_most_optimizations", True)
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        yield
        jax.config.update("jax_compilation_cache_dir", None)
