"""Rules on what a candidate did when it was run. Each takes the evidence and returns a Finding or None.

Evidence comes from sandbox.taskcheck.probe: facts by phase, gathered in processes of the task's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jaxagent.synthesis.reasons import FilterConfig, Finding, Reason
from sandbox.taskcheck.probe import Evidence

_SHAPE_WORDS = re.compile(
    r"shape|size of tensor|sizes? .*match|must match|mat1 and mat2|dimension|expected .*channels|expected input|"
    r"takes .* positional argument|missing .* positional argument|unexpected keyword argument|expected \d+D|"
    r"inner dims|size mismatch|input has \d+|expects? .*input|normalized_shape|same number of|not broadcastable",
    re.IGNORECASE,
)
_EAGER_PHASES = ("build", "examine", "time")


def hangs(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """Building, or running eagerly, comes to no end within the time limit, or waits instead of computing."""
    for phase in _EAGER_PHASES:
        if evidence.get(phase, {}).get("slept"):
            return Finding(Reason.HANGS, f"{phase}: calls time.sleep, which waits instead of computing")
        failure = _failure(evidence, phase)
        if failure is not None and failure["type"] == "Timeout":
            return Finding(Reason.HANGS, f"{phase}: {failure['message']}")
    return None


def prints_or_reads_files(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """Text on stdout or stderr, a file of its own, a process, a socket."""
    for phase in _EAGER_PHASES:
        facts = evidence.get(phase, {})
        if facts.get("touched"):
            return Finding(Reason.PRINTS_OR_READS_FILES, "; ".join(facts["touched"][:3]))
        if facts.get("printed"):
            return Finding(Reason.PRINTS_OR_READS_FILES, f"printed {facts['printed'][:80]!r}")
    return None


def input_shape_mismatch(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """forward cannot take what get_inputs returns, or get_inputs returns other shapes in every call."""
    if evidence.get("build", {}).get("inputs_fixed") is False:
        return Finding(Reason.INPUT_SHAPE_MISMATCH, "get_inputs() returns other shapes or types in every call")
    failure = _failure(evidence, "examine")
    if failure is None or failure["type"] not in ("RuntimeError", "TypeError", "ValueError", "IndexError"):
        return None
    is_about_shapes = _SHAPE_WORDS.search(failure["message"]) is not None
    return Finding(Reason.INPUT_SHAPE_MISMATCH, failure["message"][:300]) if is_about_shapes else None


def eager_fails(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """The task cannot be built or run: an exception, too much memory, a crash."""
    for phase in _EAGER_PHASES:
        failure = _failure(evidence, phase)
        if failure is not None:
            return Finding(Reason.EAGER_FAILS, f"{phase}: {failure['type']}: {failure['message'][:300]}")
    return None


def non_tensor_output(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """Something else than tensors that can be judged; tuples, lists and dicts of them are fine."""
    found = evidence["examine"]["foreign_output"]
    return None if found is None else Finding(Reason.NON_TENSOR_OUTPUT, f"forward returns {found}")


def mutates_inputs(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """Inputs, parameters or buffers are other ones after a forward pass."""
    facts = evidence["examine"]
    if facts["mutated_inputs"]:
        which = ", ".join(str(index) for index in facts["mutated_inputs"])
        return Finding(Reason.MUTATES_INPUTS, f"input tensor {which} is changed by forward")
    if facts.get("changed_state"):
        return Finding(Reason.MUTATES_INPUTS, f"forward changes {', '.join(facts['changed_state'][:3])}")
    return None


def stochastic(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """The same inputs give other outputs, or an operator that ran draws random numbers."""
    facts = evidence["examine"]
    if facts["random_operators"]:
        return Finding(Reason.STOCHASTIC, f"ran {', '.join(sorted(set(facts['random_operators'])))}")
    for when, deviation in facts.get("deviations", {}).items():
        if deviation > config.max_noise:
            return Finding(Reason.STOCHASTIC, f"{when}: the output is {deviation:.3g} tolerances away")
    return None


def constant_output(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """No output changes with the inputs: empty, constant, or saturated but for a few elements."""
    facts = evidence["examine"]
    if "signals" not in facts or not facts["inputs_vary"]:
        return None
    if all(not _num_elements(leaf) for leaf in facts["outputs"]):
        return Finding(Reason.CONSTANT_OUTPUT, "the output is empty")
    shares = [
        share for share, leaf in zip(facts["unchanged_shares"], facts["outputs"], strict=True) if _num_elements(leaf)
    ]
    if min(shares) == 1.0:
        return Finding(Reason.CONSTANT_OUTPUT, "the output is the same for three draws of inputs")
    floats = [leaf for leaf in facts["outputs"] if leaf["dtype"].startswith(("float", "bfloat", "complex"))]
    if floats and min(shares) > config.saturated_share:
        return Finding(Reason.CONSTANT_OUTPUT, f"saturated: {min(shares):.2%} of the output never changes")
    return None


def indistinguishable_output(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """Other inputs, or other weights, move the output by less than the judge would notice."""
    facts = evidence["examine"]
    if "signals" not in facts:
        return None
    if not facts["inputs_vary"]:
        return Finding(Reason.INDISTINGUISHABLE_OUTPUT, "get_inputs() returns the same values in every call")
    if max(facts["signals"]) < config.min_signal:
        return Finding(
            Reason.INDISTINGUISHABLE_OUTPUT,
            f"other inputs move the output by {max(facts['signals']):.3g} tolerances; {config.min_signal:g} are needed",
        )
    signal = facts["weights_signal"]
    if signal is not None and signal < config.min_signal:
        return Finding(Reason.INDISTINGUISHABLE_OUTPUT, f"other weights move the output by {signal:.3g} tolerances")
    return None


def too_many_ops(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """More operators ran than are composed, whatever the label says; a transformers module counts as one."""
    names = evidence["examine"]["operators"]
    if len(names) <= config.max_operators:
        return None
    return Finding(Reason.TOO_MANY_OPS, f"{len(names)} operators ran: {', '.join(names[:12])}")


def too_slow(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """The median eager time is above the limit."""
    median = _median_ms(evidence)
    return None if median <= config.max_ms else Finding(Reason.TOO_SLOW, _limits(median, evidence, config))


def too_fast(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """The median eager time is below the limit."""
    median = _median_ms(evidence)
    return None if median >= config.min_ms else Finding(Reason.TOO_FAST, _limits(median, evidence, config))


def compile_fails(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """torch.compile raises, comes to no end, or answers otherwise than eager."""
    for phase in ("build", "compile"):
        failure = _failure(evidence, phase)
        if failure is not None:
            return Finding(Reason.COMPILE_FAILS, f"{failure['type']}: {failure['message'][:300]}")
    deviation = evidence["compile"]["deviation"]
    if deviation > 100 * config.max_noise:
        return Finding(Reason.COMPILE_FAILS, f"its output is {deviation:.3g} tolerances away from eager's")
    return None


EAGER_RULES: tuple[Callable[[Evidence, FilterConfig], Finding | None], ...] = (
    hangs,
    prints_or_reads_files,
    input_shape_mismatch,
    eager_fails,
    non_tensor_output,
    mutates_inputs,
    stochastic,
    constant_output,
    indistinguishable_output,
    too_many_ops,
    too_slow,
    too_fast,
)


def eager_finding(evidence: Evidence, config: FilterConfig) -> Finding | None:
    """The first objection to how a task runs eagerly. Later rules need what earlier ones have ensured."""
    return next((found for rule in EAGER_RULES if (found := rule(evidence, config)) is not None), None)


def median_ms(evidence: Evidence) -> float | None:
    """Median eager time; None where none was taken."""
    return evidence.get("time", {}).get("median_ms")


def _median_ms(evidence: Evidence) -> float:
    """A pass that was too slow to be timed counts with its one measurement."""
    timed = median_ms(evidence)
    return timed if timed is not None else 1e3 * evidence["examine"]["forward_s"]


def _limits(median: float, evidence: Evidence, config: FilterConfig) -> str:
    timed = evidence.get("time", {})
    spread = f" (quartiles {timed['p25_ms']:.3g}–{timed['p75_ms']:.3g})" if "p25_ms" in timed else ""
    return f"torch eager takes {median:.3g} ms{spread}; allowed are {config.min_ms:g}–{config.max_ms:g} ms"


def _failure(evidence: Evidence, phase: str) -> dict[str, Any] | None:
    return evidence.get(phase, {}).get("failure")


def _num_elements(leaf: dict[str, Any]) -> int:
    count = 1
    for size in leaf["shape"]:
        count *= size
    return count
