"""What says that weights are to be had, and how: version, places, sizes and checksums, never the weights themselves.

A package crosses processes. An engine's worker fetches the bytes, sums up what it got, and refuses bytes that are not
the announced ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

REJECTED = "weights rejected before loading"
"""Begins the message of every refusal by a worker after which the old weights are whole and the engine may go on."""
CUDA_IPC, BROADCAST = "cuda_ipc", "broadcast"
"""Kinds of a packed package's source."""
BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}
"""The dtypes that weights are packed in."""


class WeightsError(RuntimeError):
    """Weights could not be written, or are not the ones that were announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A few tokens with the learner's logprobs of them under a version: what an engine with its weights has to find."""

    token_ids: list[int]
    logprobs: list[float]
    """Of token_ids[1:], each after those before it, at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFile:
    """One safetensors file; `sha256` is of all of its bytes, header included."""

    path: str
    sha256: str
    num_bytes: int
    changed: bool = True
    """False: its weights are the same in every version of the package's base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPackage:
    """Every parameter of one version of the policy, under Hugging Face names."""

    version: int
    files: list[WeightsFile]
    base: str = ""
    """Names what all versions of it have in common; an engine that has it loads the changed files alone."""
    probe: Probe | None = None

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def checksum(self) -> str:
        """One digest of the whole package, for logs and for comparing engines with each other."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes, from the files' headers; raises as read_layout."""
        return read_layout(file.path for file in self.files)

    def update_info(self) -> dict[str, Any]:
        """Plain values for vLLM's worker (rollout.weight_transfer.UpdateInfo)."""
        files = [asdict(file) for file in self.files]
        return {"version": self.version, "base": self.base, "files": files}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensor:
    """One tensor under its Hugging Face name; `offset` in bytes from the beginning of its part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * BYTES_PER_ELEMENT[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPart:
    """A stretch of the buffer with the checksum of its bytes."""

    offset: int
    num_bytes: int
    checksum: str
    tensors: list[PackedTensor]

    @classmethod
    def of(cls, plain: dict[str, Any]) -> PackedPart:
        """From what update_info made of it."""
        tensors = [PackedTensor(**tensor) for tensor in plain["tensors"]]
        offset, num_bytes, checksum = plain["offset"], plain["num_bytes"], plain["checksum"]
        return cls(offset=offset, num_bytes=num_bytes, checksum=checksum, tensors=tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPackage:
    """Every parameter of one version. Of several parts, all but the first are the same in every version of `base`."""

    version: int
    parts: list[PackedPart]
    source: dict[str, Any]
    """How a worker comes by the bytes: see rollout.cuda_ipc and rollout.broadcast."""
    base: str = ""
    probe: Probe | None = None

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    @property
    def checksum(self) -> str:
        return "-".join(part.checksum for part in self.parts)

    def layout(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tuple(tensor.shape) for part in self.parts for tensor in part.tensors}

    def update_info(self) -> dict[str, Any]:
        """Plain values for vLLM's worker (rollout.weight_transfer.UpdateInfo)."""
        parts = [asdict(part) for part in self.parts]
        return {"version": self.version, "base": self.base, "parts": parts, "source": self.source}


Package = WeightsPackage | PackedPackage


def needs_sending(package: Package) -> TypeGuard[PackedPackage]:
    """Whether the learner has to send (PackedWriter.send) while an engine publishes the package."""
    return isinstance(package, PackedPackage) and package.source["kind"] == BROADCAST


def addressed_to(package: PackedPackage, *, engine: int, start: int, size: int = 2) -> PackedPackage:
    """The package for one exchange with one engine: its number, and how often it was started; `size`: of the group."""
    group = f"engine{engine}-{start}"
    join = package.source["address"] | {"name": group, "size": size}
    return replace(package, source=package.source | {"group": group, "exchange": uuid.uuid4().hex, "join": join})


def check_layout(package: Package, layout: dict[str, tuple[int, ...]], *, model: str | Path) -> None:
    """Raises WeightsError where a package's names and shapes are not those of `layout`, the layout of `model`."""
    offered = package.layout()
    missing, unknown = layout.keys() - offered.keys(), offered.keys() - layout.keys()
    reshaped = {name for name in layout.keys() & offered.keys() if layout[name] != offered[name]}
    if missing or unknown or reshaped:
        raise WeightsError(
            f"version {package.version} is not of the model in {model}: "
            f"missing {sorted(missing)[:3]}, unknown {sorted(unknown)[:3]}, other shape {sorted(reshaped)[:3]} "
            f"({len(missing)}, {len(unknown)} and {len(reshaped)} in all)"
        )


def read_layout(paths: Iterable[str | Path]) -> dict[str, tuple[int, ...]]:
    """Names and shapes in safetensors files, read from their headers alone.

    Raises WeightsError where a file is missing, is no safetensors file, or a name stands in two of them.
    """
    layout: dict[str, tuple[int, ...]] = {}
    for path in paths:
        try:
            with open(path, "rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        except OSError as error:
            raise WeightsError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, MemoryError, OverflowError) as error:
            raise WeightsError(f"{path} is not a safetensors file: its header cannot be read ({error})") from error
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if name in layout:
                raise WeightsError(f"{path}: {name!r} stands in an earlier file as well")
            layout[name] = tuple(entry["shape"])
    return layout
