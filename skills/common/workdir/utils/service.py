"""Asks the judge outside this workdir. One JSON line goes out, one comes back; nothing is measured in here."""

import json
import os
import socket
import sys

WORKDIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOCKET = os.path.join(".service", "sock")  # relative: the path of a unix socket may have 107 bytes at most
TIMEOUT_S = 1800.0
EXIT_OK, EXIT_NOT_OK, EXIT_NO_SERVICE = 0, 1, 3


def ask(command):
    """Sends {"command": command} and returns the answer, a dict with at least `ok` and `text`."""
    os.chdir(WORKDIR)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(SOCKET)
        connection.sendall(json.dumps({"command": command}).encode() + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the judge closed the connection before it answered")
    answer = json.loads(line)
    if not isinstance(answer, dict) or "ok" not in answer or "text" not in answer:
        raise ValueError("the judge's answer has no fields ok and text")
    return answer


def main(command):
    """Prints the judge's text; the exit status is 0 for ok, 1 for not ok, 3 where there was no answer."""
    try:
        answer = ask(command)
    except (OSError, ValueError) as error:
        print("%s: no answer from the judge (%s); this says nothing about your kernel, try again" % (command, error),
              file=sys.stderr)
        return EXIT_NO_SERVICE
    print(answer["text"])
    return EXIT_OK if answer["ok"] else EXIT_NOT_OK
