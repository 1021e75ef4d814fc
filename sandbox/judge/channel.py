"""Length-limited JSON messages over a socket between the supervisor and its workers.

Nothing that a worker sends is unpickled or evaluated: a frame is four bytes of length and that many bytes of JSON,
and a frame longer than MAX_FRAME_BYTES ends the conversation. Bulk data travels in an Arena, never here.
"""

from __future__ import annotations

import array
import json
import select
import socket
import struct
import time
from typing import Any

MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")


class ChannelClosedError(RuntimeError):
    """The other side is gone."""


class ChannelTimeoutError(RuntimeError):
    """The other side did not answer in time."""


class ProtocolError(RuntimeError):
    """The other side sent something that is no message."""


class Channel:
    """One end of a conversation; `fds` are file descriptors passed along with a message.

    Only the workers' end takes descriptors. At the other end the kernel drops them: a worker that is not trusted could
    otherwise fill the supervisor's table of open files.
    """

    def __init__(self, sock: socket.socket, *, takes_fds: bool = True) -> None:
        self._sock = sock
        self._ancillary_bytes = socket.CMSG_SPACE(4 * 4) if takes_fds else 0
        self._received_fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Our end, and the other process's end as a socket to hand over."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours, takes_fds=False), theirs

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, message: dict[str, Any], *, fds: list[int] | None = None) -> None:
        """Raises ChannelClosedError if nobody listens, ProtocolError if the message is too long."""
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_FRAME_BYTES:
            raise ProtocolError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
        frame = _LENGTH.pack(len(body)) + body
        try:
            if fds:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                sent = self._sock.sendmsg([frame], ancillary)
                frame = frame[sent:]
            self._sock.sendall(frame)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError("the other side of the channel is gone") from error
        except TimeoutError as error:
            raise ChannelTimeoutError("the other side does not read its messages") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message. Raises ChannelTimeoutError, ChannelClosedError or ProtocolError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
        try:
            message = json.loads(self._read(length, deadline))
        except (ValueError, RecursionError) as error:
            raise ProtocolError("a frame is not JSON") from error
        if not isinstance(message, dict):
            raise ProtocolError(f"a frame holds a {type(message).__name__} where an object was expected")
        return message

    def has_message(self) -> bool:
        """Whether something has come, or the other side is gone."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def take_fds(self) -> list[int]:
        """Descriptors that came with the messages read so far; the caller owns them."""
        fds, self._received_fds = self._received_fds, []
        return fds

    def _read(self, num_bytes: int, deadline: float | None) -> bytes:
        chunks, missing = [], num_bytes
        while missing:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise ChannelTimeoutError("no answer within the time limit")
            self._sock.settimeout(remaining)
            try:
                chunk, ancillary, _, _ = self._sock.recvmsg(missing, self._ancillary_bytes)
            except TimeoutError as error:
                raise ChannelTimeoutError("no answer within the time limit") from error
            except ConnectionResetError as error:
                raise ChannelClosedError("the other side of the channel is gone") from error
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._received_fds.extend(array.array("i", data[: len(data) - len(data) % 4]))
            if not chunk:
                raise ChannelClosedError("the other side of the channel is gone")
            chunks.append(chunk)
            missing -= len(chunk)
        return b"".join(chunks)
