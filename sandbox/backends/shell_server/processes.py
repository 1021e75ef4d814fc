"""The processes of a sandbox: who descends from whom, and how they are all killed although they go on forking."""

import contextlib
import ctypes
import os
import signal
import time

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
HOST_ONLY_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a command may signal everything; only EOF ends us
LIBC = ctypes.CDLL(None)


def processes():
    """{pid: (parent, session, start in clock ticks since boot)} of every process in sight."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it ended while we looked
                continue
            table[int(entry)] = int(fields[1]), int(fields[3]), int(fields[19])
    return table


def descendants(root, since_ticks=0):
    """Pids below `root`, or orphaned in its session, that started at or after `since_ticks`."""
    children, found = {}, set()
    for pid, (parent, session, started) in processes().items():
        if started >= since_ticks and pid != root:
            children.setdefault(parent, []).append(pid)
            if session == root:
                found.add(pid)
    queue = [root, *found]
    while queue:
        below = children.pop(queue.pop(), [])
        found.update(below)
        queue += below
    return found


def kill(pid, number):
    # gone already, or a set-uid program on a machine without isolation
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_tree(root, since_ticks):
    """Kills `root` and its descendants of the command; those of earlier commands (background processes) live on.

    They are stopped first, over and over until no new ones appear: a stopped process cannot fork.
    """
    kill(root, signal.SIGSTOP)
    stopped = set()
    for _ in range(50):
        new = descendants(root, since_ticks) - stopped
        if not new:
            break
        for pid in new:
            kill(pid, signal.SIGSTOP)
        stopped.update(new)
    else:
        kill_descendants()  # a fork bomb that outruns us
    for pid in [root, *stopped]:
        kill(pid, signal.SIGKILL)


def kill_descendants():
    """Kills everything that was ever started here; orphans are ours, because we are process 1 or a subreaper."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # one system call: no fork escapes it
        return
    for _ in range(50):
        pids = descendants(os.getpid())
        if not pids:
            return
        for pid in pids:
            kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)
