"""Messages of judgements."""

from __future__ import annotations

from sandbox.judge.result import MAX_MESSAGE, judgement, plain_text
from sandbox.types import Outcome


def test_a_message_can_be_written_down_and_ends() -> None:
    assert plain_text("größer als 2 µs …") == "größer als 2 µs …"
    assert plain_text("half \ud800 of one") == "half ? of one"
    assert len(plain_text("x" * 10**6)) == MAX_MESSAGE
    verdict = judgement(Outcome.WRONG, -1.0, "\udfff" * 10**5, {}, {}, 0.0)
    assert verdict.message.encode() and len(verdict.message) == MAX_MESSAGE
