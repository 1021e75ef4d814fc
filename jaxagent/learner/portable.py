"""A checkpoint small enough to be carried by hand: at most four files of at most 16 MiB.

That is room for adapters of actor and critic, their optimizers and the value head (attention-only adapters of rank 8 on
a 0.5B model take two files), not for a whole model: the base is the folder that the run's config names, and resuming on
another one is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load, save

from jaxagent.files.new_folder import new_folder
from jaxagent.learner.checkpoint import FORMAT, CheckpointError, by_path, check_format, check_shapes
from jaxagent.mesh.host import to_host

MAX_FILES, MAX_FILE_BYTES = 4, 16 << 20
RECORD_FILE = "record.json"
_HEADER_BYTES = 256 << 10
"""Kept free in each file for names and offsets of its tensors."""
_FILE_BYTES = MAX_FILE_BYTES - _HEADER_BYTES


class PortableCheckpoint:
    """One checkpoint in one folder, with the methods of Checkpoints: Learner.save and Learner.restore take either.

    record.json holds the JSON record and the checksums of the other files, which hold the arrays end to end.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def save(self, arrays: Any, record: dict[str, Any]) -> int:
        """Writes the new or empty folder, all of it or nothing; returns 0, the number of its only checkpoint.

        Raises FileExistsError, and CheckpointError where the arrays are too large.
        """
        named = {name: np.asarray(array) for name, array in by_path(to_host(arrays)).items()}
        _check_size(named)
        with new_folder(self._folder) as folder:
            digests = {}
            for number, pieces in enumerate(_files(named)):
                data, name = save(pieces), f"arrays-{number}.safetensors"
                assert len(data) <= MAX_FILE_BYTES
                (folder / name).write_bytes(data)
                digests[name] = hashlib.sha256(data).hexdigest()
            about = {"format": FORMAT, "sha256": digests, "record": record}
            text = json.dumps(about, indent=1)
            if len(text) > MAX_FILE_BYTES:
                raise CheckpointError(
                    f"the record takes {len(text):,} bytes as JSON and {MAX_FILE_BYTES:,} are allowed"
                )
            (folder / RECORD_FILE).write_text(text)
        return 0

    def record(self, number: int | None = None) -> dict[str, Any]:
        """The JSON record. Raises CheckpointError where there is none, or one of another format."""
        del number
        return self._about()["record"]

    def arrays(self, like: Any, number: int | None = None) -> Any:
        """The arrays, each of the shape and dtype, and on the devices, of its counterpart in `like`.

        Raises CheckpointError where a file is missing or changed, or the checkpoint is of another model.
        """
        del number
        saved = self._saved()
        wanted = by_path(like)
        check_shapes(str(self._folder), {name: shape for name, (shape, _) in saved.items()}, wanted)
        leaves = [_placed_like(want, *saved[name]) for name, want in wanted.items()]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def raw_arrays(self) -> dict[str, np.ndarray]:
        """Every array by the path it was saved under. Raises CheckpointError where a file is missing or changed."""
        return {name: values.reshape(shape) for name, (shape, values) in self._saved().items()}

    def _saved(self) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:
        """name -> (shape, values)."""
        pieces: dict[str, np.ndarray] = {}
        for name, digest in self._about()["sha256"].items():
            pieces |= load(self._read(name, digest))
        return _joined(pieces)

    def _about(self) -> dict[str, Any]:
        path = self._folder / RECORD_FILE
        if not path.is_file():
            raise CheckpointError(f"{self._folder} holds no portable checkpoint: {RECORD_FILE} is missing; copy all "
                                  "of its files, or name another folder")  # fmt: skip
        about = json.loads(path.read_text())
        check_format(about, str(self._folder))
        return about

    def _read(self, name: str, digest: str) -> bytes:
        path = self._folder / name
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != digest:
            state = "is not the file that was saved" if data else "is missing"
            raise CheckpointError(f"{path} {state}; copy it again from where the checkpoint was written")
        return data


def _check_size(named: dict[str, np.ndarray]) -> None:
    needed, room = sum(array.nbytes for array in named.values()), (MAX_FILES - 1) * _FILE_BYTES
    if needed > room:
        largest = sorted(named, key=lambda name: -named[name].nbytes)[:2]
        raise CheckpointError(
            f"a portable checkpoint has room for {room / 2**20:.0f} MiB and this learner's state takes "
            f"{needed / 2**20:.0f} MiB (largest: {', '.join(largest)}); set learner.lora, or lower its rank or targets"
        )


def _files(named: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The arrays flat and end to end, cut where a file is full. A piece is called SHAPE@START@NAME."""
    pieces: dict[str, np.ndarray] = {}
    free = _FILE_BYTES
    for name, array in named.items():
        flat, start, shape = array.reshape(-1), 0, "x".join(map(str, array.shape))
        while start < flat.size:
            piece = flat[start : start + free // array.itemsize]
            if piece.size:
                pieces[f"{shape}@{start}@{name}"] = piece
                start, free = start + piece.size, free - piece.nbytes
            if start < flat.size:
                yield pieces
                pieces, free = {}, _FILE_BYTES
    yield pieces


def _placed_like(want: Any, shape: tuple[int, ...], values: np.ndarray) -> Any:
    array = values.reshape(shape).astype(want.dtype, copy=False)
    return jax.device_put(array, want.sharding) if isinstance(want, jax.Array) else array


def _joined(pieces: dict[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:
    """name -> (shape, values)."""
    parts: dict[str, tuple[tuple[int, ...], dict[int, np.ndarray]]] = {}
    for key, piece in pieces.items():
        shape, start, name = key.split("@", 2)
        parts.setdefault(name, (tuple(map(int, filter(None, shape.split("x")))), {}))[1][int(start)] = piece
    return {name: (shape, np.concatenate([at[start] for start in sorted(at)])) for name, (shape, at) in parts.items()}
