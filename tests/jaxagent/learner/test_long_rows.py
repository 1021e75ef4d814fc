"""Memory of the updates on one long row under a large vocabulary, as the compiler lays it out: nothing is computed."""

import functools

import pytest

from jaxagent.config.learner import LearnerConfig
from jaxagent.mesh.sharding import make_mesh
from jaxagent.models.config import DecoderConfig
from jaxagent.plan.lowering import AbstractLearner

VOCAB = 151_936
SHAPE = DecoderConfig(
    family="llama",
    vocab_size=VOCAB,
    hidden_size=128,
    intermediate_size=384,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=64,
    tie_embeddings=True,
)
LENGTHS = (8192, 32_768, 131_072)


@functools.cache
def step_bytes(tokens):
    """{step: bytes beside its arguments}."""
    config = LearnerConfig(row_tokens=tokens, rows_per_microbatch=1)
    learner = AbstractLearner(SHAPE, config, make_mesh(config.mesh, rows_per_microbatch=1), num_microbatches=1)
    found = {}
    for name, lowered in learner.lowered():
        memory = lowered.compile().memory_analysis()
        found[name] = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return found


@pytest.mark.parametrize("name", ["actor", "critic", "targets"])
def test_a_row_of_131072_tokens_takes_a_few_gibibytes(name):
    assert step_bytes(131_072)[name] < 6 * 2**30, "both networks and their optimizers take another half"
    assert step_bytes(131_072)[name] < 131_072 * VOCAB * 4 / 10, "logits of all tokens would be 74 GiB"


@pytest.mark.parametrize("name", ["actor", "critic", "targets"])
def test_memory_grows_with_the_length_and_not_with_its_square(name):
    """The peak is the largest of several phases, each of them linear. A mask of one layer alone would be 128 KiB a token."""
    _, middle, long = (step_bytes(tokens)[name] for tokens in LENGTHS)
    assert (long - middle) / (LENGTHS[2] - LENGTHS[1]) < 32 * 2**10


def test_logits_of_a_chunk_are_all_that_depends_on_the_vocabulary():
    """Those of 1,024 tokens are 0.6 GiB, and at most 2 GiB of them are alive."""
    assert step_bytes(8192)["actor"] - step_bytes(8192)["critic"] < 2.2 * 2**30
