"""Names that model_new.py may or may not write: the lists that sandbox.model_text applies."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED_IMPORTS = _words(
    "torch torch.nn math typing dataclasses functools itertools collections collections.abc enum __future__"
)
REFUSED_NAMES = _words("exec eval compile open __import__ globals locals vars breakpoint memoryview exit quit")
LOOKUPS = _words("getattr setattr delattr hasattr")
REFUSED_MEMBERS = {
    "torch": _words(
        "compile jit ops classes library utils hub load save overrides multiprocessing distributed testing fx export "
        "func profiler package serialization from_file monitor set_num_threads set_num_interop_threads "
        "use_deterministic_algorithms set_default_device cuda accelerator backends get_rng_state set_rng_state random "
        "manual_seed seed initial_seed default_generator torch"
    ),
    "typing": _words("get_type_hints ForwardRef evaluate_forward_ref"),  # they evaluate strings
}
"""What compiles, loads, patches, steers or evaluates; torch's operators are left to the judge's record of what ran."""
ALLOWED_MEMBERS = {
    "dataclasses": _words(
        "dataclass field fields replace asdict astuple is_dataclass InitVar KW_ONLY MISSING Field FrozenInstanceError"
    ),
    "functools": _words("partial partialmethod reduce lru_cache cache cached_property total_ordering cmp_to_key wraps"),
    "collections": _words("OrderedDict defaultdict deque Counter ChainMap namedtuple UserDict UserList UserString"),
    "enum": _words("Enum IntEnum StrEnum Flag IntFlag auto unique member nonmember EnumMeta EnumType ReprEnum"),
}
"""Of these modules nothing else: they also take attributes, and write into modules, by names in strings."""
WRAPS = "functools.wraps"
FOREIGN_MODULES = _words(
    "sys os builtins bltns ctypes inspect importlib types threading gc subprocess socket platform textwrap re "
    "stdlib_re abc copyreg contextlib warnings traceback _sys _os _weakref weakref operator copy keyword np glob"
)
MODULES_OF_TORCH = _words(
    "accelerator amp ao autograd backends classes compiler contrib cpp cpu cuda distributed distributions export fft "
    "func functional functools futures fx hub jit library linalg masked math monitor mps mtia multiprocessing nativert "
    "nested nn numa onnx ops optim overrides package profiler quantization quasirandom random return_types "
    "serialization signal sparse special storage testing torch_version utils version windows xpu"
)
MODULES_OF_NN = _words(
    "activation adaptive attention batchnorm channelshuffle clip_grad collections comm common_types container conv "
    "convert_parameters dataclasses distance distributed dropout dynamic flatten fold functional functools fusion "
    "grad init instancenorm intrinsic lazy linear linear_cross_entropy_options loss math memory_format module modules "
    "normalization padding parallel parameter parametrizations parametrize pixelshuffle pooling qat quantizable "
    "quantized rnn scatter_gather sparse stateless transformer upsampling utils"
)
"""Parts of a dotted name that are no values: modules in torch, and anywhere below torch.nn."""
ALLOWED_DUNDERS = _words("__init__ __name__ __class__ __doc__ __len__ __post_init__ __version__ __qualname__")
DUNDER_NAMES = _words("__name__ __class__ __slots__ __all__ __doc__ __version__ __author__ __constants__ __debug__")
REFUSED_METHODS = _words(
    "load_state_dict state_dict _load_from_state_dict _save_to_state_dict named_parameters named_buffers parameters "
    "buffers _call_impl _wrapped_call_impl __torch_function__ __torch_dispatch__ __getattribute__ __del__ __reduce__ "
    "__reduce_ex__ __setstate__ __getstate__"
)
INTERNALS = _words(
    "f_back f_locals f_globals f_code gi_frame cr_frame ag_frame tb_frame tb_next co_code mro _evaluate _C "
    "from_file _new_shared_filename_cpu _new_shared_fd_cpu _share_filename_cpu_ _share_fd_cpu_"  # storage over files
)
