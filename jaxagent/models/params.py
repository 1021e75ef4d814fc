"""Weights between Hugging Face folders and decoders: which stored tensor is which parameter, and in what layout.

A stored matrix is [outputs, inputs]; ours is [*inputs, *outputs] with heads as an axis of their own, and the matrices
of all layers lie in one parameter with a leading layer axis.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open

from jaxagent.models.config import DEFAULT_COMPUTE, ComputeConfig, DecoderConfig
from jaxagent.models.decoder import Decoder, abstract_decoder, new_decoder

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


class WeightsError(ValueError):
    """A model folder's weights are missing, incomplete, or don't fit its config.json."""


def load_decoder(
    source: str | Path | DecoderConfig,
    *,
    dtype: Any = jnp.float32,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    seed: int = 0,
    mesh: jax.sharding.Mesh | None = None,
) -> Decoder:
    """A decoder from a Hugging Face folder, or with random weights from a DecoderConfig and a seed.

    `dtype` is that of the parameters. Weights are read tensor by tensor and one stacked parameter is finished at a
    time, so host memory holds at most one parameter beside the result. With a mesh, each parameter is placed on it as
    soon as it is complete. Raises FileNotFoundError, UnsupportedModelError or WeightsError.
    """
    if isinstance(source, DecoderConfig):
        decoder = new_decoder(source, compute, seed=seed, param_dtype=dtype)
        return decoder if mesh is None else _placed(decoder, mesh)
    folder = Path(source)
    decoder = abstract_decoder(load_config(folder), compute, param_dtype=dtype)
    shardings = _shardings(decoder, mesh)
    tensors = _TensorFiles(folder)
    for rule, parameter in _parameters(decoder):
        value = _read_parameter(tensors, rule, parameter)
        parameter.set_value(jax.device_put(value, shardings.get(rule.path)))
    return decoder


def load_config(folder: str | Path) -> DecoderConfig:
    """The architecture that a folder's config.json describes."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: a model folder holds config.json and *.safetensors. "
            "Fetch one with `jaxagent model fetch NAME --out DIR`, or correct model.path."
        )
    return DecoderConfig.from_hf(json.loads(path.read_text()))


def named_weights(decoder: Decoder) -> Iterator[tuple[str, np.ndarray]]:
    """Every weight under its Hugging Face name, in Hugging Face layout and the parameters' dtype.

    Contiguous host arrays; one stacked parameter is fetched from the devices at a time. Tied heads have no tensor.
    """
    for rule, parameter in _parameters(decoder):
        value = np.asarray(jax.device_get(parameter.get_value()))
        if not rule.per_layer:
            yield rule.hf_name, rule.to_hf(value)
            continue
        for layer in range(value.shape[0]):
            yield rule.hf_name.format(layer), rule.to_hf(value[layer])


@dataclass(frozen=True)
class Rule:
    """One parameter of ours and its stored tensor, or one tensor per layer (hf_name then has a {})."""

    path: tuple[str, ...]
    hf_name: str
    num_inputs: int = 0
    """Leading axes that a matrix sums over; 0 for vectors and tables, which are stored in our order."""

    @property
    def per_layer(self) -> bool:
        return self.path[0] == "layers"

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        """One layer's parameter -> the stored layout."""
        if self.num_inputs == 0:
            flat = value.reshape(-1) if self.path[-1] == "bias" else value
        else:
            num_in = int(np.prod(value.shape[: self.num_inputs]))
            flat = value.reshape(num_in, -1).T
        return np.ascontiguousarray(flat)

    def from_hf(self, stored: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The stored tensor -> one layer's parameter. Raises WeightsError where the sizes don't fit."""
        expected = self.to_hf(np.empty(shape, np.bool_)).shape
        if stored.shape != expected:
            raise WeightsError(f"shape {stored.shape} where config.json asks for {expected}")
        return (stored.T if self.num_inputs else stored).reshape(shape)


_ATTENTION = "model.layers.{}.self_attn."
_MLP = "model.layers.{}.mlp."
RULES = (
    Rule(("embedding",), "model.embed_tokens.weight"),
    Rule(("lm_head",), "lm_head.weight"),
    Rule(("norm", "scale"), "model.norm.weight"),
    Rule(("layers", "attention_norm", "scale"), "model.layers.{}.input_layernorm.weight"),
    Rule(("layers", "mlp_norm", "scale"), "model.layers.{}.post_attention_layernorm.weight"),
    *(Rule(("layers", "attention", name, "kernel"), f"{_ATTENTION}{name}_proj.weight", 1) for name in "qkv"),
    Rule(("layers", "attention", "o", "kernel"), f"{_ATTENTION}o_proj.weight", 2),
    *(Rule(("layers", "attention", name, "bias"), f"{_ATTENTION}{name}_proj.bias") for name in "qkvo"),
    *(Rule(("layers", "attention", f"{name}_norm", "scale"), f"{_ATTENTION}{name}_norm.weight") for name in "qk"),
    *(Rule(("layers", "mlp", name, "kernel"), f"{_MLP}{name}_proj.weight", 1) for name in ("gate", "up", "down")),
    *(Rule(("layers", "mlp", name, "bias"), f"{_MLP}{name}_proj.bias") for name in ("gate", "up", "down")),
)


def _parameters(decoder: Decoder) -> Iterator[tuple[Rule, nnx.Param]]:
    """The decoder's parameters with their rules. A parameter without a rule is a bug of ours, and raises."""
    rules = {rule.path: rule for rule in RULES}
    for path, parameter in nnx.to_flat_state(nnx.state(decoder, nnx.Param)):
        key = tuple(str(part) for part in path)
        if key not in rules:
            raise NotImplementedError(f"parameter {'.'.join(key)} has no rule in jaxagent/models/params.py")
        yield rules[key], parameter


class _TensorFiles:
    """The tensors of a folder's safetensors files, each read when asked for; a file at a time is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = self._list_tensors()
        self._open_name, self._open = "", None

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

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


def _read_parameter(tensors: _TensorFiles, rule: Rule, parameter: nnx.Param) -> np.ndarray:
    shape, dtype = parameter.get_value().shape, parameter.get_value().dtype
    if not rule.per_layer:
        return _read_tensor(tensors, rule, rule.hf_name, shape).astype(dtype)
    value = np.empty(shape, dtype)
    for layer in range(shape[0]):
        value[layer] = _read_tensor(tensors, rule, rule.hf_name.format(layer), shape[1:])
    return value


def _read_tensor(tensors: _TensorFiles, rule: Rule, name: str, shape: tuple[int, ...]) -> np.ndarray:
    stored = tensors.read(name)
    try:
        return rule.from_hf(stored, shape)
    except WeightsError as error:
        raise WeightsError(f"{name}: {error}") from None


def _shardings(decoder: Decoder, mesh: jax.sharding.Mesh | None) -> dict[tuple[str, ...], jax.sharding.Sharding]:
    if mesh is None:
        return {}
    from jaxagent.sharding import param_shardings

    shardings = param_shardings(nnx.state(decoder, nnx.Param), mesh)
    return {tuple(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(shardings)}


def _placed(decoder: Decoder, mesh: jax.sharding.Mesh) -> Decoder:
    shardings = _shardings(decoder, mesh)
    for rule, parameter in _parameters(decoder):
        parameter.set_value(jax.device_put(parameter.get_value(), shardings[rule.path]))
    return decoder
