"""Many are inside the gate together, or one alone, whoever comes when."""

from __future__ import annotations

import random
import threading
import time

from sandbox.judge.gate import Gate


def started(target) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_who_waits_to_be_alone_waits_for_those_inside_and_goes_before_those_who_come_later():
    gate, order = Gate(), []

    def alone() -> None:
        with gate.alone():
            order.append("alone")

    def later() -> None:
        with gate.shared():
            order.append("later")

    with gate.shared():
        waiting = started(alone)
        while not gate.is_wanted:
            time.sleep(0.001)
        comes_later = started(later)
        time.sleep(0.05)
        assert order == [] and not gate.is_taken
    waiting.join(5)
    comes_later.join(5)
    assert order == ["alone", "later"]


def test_leaving_for_a_while_lets_whoever_waits_be_alone():
    gate, seen = Gate(), []

    def alone() -> None:
        with gate.alone():
            time.sleep(0.05)
            seen.append("done")

    with gate.shared():
        waiting = started(alone)
        while not gate.is_wanted:
            time.sleep(0.001)
        with gate.left():
            pass
        assert seen == ["done"] and not gate.is_wanted and not gate.is_taken
    waiting.join(5)


def test_a_failure_inside_leaves_the_gate_open():
    gate = Gate()
    for way in (gate.shared, gate.alone):
        try:
            with way():
                raise KeyError
        except KeyError:
            pass
    with gate.alone():
        assert gate.is_taken


def test_nobody_is_ever_beside_one_that_is_alone():
    gate, inside, alone, wrong, met = Gate(), set(), set(), [], set()

    def check(me: int) -> None:
        met.add(len(inside))
        if alone and (inside - alone or len(alone) > 1):
            wrong.append((set(inside), set(alone)))

    def life(me: int) -> None:
        chance = random.Random(me)
        for _ in range(60):
            with gate.shared():
                inside.add(me)
                check(me)
                time.sleep(chance.random() / 1000)
                if gate.is_wanted:
                    inside.discard(me)
                    with gate.left():
                        pass
                    inside.add(me)
                check(me)
                inside.discard(me)
            if chance.random() < 0.3:
                with gate.alone():
                    inside.add(me)
                    alone.add(me)
                    check(me)
                    time.sleep(0.0005)
                    check(me)
                    alone.discard(me)
                    inside.discard(me)

    threads = [started(lambda me=me: life(me)) for me in range(5)]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong and max(met) > 1
