"""Connects to the host and serves it until it is gone; then nothing that was started here lives on."""

import os
import signal
import socket
import sys

from processes import HOST_ONLY_SIGNALS, LIBC, PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, kill_descendants
from server import Server


def main(address, workdir, scratch=None):
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # same user as the commands: they shall not trace or read this process
    if address.startswith("fd:"):
        connection = socket.socket(fileno=int(address[3:]))
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    os.set_inheritable(connection.fileno(), False)
    for number in HOST_ONLY_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        Server(connection, workdir).run()
    except (EOFError, ConnectionError):
        pass
    finally:
        kill_descendants()
        if scratch:  # ours to remove: the host may be gone
            os.execvp("rm", ["rm", "-rf", "--", scratch])


if __name__ == "__main__":
    main(*sys.argv[1:])
