"""What the learner's pure functions exchange beside batches. Axes: M microbatches, B rows, T positions of a row."""

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int

from jaxagent.batches.batch import AnyArray


class Targets(NamedTuple):
    """What the losses compare the networks with. Fixed at the start of an update. None where a loss needs none."""

    advantages: Float[AnyArray, "*rows T"] | None = None
    returns: Float[AnyArray, "*rows T"] | None = None
    old_values: Float[AnyArray, "*rows T"] | None = None
    old_logprobs: Float[AnyArray, "*rows T"] | None = None
    """None: the update has one optimizer step, so the current logprobs are the old ones."""
    ref_logprobs: Float[AnyArray, "*rows T"] | None = None


class TrainState(NamedTuple):
    """One network and its optimizer."""

    params: Any
    opt_state: Any
    num_steps: Int[AnyArray, ""]
    """Steps since the stage began, skipped ones included: the learning rate's warm-up counts them."""
    num_skipped: Int[AnyArray, ""]
    """Steps dropped because a loss or gradient was not finite."""
    master: Any = None
    """float32 parameters that the optimizer updates, where `params` are of a shorter type; else None."""


class StepOutput(NamedTuple):
    """What one optimizer step reports."""

    loss: Float[AnyArray, ""]
    grad_norm: Float[AnyArray, ""]
    """Global norm before clipping."""
    learning_rate: Float[AnyArray, ""]
    finite: Bool[AnyArray, ""]
    """False: the step was skipped."""
    per_token: dict[str, Float[AnyArray, "M B T"]]
    """Values that the loss saw, for metrics."""
