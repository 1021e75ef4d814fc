"""Operators of torch that tasks are composed of: shape rules by family, and what is installed beside them."""

from __future__ import annotations

from jaxagent.synthesis.catalogue import ends, mixing, normalise, pointwise, spatial
from jaxagent.synthesis.catalogue.rule import Rule

RULES: dict[str, Rule] = {
    rule.name: rule
    for rules in (pointwise.RULES, normalise.RULES, mixing.RULES, spatial.RULES, ends.RULES)
    for rule in rules
}
"""By full name, e.g. `torch.nn.Linear`."""

FAMILIES = tuple(dict.fromkeys(rule.family for rule in RULES.values()))
