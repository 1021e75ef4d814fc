"""A session: one bash, the command it runs, and the pipes by which the end of a command is known."""

import contextlib
import os
import signal
import time

from output import Output
from processes import HOST_ONLY_SIGNALS, LIBC, PR_SET_DUMPABLE

# fd 3: commands and marks, fd 4: control, fd 5: output. bash keeps its saved copies of 3-5 close-on-exec.
SHELL_LOOP = r"""
__jx_status_is() { builtin return "$1"; }
__jx_status=0
while IFS= builtin read -r -d '' -u 3 __jx_command; do
  __jx_status_is "$__jx_status"
  builtin eval "$__jx_command" </dev/null >&5 2>&1 3<&- 4>&- 5>&-
  __jx_status=$?
  IFS= builtin read -r -d '' -u 3 __jx_mark
  builtin printf '%s %d\0' "$__jx_mark" "$__jx_status" >&4
done
"""


class Session:
    """One bash: its pipes, and the command it runs."""

    def __init__(self, directories):
        commands_read, self.commands = os.pipe()
        self.control, control_write = os.pipe()
        self.output_pipe, output_write = os.pipe()
        theirs = [commands_read, control_write, output_write]
        try:
            self.pid = os.fork()
        except OSError:
            for fd in [*theirs, self.commands, self.control, self.output_pipe]:
                os.close(fd)
            raise
        if self.pid == 0:
            start_bash(theirs, directories)
        for fd in theirs:
            os.close(fd)
        for fd in (self.commands, self.control, self.output_pipe):
            os.set_blocking(fd, False)
        self.job = None
        self.background = Output(4096)  # what background processes write between commands
        self.control_bytes = b""

    def begin(self, job):
        self.job = job
        text, _ = self.background.text()
        job.output.add(text.encode())
        self.background = Output(4096)

    def drain(self, limit=1 << 16):
        """Reads what the output pipe holds, at most `limit` bytes; False at its end."""
        while limit > 0:
            try:
                chunk = os.read(self.output_pipe, min(limit, 1 << 16))
            except BlockingIOError:
                return True
            if not chunk:
                return False
            limit -= len(chunk)
            (self.job.output if self.job else self.background).add(chunk)
        return True

    def close(self):
        for fd in (self.commands, self.control, self.output_pipe):
            os.close(fd)


class Job:
    """One running command."""

    def __init__(self, request):
        self.id = request["id"]
        self.mark = os.urandom(16).hex()
        self.pending = request["command"].encode("utf-8", "surrogateescape") + b"\0" + self.mark.encode() + b"\0"
        self.remaining_s = self.timeout_s = float(request["timeout_s"])
        self.output = Output(int(request["max_output_bytes"]))
        self.seconds = 0.0
        self.started_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def start_bash(fds, directories):
    """In the forked child: own session, pipes at 3, 4, 5, the first directory that is there. Never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, *HOST_ONLY_SIGNALS):
            signal.signal(number, signal.SIG_DFL)  # ignored signals would stay ignored in every command
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        null = os.open("/dev/null", os.O_RDWR)
        high = [os.dup2(fd, 100 + i) for i, fd in enumerate(fds)]  # first out of the way of 3, 4, 5
        for target, fd in enumerate([null, null, null, *high]):
            os.dup2(fd, target, inheritable=True)
        os.closerange(6, 1024)
        # When memory is short, the kernel shall take the commands and not process 1; not allowed everywhere.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        for directory in directories:
            try:
                os.chdir(directory)
                break
            except OSError:
                continue
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-c", SHELL_LOOP])
    finally:
        os._exit(127)
