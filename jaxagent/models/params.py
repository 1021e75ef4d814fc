"""Weights between Hugging Face folders and decoders: read tensor by tensor, sharded on arrival, written back alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open

from jaxagent.mesh.host import to_host
from jaxagent.models.config import DEFAULT_COMPUTE, ComputeConfig, DecoderConfig
from jaxagent.models.decoder import Backbone, Decoder, abstract_decoder, new_decoder
from jaxagent.models.families import FAMILIES, from_hf
from jaxagent.models.lora import merged_kernels
from jaxagent.models.stored import Rule, WeightsError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_FETCHED_WHOLE_BYTES = 1 << 30


def load_decoder(
    source: str | Path | DecoderConfig,
    *,
    dtype: Any = jnp.float32,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    seed: int = 0,
    mesh: jax.sharding.Mesh | None = None,
) -> Decoder:
    """A decoder from a Hugging Face folder, or with random weights from a DecoderConfig and a seed.

    `dtype` is that of the parameters. Every stored tensor is read once, and only where a device of this process needs
    a part of it; with a mesh it is cut up as it arrives. Host memory holds one tensor, and this process's shards of
    one stacked parameter. Raises FileNotFoundError, UnsupportedModelError or WeightsError.
    """
    if isinstance(source, DecoderConfig):
        decoder = new_decoder(source, compute, seed=seed, param_dtype=dtype)
        return decoder if mesh is None else _placed(decoder, mesh)
    folder = Path(source)
    decoder = abstract_decoder(load_config(folder), compute, param_dtype=dtype)
    shardings = _shardings(decoder, mesh)
    tensors = _TensorFiles(folder)
    for rule, parameter in stored_parameters(decoder):
        parameter.set_value(_read_parameter(tensors, rule, parameter.get_value(), shardings[rule.path]))
    return decoder


def load_config(folder: str | Path) -> DecoderConfig:
    """The architecture that a folder's config.json describes."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: a model folder holds config.json and *.safetensors. "
            "Fetch one with `jaxagent model fetch NAME --out DIR`, or correct model.path."
        )
    return from_hf(json.loads(path.read_text()))


Names = Callable[[str], bool]
"""Of stored names in which {} stands for a layer (and an expert): those that are wanted."""


def named_weights(decoder: Decoder, wanted: Names = lambda _: True) -> Iterator[tuple[str, np.ndarray]]:
    """Every weight under its Hugging Face name, in Hugging Face layout and the parameters' dtype, adapters merged.

    Contiguous host arrays; host memory holds one parameter of at most 1 GiB, or one layer of a larger one. Tied heads
    have no tensor.
    """
    for rule, name, value in _stored_values(decoder, wanted, lambda value: np.asarray(to_host(value))):
        yield name, rule.to_hf(value)


def device_weights(decoder: Decoder, device: Any, wanted: Names = lambda _: True) -> Iterator[tuple[str, jax.Array]]:
    """The same as arrays on one device; what a mesh holds in parts is put together there, a layer at a time."""

    def gathered(value: jax.Array) -> jax.Array:
        return jax.device_put(value if value.is_fully_addressable else to_host(value), device)

    for rule, name, value in _stored_values(decoder, wanted, gathered, fetched_whole_bytes=0):
        yield name, rule.arranged(value)


def _stored_values(
    decoder: Decoder, wanted: Names, fetch: Callable[[Any], Any], *, fetched_whole_bytes: int = _FETCHED_WHOLE_BYTES
) -> Iterator[tuple[Rule, str, Any]]:
    """(rule, name, what `fetch` made of the parameter) for every stored tensor."""
    merged = merged_kernels(decoder)
    for rule, parameter in stored_parameters(decoder):
        if not wanted(rule.hf_name):
            continue
        value = parameter.get_value()
        if rule.num_stacked == 0:
            yield rule, rule.hf_name, fetch(value)
            continue
        if value.nbytes <= fetched_whole_bytes and rule.path not in merged:
            value = fetch(value)
        for layer in range(decoder.config.num_layers):
            of_layer = merged[rule.path](layer) if rule.path in merged else value[layer]
            fetched = fetch(of_layer)[None]
            for place in rule.places(fetched.shape):
                yield rule, rule.hf_name.format(layer, *place[1:]), fetched[place]


def stored_parameters(decoder: Backbone) -> Iterator[tuple[Rule, nnx.Param]]:
    """The parameters that a model folder stores, with their rules; an adapter's belong to its own folder.

    A parameter that its family has no rule for is a bug of ours, and raises.
    """
    rules = {rule.path: rule for rule in FAMILIES[decoder.config.family].rules}
    for path, parameter in nnx.to_flat_state(nnx.state(decoder, nnx.Param)):
        key = tuple(str(part) for part in path)
        if "adapter" in key:
            continue
        if key not in rules:
            raise NotImplementedError(f"parameter {'.'.join(key)} has no rule in the family {decoder.config.family}")
        yield rules[key], parameter


class _TensorFiles:
    """The tensors of a folder's safetensors files, each read when asked for; a file at a time is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = self._list_tensors()
        self._open_name, self._open = "", None

    def read(self, name: str) -> np.ndarray:
        if name not in self._file_of:
            raise WeightsError(f"{self._folder}: the weights lack {name}, which config.json asks for; "
                               "fetch or export the model again")  # fmt: skip
        file = self._file_of[name]
        if file != self._open_name:
            # NumPy reads bfloat16 through ml_dtypes; nothing but the asked tensor is read from the file.
            self._open_name, self._open = file, safe_open(self._folder / file, framework="numpy")
        assert self._open is not None
        return self._open.get_tensor(name)

    def _list_tensors(self) -> dict[str, str]:
        index = self._folder / INDEX_FILE
        if index.is_file():
            file_of = json.loads(index.read_text())["weight_map"]
            missing = sorted({file for file in file_of.values() if not (self._folder / file).is_file()})
            if missing:
                raise WeightsError(f"{self._folder}: {INDEX_FILE} names files that don't exist: {', '.join(missing)}; "
                                   "fetch the model again")  # fmt: skip
            return file_of
        files = sorted(self._folder.glob("*.safetensors"))
        if not files:
            raise WeightsError(f"{self._folder} holds no *.safetensors file; other formats are not read: convert the "
                               "model with transformers' save_pretrained")  # fmt: skip
        file_of = {}
        for file in files:
            with safe_open(file, framework="numpy") as opened:
                file_of |= {name: file.name for name in opened.keys()}  # noqa: SIM118 (not a dict)
        return file_of


def _read_parameter(
    tensors: _TensorFiles, rule: Rule, like: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding
) -> jax.Array:
    """The parameter, each shard filled from the stored tensors that it holds a part of."""
    parts = sharding.addressable_devices_indices_map(like.shape)
    bounds_of = {device: _bounds(part, like.shape) for device, part in parts.items() if part is not None}
    shards = {bounds: np.empty([stop - start for start, stop in bounds], like.dtype) for bounds in bounds_of.values()}
    split = rule.num_stacked
    for place in rule.places(like.shape):
        wanting = [
            bounds for bounds in shards if all(a <= at < b for at, (a, b) in zip(place, bounds[:split], strict=True))
        ]
        if not wanting:
            continue
        tensor = _read_tensor(tensors, rule, rule.hf_name.format(*place), like.shape[split:])
        for bounds in wanting:
            inner = tuple(at - start for at, (start, _) in zip(place, bounds[:split], strict=True))
            shards[bounds][inner] = tensor[tuple(slice(*pair) for pair in bounds[split:])]
    placed = [jax.device_put(shards[bounds], device) for device, bounds in bounds_of.items()]
    return jax.make_array_from_single_device_arrays(like.shape, sharding, placed)


def _bounds(part: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(start, stop) along each axis, for a shard's index has open ends where it isn't split."""
    return tuple(axis.indices(length)[:2] for axis, length in zip(part, shape, strict=True))


def _read_tensor(tensors: _TensorFiles, rule: Rule, name: str, shape: tuple[int, ...]) -> np.ndarray:
    stored = tensors.read(name)
    try:
        return rule.from_hf(stored, shape)
    except WeightsError as error:
        raise WeightsError(f"{name}: {error}") from None


def _shardings(decoder: Decoder, mesh: jax.sharding.Mesh | None) -> dict[tuple[str, ...], jax.sharding.Sharding]:
    if mesh is None:
        whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return {rule.path: whole for rule, _ in stored_parameters(decoder)}
    from jaxagent.mesh.sharding import param_shardings

    shardings = param_shardings(nnx.state(decoder, nnx.Param), mesh)
    return {tuple(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(shardings)}


def _placed(decoder: Decoder, mesh: jax.sharding.Mesh) -> Decoder:
    shardings = _shardings(decoder, mesh)
    for rule, parameter in stored_parameters(decoder):
        parameter.set_value(jax.device_put(parameter.get_value(), shardings[rule.path]))
    return decoder
