"""Trajectory <-> bytes: exact to the bit, and small.

    payload = zlib( length of JSON, JSON, array bytes … )

Arrays leave the JSON as [dtype, shape] and follow it as raw bytes in the order they are met. A turn's prompt begins
with the previous turn's prompt and output, so only what was added is stored; where it does not, it is stored whole.
The bytes of wider items are stored plane by plane: the high bytes of token ids and versions are nearly all alike.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from typing import Any

import numpy as np

from rollout.types import SCHEMA_VERSION, StopReason, ToolCall, Trajectory, Turn, Usage
from sandbox.types import Judgement

_LENGTH = struct.Struct("<I")
_COMPRESSION = 1  # the float bytes do not compress: higher levels take half as long again for 3 % less


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """Raises TypeError when something in it is not JSON (details, tool arguments) or not a plain array."""
    arrays: list[np.ndarray] = []
    record = {
        "trajectory_id": trajectory.trajectory_id,
        "task_id": trajectory.task_id,
        "sample_index": trajectory.sample_index,
        "stage": trajectory.stage,
        "seed": trajectory.seed,
        "turns": _encode_turns(trajectory.turns, arrays),
        "judgement": trajectory.judgement.to_json(),
        "stop_reason": str(trajectory.stop_reason),
        "seconds": trajectory.seconds,
        "schema_version": trajectory.schema_version,
    }
    # ASCII with escapes: text from a shell may hold lone surrogates, which UTF-8 cannot.
    head = json.dumps(record, separators=(",", ":")).encode("ascii")
    return zlib.compress(b"".join((_LENGTH.pack(len(head)), head, *map(_planes, arrays))), _COMPRESSION)


def decode_trajectory(payload: bytes) -> Trajectory:
    """Raises ValueError for a trajectory of a newer schema."""
    data = zlib.decompress(payload)
    (length,) = _LENGTH.unpack_from(data)
    record = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    if record["schema_version"] > SCHEMA_VERSION:
        raise ValueError(
            f"trajectory {record['trajectory_id']!r} has schema_version {record['schema_version']}, this "
            f"program reads up to {SCHEMA_VERSION}: use the version that wrote the run, or a newer one"
        )
    turns = _decode_turns(record["turns"], _ArrayReader(data, _LENGTH.size + length))
    return Trajectory(
        **record
        | {
            "turns": turns,
            "judgement": Judgement.from_json(record["judgement"]),
            "stop_reason": StopReason(record["stop_reason"]),
        }
    )


def _encode_turns(turns: list[Turn], arrays: list[np.ndarray]) -> list[dict[str, Any]]:
    def put(array: np.ndarray) -> list[Any]:
        if array.dtype.hasobject:
            raise TypeError(f"an array of {array.dtype} cannot be stored; numbers are expected")
        arrays.append(array)
        return [array.dtype.str, array.shape]

    encoded: list[dict[str, Any]] = []
    context: np.ndarray | None = None
    for turn in turns:
        prompt = turn.prompt_token_ids
        extends = (
            context is not None
            and prompt.ndim == 1
            and prompt.dtype == context.dtype
            and len(prompt) >= len(context)
            and np.array_equal(prompt[: len(context)], context)
        )
        encoded.append(
            {
                "extends": extends,
                "prompt": put(prompt[len(context) :] if extends and context is not None else prompt),
                "token_ids": put(turn.token_ids),
                "logprobs": put(turn.logprobs),
                "policy_versions": put(turn.policy_versions),
                "routing": None if turn.routing is None else put(turn.routing),
                "text": turn.text,
                "tool_calls": [dataclasses.asdict(call) for call in turn.tool_calls],
                "observations": turn.observations,
                "judgement": None if turn.judgement is None else turn.judgement.to_json(),
                "truncated": turn.truncated,
                "usage": None if turn.usage is None else dataclasses.asdict(turn.usage),
            }
        )
        context = _context(turn)
    return encoded


def _decode_turns(records: list[dict[str, Any]], arrays: _ArrayReader) -> list[Turn]:
    names = ("prompt", "token_ids", "logprobs", "policy_versions", "routing")  # in the order they were put
    taken = [{name: arrays.take(record[name]) for name in names if record[name] is not None} for record in records]
    prompts = _whole_prompts([(r["extends"], t["prompt"], t["token_ids"]) for r, t in zip(records, taken, strict=True)])
    turns: list[Turn] = []
    for record, own, prompt in zip(records, taken, prompts, strict=True):
        judgement = record["judgement"]
        turns.append(
            Turn(
                prompt_token_ids=prompt,
                token_ids=own["token_ids"],
                logprobs=own["logprobs"],
                policy_versions=own["policy_versions"],
                routing=own.get("routing"),
                text=record["text"],
                tool_calls=[ToolCall(**call) for call in record["tool_calls"]],
                observations=record["observations"],
                judgement=None if judgement is None else Judgement.from_json(judgement),
                truncated=record["truncated"],
                usage=Usage(**record["usage"]) if record.get("usage") else None,  # older records have none
            )
        )
    return turns


def _whole_prompts(parts: list[tuple[bool, np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """The prompt of every turn from (extends the turn before, what was added, output).

    Prompts that extend one another are read-only views of one buffer: a dialogue takes its length, not its square.
    """
    prompts: list[np.ndarray] = []
    start = 0
    while start < len(parts):
        end = start + 1
        while end < len(parts) and parts[end][0]:
            end += 1
        if end - start == 1:
            prompts.append(parts[start][1])
        else:
            pieces = [array for _, added, output in parts[start:end] for array in (added, output)][:-1]
            buffer = np.concatenate(pieces)
            buffer.flags.writeable = False
            prompts += [buffer[:length] for length in np.cumsum([len(piece) for piece in pieces])[::2]]
        start = end
    return prompts


def _context(turn: Turn) -> np.ndarray | None:
    """What the next prompt should begin with; None where the arrays are not comparable token lists."""
    prompt, output = turn.prompt_token_ids, turn.token_ids
    if prompt.ndim != 1 or output.ndim != 1 or prompt.dtype != output.dtype:
        return None
    return np.concatenate((prompt, output))


def _planes(array: np.ndarray) -> bytes:
    items = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, max(array.dtype.itemsize, 1))
    return items.T.tobytes()


class _ArrayReader:
    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset

    def take(self, description: list[Any]) -> np.ndarray:
        dtype, shape = np.dtype(description[0]), tuple(description[1])
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        planes = np.frombuffer(self._data, np.uint8, size, self._offset).reshape(dtype.itemsize, -1)
        self._offset += size
        return np.ascontiguousarray(planes.T).reshape(-1).view(dtype).reshape(shape)
