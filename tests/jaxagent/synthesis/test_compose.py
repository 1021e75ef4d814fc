"""The rule-based composer, its rules against torch itself, and what is mined from the installed packages."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from jaxagent.synthesis.catalogue import FAMILIES, RULES
from jaxagent.synthesis.catalogue.mine import mine
from jaxagent.synthesis.catalogue.rule import Flow
from jaxagent.synthesis.compose import ComposeConfig, ComposeError, Composer
from jaxagent.synthesis.write_task import write_task
from sandbox.tasks import check_task

_FLOWS = (
    Flow("rows", (4, 64)),
    Flow("sequence", (2, 32, 64)),
    Flow("signal", (2, 16, 40)),
    Flow("image", (2, 16, 12, 12)),
    Flow("volume", (2, 8, 8, 8, 8)),
    Flow("other", (4, 6)),
)


def _run(code: str) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """On CPU, here: the text comes from our own rules."""
    names: dict = {}
    exec(compile(code, "model.py", "exec"), names)
    torch.manual_seed(0)
    with torch.no_grad():
        return names["Model"](*names["get_init_inputs"]()).eval()(*names["get_inputs"]())


@pytest.mark.parametrize("name", RULES)
def test_a_rule_foretells_the_shape_that_torch_gives(name: str):
    rule, tried = RULES[name], 0
    for flow in _FLOWS:
        for seed in range(4):
            step = rule.step(np.random.default_rng(seed), flow)
            if step is None:
                assert flow.layout not in rule.layouts or len(rule.layouts) > 0
                continue
            assert flow.layout in rule.layouts
            tried += 1
            output = _run(write_task([step], f"torch.randn({', '.join(map(str, flow.shape))})"))
            tensor = output if isinstance(output, torch.Tensor) else output[0]
            assert tuple(tensor.shape) == step.after.shape, (flow, step)
            if isinstance(output, tuple) or not tensor.is_floating_point():
                assert step.ends
    assert tried > 0


def test_candidates_are_tasks_of_the_asked_lengths_with_fitting_shapes():
    composer = Composer(ComposeConfig(target_ms=(0.02, 0.1), transformers_share=0.0), seed=3)
    lengths: Counter[int] = Counter()
    for index in range(60):
        composed = composer.candidate(index)
        lengths[len(composed.ops)] += 1
        assert composed.data_source == f"torch#{len(composed.ops)}"
        assert check_task(composed.code) is None
        output = _run(composed.code)
        assert all(tensor.numel() for tensor in (output if isinstance(output, tuple) else (output,)))
    assert set(lengths) == {1, 2, 3, 4, 5}


def test_a_candidate_depends_on_seed_and_index_alone():
    first, second = Composer(ComposeConfig(), 7), Composer(ComposeConfig(), 7)
    backwards = [second.candidate(index) for index in reversed(range(12))][::-1]
    assert [first.candidate(index).code for index in range(12)] == [composed.code for composed in backwards]
    assert Composer(ComposeConfig(), 8).candidate(3).code != first.candidate(3).code


def test_weights_choose_lengths_and_families():
    only = {family: 0.0 for family in FAMILIES} | {"activation": 1.0}
    composer = Composer(ComposeConfig(curriculum={2: 1.0}, families=only, transformers_share=0.0), seed=0)
    for index in range(10):
        assert composer.candidate(index).families == ["activation", "activation"]
    with pytest.raises(ComposeError, match="unknown activations; known are activation"):
        Composer(ComposeConfig(families={"activations": 1.0}), 0)
    with pytest.raises(ComposeError, match="within 1 to 5"):
        Composer(ComposeConfig(curriculum={6: 1.0}), 0)


def test_two_hundred_candidates_use_more_than_sixty_operators():
    composer = Composer(ComposeConfig(transformers_share=0.0), seed=0)
    composed = [composer.candidate(index) for index in range(200)]
    assert len({op for task in composed for op in task.ops}) > 60
    assert all(2.0 <= task.estimate_ms <= 50.0 for task in composed if not math.isnan(task.estimate_ms))


def test_the_catalogue_lists_every_rule_and_what_has_none():
    catalogue = mine()
    by_name = {entry.name: entry for entry in catalogue.entries}
    assert set(RULES) <= set(by_name)
    assert all(by_name[name].status == "rule" and by_name[name].family == RULES[name].family for name in RULES)
    assert catalogue.versions["torch"].startswith(torch.__version__.split("+")[0])
    assert by_name["torch.nn.Dropout"].status == "left out" and by_name["torch.nn.Dropout"].why
    assert by_name["torch.nn.CTCLoss"].status == "unknown"
    assert "in_features" in (by_name["torch.nn.Linear"].signature or "")
    blocks = [entry for entry in catalogue.entries if entry.kind == "block"]
    assert any(entry.name.endswith(".LlamaMLP") and entry.status == "rule" for entry in blocks)
    assert all(entry.why for entry in blocks if entry.status == "unknown")
