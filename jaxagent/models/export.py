"""Writes a decoder as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxagent.files.new_folder import new_folder
from jaxagent.models.config import DecoderConfig
from jaxagent.models.decoder import Decoder
from jaxagent.models.families import to_hf
from jaxagent.models.params import INDEX_FILE, SINGLE_FILE, named_weights

_DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NOT_COPIED = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.gguf", "*.msgpack", "*.h5")


def export_hf(
    decoder: Decoder,
    config: DecoderConfig,
    out: str | Path,
    *,
    source: str | Path | None = None,
    max_file_bytes: int = 5_000_000_000,
) -> Path:
    """Write config.json and *.safetensors to the new or empty folder `out`, all of it or nothing.

    With `source`, the folder that the decoder was loaded from: every tensor in the dtype it has there, so that an
    untrained decoder comes back bit for bit, and source's other files (config.json, tokenizer, generation settings)
    are copied. Without, the dtype is config.stored_dtype. Raises FileExistsError where `out` holds files.
    """
    with new_folder(out) as partial:
        if source is not None:
            _copy_other_files(Path(source), partial)
        if source is None:
            (partial / "config.json").write_text(json.dumps(to_hf(config), indent=2) + "\n")
        dtypes = {} if source is None else _stored_dtypes(Path(source))
        _write_weights(_cast(named_weights(decoder), dtypes, config.stored_dtype), partial, max_file_bytes)
    return Path(out)


def _cast(
    weights: Iterator[tuple[str, np.ndarray]], dtypes: dict[str, str], otherwise: str
) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in weights:
        yield name, value.astype(_DTYPES[dtypes.get(name, otherwise)], copy=False)


def _write_weights(weights: Iterator[tuple[str, np.ndarray]], folder: Path, max_file_bytes: int) -> None:
    """Files of at most max_file_bytes (or one tensor); host memory holds one file's tensors at a time."""
    written: list[tuple[Path, list[str]]] = []
    total_bytes = 0

    def flush(tensors: dict[str, np.ndarray]) -> None:
        path = folder / f"part-{len(written)}.safetensors"
        save_file(tensors, path, metadata={"format": "pt"})
        written.append((path, list(tensors)))

    pending: dict[str, np.ndarray] = {}
    pending_bytes = 0
    for name, value in weights:
        if pending and pending_bytes + value.nbytes > max_file_bytes:
            flush(pending)
            pending, pending_bytes = {}, 0
        pending[name] = value
        pending_bytes += value.nbytes
        total_bytes += value.nbytes
    flush(pending)
    if len(written) == 1:
        written[0][0].rename(folder / SINGLE_FILE)
        return
    weight_map = {}
    for number, (path, names) in enumerate(written, start=1):
        file = f"model-{number:05d}-of-{len(written):05d}.safetensors"
        path.rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def _stored_dtypes(source: Path) -> dict[str, str]:
    """Each tensor's dtype in source, from the files' headers."""
    dtypes: dict[str, str] = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                dtypes[name] = _SAFETENSORS_DTYPES[opened.get_slice(name).get_dtype()]
    return dtypes


def _copy_other_files(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_COPIED, ".*"))
