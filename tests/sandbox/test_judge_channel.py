"""Messages and shared memory between the supervisor and its workers."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest

from sandbox.judge.arena import Arena, MemoryAccessError, read_memory, span_bytes, write_memory
from sandbox.judge.channel import (
    MAX_FRAME_BYTES,
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    ProtocolError,
)


@pytest.fixture
def ends():
    ours, theirs = Channel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_and_descriptors_arrive_in_order(ends):
    ours, theirs = ends
    arena = Arena.create(8192)
    ours.send({"op": "one", "values": [1, None, "zwei"]})
    ours.send({"op": "two"}, fds=[arena.fd])
    other = Channel(theirs)
    assert other.receive(1) == {"op": "one", "values": [1, None, "zwei"]}
    assert other.receive(1) == {"op": "two"}
    (fd,) = other.take_fds()
    mirror = Arena(fd, 8192)
    arena.memory[100:104] = b"seen"
    assert mirror.memory[100:104] == b"seen"
    mirror.close()
    arena.close()


def test_the_supervisors_end_takes_no_descriptors(ends):
    ours, theirs = ends
    before = len(os.listdir("/proc/self/fd"))
    Channel(theirs).send({"reply": 1}, fds=[0, 1, 2])
    assert ours.receive(1) == {"reply": 1} and ours.take_fds() == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_long_message_survives_small_reads(ends):
    ours, theirs = ends
    text = "x" * (MAX_FRAME_BYTES - 100)
    sender = threading.Thread(target=ours.send, args=({"text": text},))
    sender.start()
    assert Channel(theirs).receive(10)["text"] == text
    sender.join()


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<I", MAX_FRAME_BYTES + 1),
        struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 100_000) + b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_a_protocol_error(ends, frame):
    ours, theirs = ends
    theirs.sendall(frame)
    with pytest.raises(ProtocolError):
        ours.receive(1)


def test_silence_is_a_timeout_and_hanging_up_is_closed(ends):
    ours, theirs = ends
    with pytest.raises(ChannelTimeoutError):
        ours.receive(0.05)
    theirs.sendall(b"\x10\x00")
    with pytest.raises(ChannelTimeoutError):
        ours.receive(0.05)
    theirs.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ChannelClosedError):
        ours.receive(1)
    with pytest.raises(ChannelClosedError):
        ours.send({})


def test_a_message_over_the_limit_is_not_sent(ends):
    with pytest.raises(ProtocolError, match="over the limit"):
        ends[0].send({"text": "x" * MAX_FRAME_BYTES})


def test_shared_memory_cannot_be_shrunk_under_the_other_side():
    arena = Arena.create(8192)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 16384)
    arena.close()


def test_memory_of_a_process_is_read_and_written_or_refused():
    own = bytearray(b"abcdef")
    import ctypes

    address = ctypes.addressof((ctypes.c_char * 6).from_buffer(own))
    copy = bytearray(6)
    read_memory(os.getpid(), address + 1, copy, 2, 4)
    assert copy == b"\0\0bcde"
    write_memory(os.getpid(), address, bytearray(b"XY"))
    assert own == b"XYcdef"
    with pytest.raises(MemoryAccessError, match="Bad address"):
        read_memory(os.getpid(), 8, copy, 0, 4)
    with pytest.raises(MemoryAccessError, match="do not fit"):
        read_memory(os.getpid(), address, copy, 4, 4)


@pytest.mark.parametrize(
    ("shape", "stride", "span"),
    [
        ([2, 3], [3, 1], 24),
        ([3, 2], [1, 3], 24),
        ([2, 3], [10, 1], 52),
        ([5], [0], 4),
        ([0, 3], [3, 1], 0),
        ([], [], 4),
    ],
)
def test_the_span_of_a_strided_tensor(shape, stride, span):
    assert span_bytes({"shape": shape, "stride": stride}, 4) == span
