"""A signal closes what was begun, says how to go on, and gives the exit code that shells expect."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, signal, sys
from jaxagent.cli import main
import jaxagent.cli as cli
from jaxagent.commands.stopping import stop_in_order

async def body():
    try:
        with stop_in_order(lambda: "continue with: this"):
            print("ready", flush=True)
            await asyncio.sleep(60)
    finally:
        await asyncio.sleep(CLOSING_S)
        print("closed", flush=True)

def run(arguments):
    asyncio.run(body())

class Parser:
    def parse_args(self, own):
        import argparse
        return argparse.Namespace(run=run, command="train")

cli.build_parser = Parser
sys.exit(main(["train"]))
"""


def start(closing_s: float) -> subprocess.Popen[str]:
    program = PROGRAM.replace("CLOSING_S", str(closing_s))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_in_order(number: signal.Signals):
    process = start(closing_s=0.0)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == "closed\n" and err == f"stopped by {number.name}; continue with: this\n"
    assert process.returncode == 128 + number


def test_a_second_signal_does_not_wait():
    process = start(closing_s=60.0)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None and process.stderr.readline().startswith("stopped by SIGTERM")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert out == "" and process.returncode == -signal.SIGTERM
