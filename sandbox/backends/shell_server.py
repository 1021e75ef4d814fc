"""The far end of a sandbox: owns the bash sessions, and as process 1 of a container everything they leave behind.

Run as `python3 -I -S -B shell_server.py ADDRESS WORKDIR [SCRATCH]`, where ADDRESS is the path of a unix socket or
`fd:N`, and SCRATCH a directory to remove at the end. It uses the standard library only (Python >= 3.8), because it
also runs in images that hold nothing of this project.

Frames in both directions: 4 bytes of length (big endian), then that many bytes of JSON.

    {"op": "exec", "id": 1, "session": "main", "command": "ls", "timeout_s": 60, "max_output_bytes": 30000}
    {"op": "cancel", "session": "main"} kill its running command, whose reply nobody waits for
    {"op": "hold", "on": true}          time limits stand still while on: the command waits for something of ours
    {"op": "kill", "note": "..."}       kill every process; a running command ends with that note

A reply carries the id with exit_code, output, truncated and seconds. A frame with "op": "tick" goes out
at the start, and every second while a command runs, so that a dead far end can be told from a slow command.

How a command's end is known: bash reads `command NUL mark NUL` from a pipe of its own, and only after the command has
run does it read the mark and write it, with the exit status, to a control pipe. Neither pipe is open in the command's
children, the mark is random and not yet read while the command runs, and output travels on a third pipe. So no
output, whatever it imitates, ends a command, and a background process that keeps the output pipe open delays nothing.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time

TICK_S = 0.1
FROZEN_S = 1.0  # no wake-up for this long while a command runs: the whole sandbox was stopped by a quiet lease
FINAL_DRAIN_BYTES = 1 << 20  # a background process may write for ever; what a command itself wrote fits in the pipe
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
HOST_ONLY_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a command may signal everything; only EOF ends us
LIBC = ctypes.CDLL(None)

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


class Output:
    """Keeps the first and the last half of the limit, counts the rest."""

    def __init__(self, limit):
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.head_limit = limit // 2
        self.tail_limit = limit - self.head_limit

    def add(self, chunk):
        self.total += len(chunk)
        room = self.head_limit - len(self.head)
        self.head += chunk[:room] if room > 0 else b""
        self.tail += chunk[room:] if room > 0 else chunk
        if len(self.tail) > 4 * self.tail_limit:
            del self.tail[: -self.tail_limit]

    def text(self):
        """(text, truncated); bytes that are no UTF-8 become U+FFFD, and no character is cut in two."""
        left_out = self.total - len(self.head) - min(len(self.tail), self.tail_limit)
        if left_out <= 0:
            return bytes(self.head + self.tail).decode("utf-8", "replace"), False
        head, tail = bytes(self.head), bytes(self.tail[-self.tail_limit :])
        while tail and tail[0] & 0xC0 == 0x80 and left_out < self.total:
            tail, left_out = tail[1:], left_out + 1
        for back in range(1, min(4, len(head)) + 1):
            if head[-back] >= 0xC0:  # a lead byte: is its character complete?
                needed = 2 if head[-back] < 0xE0 else 3 if head[-back] < 0xF0 else 4
                if needed > back:
                    head, left_out = head[:-back], left_out + back
                break
            if head[-back] < 0x80:
                break
        mark = f"\n[... {left_out} bytes of output left out ...]\n"
        return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace"), True


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


class Server:
    def __init__(self, connection, workdir):
        self.connection, self.workdir = connection, workdir
        self.selector = selectors.DefaultSelector()
        self.sessions = {}
        self.directories = {}  # where the next shell of a session starts, after a time-out
        self.inbox = b""
        self.holds = 0
        self.last_tick = 0.0
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        self.selector.register(connection, selectors.EVENT_READ, self.receive)

    def run(self):
        self.send({"op": "tick"})  # whoever started this knows now that it runs
        before = time.monotonic()
        while True:
            busy = any(session.job for session in self.sessions.values())
            for key, _ in self.selector.select(TICK_S if busy else None):
                if self.selector.get_map().get(key.fileobj) is key:  # not closed by an earlier one of this round
                    key.data()
            self.reap()
            now = time.monotonic()
            if busy:
                self.advance(now - before if now - before < FROZEN_S else TICK_S)
                if now - self.last_tick >= 1.0:
                    self.send({"op": "tick"})
                    self.last_tick = now
            before = now

    # the host's side

    def receive(self):
        chunk = self.connection.recv(1 << 16)
        if not chunk:
            raise EOFError  # the host is gone or has closed the sandbox
        self.inbox += chunk
        while len(self.inbox) >= 4:
            length = int.from_bytes(self.inbox[:4], "big")
            if len(self.inbox) < 4 + length:
                return
            request, self.inbox = json.loads(self.inbox[4 : 4 + length]), self.inbox[4 + length :]
            self.handle(request)

    def handle(self, request):
        if request["op"] == "hold":
            self.holds += 1 if request["on"] else -1
        elif request["op"] == "kill":
            self.kill_everything(request["note"])
        elif request["op"] == "cancel":
            session = self.sessions.get(request["session"])
            if session is not None and session.job:
                self.end_job(request["session"], session, "")
        elif request["op"] == "exec":
            self.begin(request)

    def send(self, frame):
        body = json.dumps(frame).encode()
        self.connection.sendall(len(body).to_bytes(4, "big") + body)

    # sessions

    def begin(self, request):
        name, job = request["session"], Job(request)
        if name not in self.sessions:
            try:
                session = self.sessions[name] = Session([self.directories.pop(name, self.workdir), self.workdir])
            except OSError as error:  # the agent's processes have used up the limit: its own doing, so a result
                kill_descendants()
                note = f"[no shell could be started ({error.strerror}); every process was killed: try again]"
                self.send({"id": job.id, "exit_code": 126, "output": note, "truncated": False, "seconds": 0.0})
                return
            self.selector.register(session.output_pipe, selectors.EVENT_READ, lambda: self.on_output(session))
            self.selector.register(session.control, selectors.EVENT_READ, lambda: self.on_control(name, session))
        session = self.sessions[name]
        session.begin(job)
        self.selector.register(session.commands, selectors.EVENT_WRITE, lambda: self.on_writable(session))

    def on_writable(self, session):
        job = session.job
        try:
            job.pending = job.pending[os.write(session.commands, job.pending) :]
        except BrokenPipeError:  # the shell has gone; reap() ends the job
            job.pending = b""
        if not job.pending:
            self.selector.unregister(session.commands)

    def on_output(self, session):
        if not session.drain():
            self.selector.unregister(session.output_pipe)

    def on_control(self, name, session):
        chunk = os.read(session.control, 4096)
        if not chunk:  # exec replaced the shell, or it ended: its exit status follows
            self.selector.unregister(session.control)
            return
        *messages, session.control_bytes = (session.control_bytes + chunk)[-8192:].split(b"\0")
        for message in messages:
            mark, _, status = message.partition(b" ")
            if session.job and mark == session.job.mark.encode():
                self.finish(name, session, int(status))

    def finish(self, name, session, exit_code, note=""):
        session.drain(FINAL_DRAIN_BYTES)
        job, session.job = session.job, None
        if job.pending:
            self.selector.unregister(session.commands)
        output, truncated = job.output.text()
        if note:
            output += ("" if not output or output.endswith("\n") else "\n") + note
        reply = {"exit_code": exit_code, "output": output, "truncated": truncated, "seconds": job.seconds}
        self.send({"id": job.id, **reply})

    def discard(self, name, session):
        del self.sessions[name]
        for fd in (session.output_pipe, session.control, session.commands):
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        session.close()

    # time and death

    def advance(self, elapsed_s):
        for name, session in list(self.sessions.items()):
            if session.job is None:
                continue
            session.job.seconds += elapsed_s
            if not self.holds:
                session.job.remaining_s -= elapsed_s
            if session.job.remaining_s <= 0:
                limit = f"timed out after {session.job.timeout_s:g} s"
                self.end_job(name, session, f"[{limit} and was killed; a new shell starts here, without its variables]")

    def end_job(self, name, session, note):
        """Kills a command and its shell; the next one starts in the same directory."""
        with contextlib.suppress(OSError):  # it may just have ended
            self.directories[name] = os.readlink(f"/proc/{session.pid}/cwd")
        kill_tree(session.pid, since_ticks=session.job.started_ticks)
        self.finish(name, session, None, note)
        self.discard(name, session)

    def kill_everything(self, note):
        kill_descendants()
        for name, session in list(self.sessions.items()):
            if session.job:
                self.finish(name, session, 137, note)
            self.discard(name, session)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name, session in list(self.sessions.items()):
                if session.pid == pid:
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                    if session.job:
                        self.finish(name, session, code, "[the shell ended; the next command starts a new one]")
                    self.discard(name, session)


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
