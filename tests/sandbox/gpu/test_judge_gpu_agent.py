"""The same kernels as PyTorch extensions, judged on a GPU: skill cuda_agent."""

from __future__ import annotations

import agent_cases
import gpu_cases as cases
import pytest

from sandbox import guard
from sandbox.skill import load_skill
from sandbox.types import Outcome

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_right_extension_is_correct(judge, case):
    judgement = judge(case.task, agent_cases.agent_candidate(case), skill="cuda_agent")
    assert judgement.outcome is Outcome.CORRECT, judgement.message


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_wrong_extension_is_wrong(judge, case):
    judgement = judge(case.task, agent_cases.agent_candidate(case, wrong=True), skill="cuda_agent")
    assert judgement.outcome is Outcome.WRONG and judgement.reward == -1, judgement.message


def test_the_rules_for_sources_and_symbols_let_it_pass(compiler):
    skill, candidate = load_skill("cuda_agent"), agent_cases.agent_candidate(cases.CHAIN)
    assert guard.check_source(skill, candidate) is None
    artifact = compiler.compile("cuda_agent", candidate).artifact
    assert artifact is not None and guard.check_symbols(skill, artifact) is None


def test_torch_in_the_extensions_place_is_refused(judge):
    lazy = agent_cases.agent_candidate(cases.CHAIN, forward="return torch.relu(x * self.scale) * 0.5 + x * x")
    judgement = judge(cases.CHAIN.task, lazy, skill="cuda_agent")
    assert judgement.outcome is Outcome.REFUSED and "aten.relu" in judgement.message, judgement.message
