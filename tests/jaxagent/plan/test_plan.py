"""Plans: what they add up, what they refuse, and advice that ends in a fit."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from jaxagent.cli import main
from jaxagent.config.learner import LearnerConfig, MeshConfig
from jaxagent.config.load import ConfigError, load_config
from jaxagent.mesh.devices import num_devices
from jaxagent.models.config import ComputeConfig
from jaxagent.models.decoder import abstract_decoder
from jaxagent.plan.accelerators import ACCELERATORS, Accelerator
from jaxagent.plan.advice import advise
from jaxagent.plan.flops import Flops, forward_flops, step_flops
from jaxagent.plan.memory import Memory
from jaxagent.plan.page import plan_text
from jaxagent.plan.plan import make_plan, model_shape, plan_json
from jaxagent.plan.timing import step_time, within_a_host

SMOKE = Path("configs/smoke.yaml")
ON_EIGHT = ["--learner.mesh", "{fsdp: 2, tensor: 2, context: 2}", "--learner.rows_per_microbatch=4"]
SMALL = ["--learner.row_tokens=1024", "--learner.logits_chunk_tokens=256"]


def planned(*overrides, devices, memory_gib=None):
    config = load_config(SMOKE, [*SMALL, *overrides])
    return make_plan(config, devices=devices, accelerator=ACCELERATORS["h100"], memory_gib=memory_gib, efficiency=0.5)


@pytest.fixture(scope="module")
def on_eight():
    return planned(*ON_EIGHT, devices=8)


def test_state_and_batch_are_what_the_compiler_counts_as_arguments(on_eight):
    facts = on_eight.facts
    for name in ("actor", "critic"):
        state = getattr(facts, name)
        expected = state.parameters + state.optimizer + facts.batch_bytes
        assert facts.steps[name].argument_bytes == pytest.approx(expected, rel=0.15)


def test_a_device_holds_its_share_of_a_network(on_eight):
    shape = model_shape(load_config(SMOKE).model)
    total = 4 * sum(leaf.size for leaf in jax.tree.leaves(nnx.state(abstract_decoder(shape), nnx.Param)))
    assert total / 4 <= on_eight.facts.actor.parameters < total / 3, "split by fsdp and tensor, norms are whole"
    assert on_eight.facts.actor.optimizer == pytest.approx(2 * on_eight.facts.actor.parameters, rel=0.01)
    assert on_eight.facts.actor.gradients == on_eight.facts.actor.parameters


def test_the_parts_of_memory_add_up_to_the_compilers_sum(on_eight):
    for name, memory in on_eight.memory.items():
        step = on_eight.facts.steps[name]
        own = memory.gradients + memory.activations + memory.logits + memory.experts + memory.workspace
        assert own == step.temporary_bytes + step.output_bytes - step.aliased_bytes
    assert on_eight.memory["actor"].logits > 0 and on_eight.memory["critic"].logits == 0
    assert on_eight.peak.total == max(memory.total for memory in on_eight.memory.values())


def test_traffic_goes_along_the_axes_that_split_something(on_eight):
    traffic = on_eight.facts.steps["actor"].traffic
    assert "all-gather" in traffic["context"], "keys and values of whole rows"
    assert {"fsdp", "tensor", "context"} <= {axis for axes in traffic for axis in axes.split("+")}


def test_the_text_says_what_the_json_says(on_eight):
    text, values = plan_text(on_eight, command="jaxagent plan X"), plan_json(on_eight)
    json.dumps(values)
    assert "It fits" in text and values["fits"]
    assert f"{values['peak_bytes'] / 2**30:.2f} of" in text
    assert f"{values['seconds']:,.2f} s an update" in text


@pytest.mark.slow
def test_following_the_first_advice_ends_in_a_fit():
    config = load_config(SMOKE, [*SMALL, *ON_EIGHT, "--learner.remat=false", "--learner.rows_per_microbatch=8"])
    limit = make_plan(
        config, devices=8, accelerator=ACCELERATORS["h100"], memory_gib=None, efficiency=0.5
    ).peak.total / 2**30 / 4  # fmt: skip
    followed, overrides, devices = [], [*ON_EIGHT, "--learner.remat=false", "--learner.rows_per_microbatch=8"], 8
    while not (plan := planned(*overrides, devices=devices, memory_gib=limit)).fits:
        advice = plan.advice[0]
        assert f"--devices {advice.devices} {' '.join(advice.overrides)}" in plan_text(plan, command="jaxagent plan X")
        followed.append(advice)
        overrides, devices = [*overrides, *advice.overrides], advice.devices
        assert len(followed) < 10, followed
    assert followed, "the limit is a quarter of what was needed"


def test_a_number_of_devices_that_the_mesh_does_not_have_is_refused_with_a_mesh_that_does(capsys):
    assert main(["plan", str(SMOKE), *ON_EIGHT, "--devices", "16"]) == 2
    error = capsys.readouterr().err
    assert "--devices 16: learner.mesh (fsdp=2, tensor=2, context=2) has 8" in error
    assert "--learner.mesh.fsdp=4 --learner.rows_per_microbatch=4" in error


def test_a_config_without_ppo_is_refused():
    config = load_config(SMOKE)
    config = config.model_copy(update={"stages": config.stages[:2]})
    with pytest.raises(ConfigError, match="a plan is made for a PPO stage"):
        make_plan(config, devices=1, accelerator=ACCELERATORS["h100"], memory_gib=None, efficiency=0.5)


# Pure parts ---------------------------------------------------------------------------------------------------------


def test_operations_of_a_forward_pass_are_those_that_xla_counts():
    """One layer, so that nothing hides in a loop; masked attention computes the square of which half is counted."""
    shape = dataclasses.replace(model_shape(load_config(SMOKE).model), num_layers=1, hidden_size=256, head_dim=64)
    graphdef, params = nnx.split(abstract_decoder(shape, ComputeConfig(attention="masked", unroll_layers=1)), nnx.Param)
    ids = np.zeros((2, 128), np.int32)
    call = jax.jit(lambda params: (m := nnx.merge(graphdef, params)).logits(m(ids, ids, ids + 1)))
    counted = call.lower(params).compile().cost_analysis()["flops"]
    layers, scores, head = forward_flops(shape, tokens=256, row_tokens=128, has_head=True)
    assert layers + 2 * scores + head == pytest.approx(counted, rel=0.1)


def test_recomputation_costs_a_forward_pass_and_is_not_useful_work():
    shape = model_shape(load_config(SMOKE).model)
    kept, products, attention, again = (
        step_flops("actor", shape, LearnerConfig(remat=remat, row_tokens=512), rows=4)
        for remat in (False, "keep_products", "keep_attention", True)
    )
    assert kept.model == again.model < kept.hardware < attention.hardware < again.hardware
    assert products == kept


def test_a_group_within_a_host_is_told_from_one_across_hosts():
    mesh = {"data": 2, "fsdp": 4, "tensor": 1, "expert": 1, "context": 4}
    assert within_a_host(["context"], mesh, 8)
    assert not within_a_host(["fsdp"], mesh, 8)
    assert not within_a_host(["data"], mesh, 16) and within_a_host(["fsdp", "context"], mesh, 16)


def test_time_is_work_over_rate_and_bytes_over_wire():
    device = Accelerator(name="x", memory_gib=1, bf16_tflops=100, link_gb_per_s=10, network_gb_per_s=1, per_host=2)
    time = step_time(
        Flops(1e14, 4e14),
        {"context": {"all-gather": 5e9}, "fsdp": {"all-reduce": 1e9, "all-gather": 1e9}},
        num_microbatches=2,
        mesh_shape={"fsdp": 2, "context": 2},
        accelerator=device,
        dtype="bfloat16",
        efficiency=0.5,
    )
    assert time.compute_s == pytest.approx(4e14 / 4 / 50e12)
    assert time.traffic_s == pytest.approx({"context": 1.0, "fsdp": 4.0})
    assert time.seconds == pytest.approx(7.0)


def memory(**parts):
    names = ("parameters", "optimizer", "batch", "gradients", "activations", "logits", "experts", "workspace")
    return Memory(**{name: 0 for name in names} | parts)


@pytest.mark.parametrize(
    ("full_of", "config", "changes"),
    [
        ("experts", {"row_tokens": 65536, "rows_per_microbatch": 1}, {"expert_chunk_tokens": 8192}),
        ("activations", {"remat": False}, {"remat": True}),
        ("activations", {"remat": "keep_products"}, {"remat": True}),
        ("activations", {"rows_per_microbatch": 8}, {"rows_per_microbatch": 4}),
        ("logits", {"rows_per_microbatch": 1, "logits_chunk_tokens": 4096}, {"logits_chunk_tokens": 1024}),
        ("optimizer", {"rows_per_microbatch": 4, "mesh": {"data": 4}}, {"mesh.data": 1, "mesh.fsdp": 4}),
        (
            "workspace",
            {"rows_per_microbatch": 4, "mesh": {"fsdp": 4}},
            {"mesh.fsdp": 2, "mesh.context": 2, "rows_per_microbatch": 2},
        ),
    ],
)
def test_the_first_advice_makes_the_largest_part_smaller_with_as_many_devices(full_of, config, changes):
    config = LearnerConfig(**config)
    first = advise(memory(**{full_of: 100, "parameters": 1}), config)[0]
    assert first.changes == changes
    assert first.devices == num_devices(config.mesh) and first.saves_bytes >= 49


def test_where_nothing_else_helps_more_devices_do():
    config = LearnerConfig(rows_per_microbatch=2, mesh=MeshConfig(fsdp=2), logits_chunk_tokens=128)
    (advice,) = advise(memory(optimizer=100), config)
    assert advice.devices == 4 and advice.changes == {"mesh.fsdp": 4, "rows_per_microbatch": 4}
