"""Traffic read from compiled programs whose collectives are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxagent.config.learner import MeshConfig
from jaxagent.mesh.sharding import make_mesh
from jaxagent.plan.collectives import traffic_of


def traffic_of_call(function, *shapes, spec, **axes):
    mesh = make_mesh(MeshConfig(**axes), rows_per_microbatch=8)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=PartitionSpec(), check_vma=False)
    arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return traffic_of(jax.jit(mapped).lower(*arrays).compile().as_text(), mesh.shape)


def test_a_sum_over_an_axis_goes_around_twice_less_one_share():
    found = traffic_of_call(
        lambda x: jax.lax.psum(x, "tensor"), (4, 16), spec=PartitionSpec(None, "tensor"), tensor=4, data=2
    )
    assert found == {"tensor": {"all-reduce": pytest.approx(2 * 3 / 4 * 4 * 4 * 4)}}


def test_a_gather_in_a_loop_counts_as_often_as_the_loop_runs():
    def gathers(x):
        def body(total, index):
            return total + jax.lax.all_gather(x * index, "context", tiled=True), None

        return jax.lax.scan(body, jnp.zeros((8, 16)), jnp.arange(5.0))[0]

    found = traffic_of_call(gathers, (8, 16), spec=PartitionSpec("context"), context=8)
    assert found == {"context": {"all-gather": pytest.approx(5 * 7 / 8 * 8 * 16 * 4)}}


def test_axes_that_take_part_together_are_named_together():
    found = traffic_of_call(
        lambda x: jax.lax.psum(x, ("data", "context")), (8, 3), spec=PartitionSpec(("data", "context")),
        data=2, tensor=2, context=2,
    )  # fmt: skip
    assert list(found) == ["data+context"]


def test_neighbours_exchange_what_they_hold():
    found = traffic_of_call(
        lambda x: jax.lax.psum(jax.lax.ppermute(x, "fsdp", [(i, (i + 1) % 4) for i in range(4)]), "tensor"),
        (8, 2), spec=PartitionSpec("fsdp"), fsdp=4, tensor=2,
    )  # fmt: skip
    assert found["fsdp"] == {"collective-permute": 2 * 2 * 4}


def test_a_parts_sum_sends_all_parts_but_ones_own():
    found = traffic_of_call(
        lambda x: jax.lax.all_gather(
            jax.lax.psum_scatter(x, "expert", scatter_dimension=0, tiled=True), "expert", tiled=True
        ),
        (8, 4), spec=PartitionSpec(), expert=4,
    )  # fmt: skip
    assert found["expert"]["reduce-scatter"] == pytest.approx(3 / 4 * 8 * 4 * 4)
    assert found["expert"]["all-gather"] == pytest.approx(3 / 4 * 8 * 4 * 4)


LISTED = """\
HloModule m

%body.1 (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %g = bf16[4,8]{1,0} all-gather(%x), channel_id=1, replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}
}

%condition.1 (p: (s32[], f32[4,8])) -> pred[] {
  %limit = s32[] constant(7)
}

ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %w = (s32[], f32[4,8]) while(%t), condition=%condition.1, body=%body.1
  %r = (f32[2]{0}, f32[6]{0}) all-reduce(%a, %b), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%sum
}
"""


def test_both_spellings_of_groups_and_unannotated_loops_are_read():
    found = traffic_of(LISTED, {"data": 2, "tensor": 2, "context": 2})
    assert found == {"tensor": {"all-gather": 7 * 32.0}, "context": {"all-reduce": 32.0}}
