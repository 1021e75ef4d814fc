"""Takes the host's requests, runs them in sessions, and keeps their time."""

import contextlib
import json
import os
import selectors
import signal
import time

from processes import kill_descendants, kill_tree
from session import Job, Session

TICK_S = 0.1
FROZEN_S = 1.0  # no wake-up for this long while a command runs: the whole sandbox was stopped by a quiet lease
FINAL_DRAIN_BYTES = 1 << 20  # a background process may write for ever; what a command itself wrote fits in the pipe


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
