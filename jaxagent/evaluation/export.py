"""A policy that has to be made into a model folder first: a run's actor, or adapters in their base model."""

from __future__ import annotations

from pathlib import Path

from jaxagent.evaluation.policy_source import AdapterSource, RunSource
from jaxagent.learner.export import export_run
from jaxagent.models.adapters import load_adapters
from jaxagent.models.export import export_hf
from jaxagent.models.params import load_config, load_decoder


def export_source(source: RunSource | AdapterSource, out: Path) -> str:
    """Writes a Hugging Face folder and says which weights they are.

    Raises what export_run, load_decoder and load_adapters raise.
    """
    if isinstance(source, AdapterSource):
        decoder = load_adapters(load_decoder(source.base), source.path)
        export_hf(decoder, load_config(source.base), out, source=source.base)
        return f"{source.path} merged into {source.base}"
    exported = export_run(source.path, out)
    return f"stage {exported.stage} after {exported.updates} updates"
