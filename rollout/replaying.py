"""A stored trajectory once more: its replies are played, its tool calls run anew, and what came back is compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rollout.types import Completion, ContextFullError, Dialogue, Reply, Trajectory, Turn
from sandbox.types import Judgement

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class RecordedPolicy:
    """Policy that gives a trajectory's replies again, token by token as they are stored."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory

    def open(
        self, *, system: str, user: str, session_id: str, seed: int, max_context: int, max_reply: int,
        temperature: float,
    ) -> Dialogue:  # fmt: skip
        return RecordedDialogue(self._trajectory.turns)


class RecordedDialogue:
    """The replies of `turns` in their order, whatever is observed; after the last one the context counts as full."""

    def __init__(self, turns: list[Turn]) -> None:
        self._left = list(turns)

    async def generate(self) -> Reply:
        if not self._left:
            raise ContextFullError("the recorded trajectory ends here")
        turn = self._left.pop(0)
        completion = Completion(
            token_ids=turn.token_ids,
            logprobs=turn.logprobs,
            policy_versions=turn.policy_versions,
            finish_reason="length" if turn.truncated else "stop",
        )
        return Reply(text=turn.text, prompt_token_ids=turn.prompt_token_ids, completion=completion)

    def observe(self, observations: list[str]) -> None:
        """What a replayed tool said changes nothing: the next reply is on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where a replay went another way. `turn` None: the judgement of the final files."""

    turn: int | None
    what: str
    """`end`, `outcome`, `reward`, `calls`, or the name of the tool whose observation differs."""
    stored: str
    replayed: str
    numbers_only: bool = False
    """The texts are the same but for their numbers: times, addresses, process ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a replay showed."""

    trajectory_id: str
    turns: int
    calls: int
    stored: Judgement
    replayed: Judgement
    differences: list[Difference] = field(default_factory=list)

    @property
    def same_outcome(self) -> bool:
        return self.stored.outcome == self.replayed.outcome


def compare(stored: Trajectory, replayed: Trajectory) -> Comparison:
    """Goes through both turn by turn. Both are of the same replies, so calls differ only where tools have changed."""
    differences: list[Difference] = []
    for number, (old, new) in enumerate(zip(stored.turns, replayed.turns, strict=False)):
        differences += _turn_differences(number, old, new)
    if len(replayed.turns) != len(stored.turns):
        ends = (f"{len(t.turns)} turns, {t.stop_reason}" for t in (stored, replayed))
        differences.append(Difference(turn=len(replayed.turns), what="end", stored=next(ends), replayed=next(ends)))
    differences += _judgement_differences(None, stored.judgement, replayed.judgement)
    return Comparison(
        trajectory_id=stored.trajectory_id,
        turns=len(stored.turns),
        calls=sum(len(turn.tool_calls) for turn in stored.turns),
        stored=stored.judgement,
        replayed=replayed.judgement,
        differences=differences,
    )


def _turn_differences(number: int, old: Turn, new: Turn) -> list[Difference]:
    old_calls, new_calls = (
        [f"{call.name} {call.arguments}" + (f" [{call.error}]" if call.error else "") for call in turn.tool_calls]
        for turn in (old, new)
    )
    found: list[Difference] = []
    if old_calls != new_calls:
        found.append(_text_difference(number, "calls", "\n".join(old_calls), "\n".join(new_calls)))
    names = [call.name or "call" for call in new.tool_calls] + ["reply"]  # the note of a cut reply comes last
    for name, before, after in zip(names, old.observations, new.observations, strict=False):
        if before != after:
            found.append(_text_difference(number, name, before, after))
    if (old.judgement is None) != (new.judgement is None):
        verdicts = [str(turn.judgement.outcome) if turn.judgement else "none" for turn in (old, new)]
        found.append(Difference(turn=number, what="outcome", stored=verdicts[0], replayed=verdicts[1]))
    elif old.judgement is not None and new.judgement is not None:
        found += _judgement_differences(number, old.judgement, new.judgement)
    return found


def _judgement_differences(turn: int | None, old: Judgement, new: Judgement) -> list[Difference]:
    if old.outcome != new.outcome:
        texts = (f"{judgement.outcome}: {judgement.message}" for judgement in (old, new))
        return [Difference(turn=turn, what="outcome", stored=next(texts), replayed=next(texts))]
    if old.reward != new.reward:
        return [Difference(turn=turn, what="reward", stored=_times(old), replayed=_times(new), numbers_only=True)]
    return []


def _text_difference(turn: int, what: str, old: str, new: str) -> Difference:
    same_words = _NUMBER.sub("#", old) == _NUMBER.sub("#", new)
    return Difference(turn=turn, what=what, stored=old, replayed=new, numbers_only=same_words)


def _times(judgement: Judgement) -> str:
    times = (judgement.candidate_ms, judgement.eager_ms, judgement.compile_ms)
    shown = ", ".join("-" if ms is None else f"{ms:.3g}" for ms in times)
    return f"{judgement.reward} (candidate, eager, compile in ms: {shown})"
