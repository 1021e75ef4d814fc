"""Adapters as a policy: merged into their base, as a folder that is served like any model."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from toys import tiny_actor

from jaxagent.config.learner import LoraConfig
from jaxagent.evaluation.export import export_source
from jaxagent.evaluation.policy_source import AdapterSource, parse_policy
from jaxagent.models.adapters import save_adapters
from jaxagent.models.export import export_hf
from jaxagent.models.lora import add_adapters, trainable
from jaxagent.models.params import load_decoder, named_weights


def test_adapters_are_merged_into_the_base_that_they_name(tmp_path):
    plain = tiny_actor()
    export_hf(plain, plain.config, tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    adapted = add_adapters(tiny_actor(), LoraConfig(rank=2, alpha=4.0))
    for path, parameter in nnx.to_flat_state(nnx.state(adapted, trainable)):
        if path[-1] == "b":
            parameter.set_value(jnp.full(parameter.get_value().shape, 0.1))
    save_adapters(adapted, tmp_path / "adapter", base_model="base")
    source = parse_policy(str(tmp_path / "adapter"))
    assert source == AdapterSource(tmp_path / "adapter", tmp_path / "base")
    assert "merged into" in export_source(source, tmp_path / "out")
    merged, before = dict(named_weights(load_decoder(tmp_path / "out"))), dict(named_weights(plain))
    for name, value in named_weights(adapted):
        np.testing.assert_allclose(merged[name], value, rtol=1e-6)
        assert np.array_equal(merged[name], before[name]) == (".self_attn." not in name or "proj" not in name)
    assert (tmp_path / "out" / "tokenizer.json").exists()
