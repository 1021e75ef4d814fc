"""Reads the C ABI of a kernel library from its `extern "C"` definitions."""

from __future__ import annotations

import re

from sandbox.toolchains.cxx_text import Lines, strip_comments
from sandbox.toolchains.interface import Parameter, Prototype, PrototypeError

_INTEGERS = {
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "signed": "int32",
    "unsigned": "uint32",
    "long": "int64",
    "unsigned long": "uint64",
    "long long": "int64",
    "unsigned long long": "uint64",
    "size_t": "uint64",
    "ptrdiff_t": "int64",
    "ssize_t": "int64",
    "intptr_t": "int64",
} | {f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES = (
    _INTEGERS
    | {"float": "float32", "double": "float64", "_Float16": "float16", "bool": "bool", "void": "void"}
    | {"half": "float16", "__half": "float16", "nv_bfloat16": "bfloat16", "__nv_bfloat16": "bfloat16"}
    | {"cudaStream_t": "stream", "cudaError_t": "status"}
)
"""C spelling to the name of the torch dtype (LP64); `void` is only a result or a pointer.

`stream` is no argument of the Python function: torch's current CUDA stream. `status` is only a result: what is not
cudaSuccess becomes an exception."""
POINTER_ONLY = {"void", "float16", "bfloat16", "status"}
RESULT_NEVER = {"float16", "bfloat16", "stream"}
ALLOWED_TYPES = (
    "float, double, bool, int8_t … int64_t, uint8_t … uint64_t, int, long, size_t, "
    "pointers to them, _Float16* and void*; in CUDA also __half*, __nv_bfloat16* and cudaStream_t"
)
MAX_HEADER_CHARACTERS = 4000
_DROPPED_WORDS = {
    "const",
    "volatile",
    "__restrict__",
    "__restrict",
    "restrict",
    "inline",
    "extern",
    "register",
    "constexpr",
    "struct",
    "enum",
    "__host__",
}
_NO_FUNCTION = re.compile(r"^\s*(namespace|struct|class|union|enum|template|using|typedef)\b")
_NO_ABI = re.compile(r"\b(static|__global__|__device__)\b")
_HEADER = re.compile(
    r"^(?P<result>[\w\s:*]+?)\b(?P<name>[A-Za-z_]\w*)\s*\((?P<parameters>.*)\)\s*"
    r"(?:noexcept(?:\s*\([^()]*\))?)?\s*$",
    re.DOTALL,
)


def parse_prototypes(path: str, source: str) -> list[Prototype]:
    """Every function that `source` defines with C linkage, in order.

    `static` ones and CUDA kernels are not part of the ABI. Signatures have to be spelled out: macros, typedefs and
    references are not understood. Raises PrototypeError.
    """
    text = strip_comments(source, keep_strings=True)
    text = strip_comments(re.sub(r'\bextern\s*"C"', " extern @C ", text))
    text = re.sub(r"^[ \t]*#[^\n]*", "", text, flags=re.MULTILINE)
    lines = Lines(text)
    found: list[Prototype] = []
    covered = 0
    for match in re.finditer(r"extern @C", text):
        if match.start() < covered:  # inside a block or a body that was read already
            continue
        definitions, covered = _definitions(text, match.end())
        for start, header in definitions:
            prototype = _prototype(header, f"{path}:{lines.at(start)}")
            if prototype is not None:
                found.append(prototype)
    return found


def _definitions(text: str, position: int) -> tuple[list[tuple[int, str]], int]:
    """(offset, header) of the definitions that the linkage specification before `position` covers, and its end."""
    while position < len(text) and text[position].isspace():
        position += 1
    if not text.startswith("{", position):
        start, header, end = _next_item(text, position, len(text))
        return [(start, header)] if header is not None else [], end
    end = _closing_brace(text, position)
    found = []
    position += 1
    while position < end:
        start, header, position = _next_item(text, position, end)
        if header is not None:
            found.append((start, header))
    return found, end


def _next_item(text: str, position: int, end: int) -> tuple[int, str | None, int]:
    """One declaration at nesting level 0: its offset, its header if it has a body, and where the next one starts."""
    start = position
    while start < end and text[start].isspace():
        start += 1
    match = re.compile(r"[;{]").search(text, start, end)
    if match is None:
        return start, None, end
    if match[0] == ";":
        return start, None, match.end()
    return start, text[start : match.start()], _closing_brace(text, match.start()) + 1


def _closing_brace(text: str, opening: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    return len(text)


def _prototype(header: str, where: str) -> Prototype | None:
    if len(header) > MAX_HEADER_CHARACTERS:
        raise PrototypeError(f"{where}: this signature is longer than {MAX_HEADER_CHARACTERS} characters")
    header = header.replace("extern @C", "")
    cleaned = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\[\[[^\]]*\]\]|alignas\s*\([^()]*\)", " ", header)
    if _NO_FUNCTION.match(cleaned) or _NO_ABI.search(cleaned) or "(" not in cleaned:
        return None
    match = _HEADER.match(cleaned)
    if match is None:
        raise PrototypeError(
            f"{where}: this signature is not understood: {' '.join(header.split())[:160]!r}; write it "
            'as extern "C" void name(const float* x, int64_t n) without macros'
        )
    name = match["name"]
    pieces = _split(match["parameters"])
    parameters = (
        []
        if pieces in ([], ["void"])
        else [_parameter(piece, index, f"{where}: {name}") for index, piece in enumerate(pieces)]
    )
    dtype, pointer, _ = _type(match["result"], named=False)
    if dtype is None or pointer or dtype in RESULT_NEVER:
        raise PrototypeError(
            f"{where}: {name} returns {match['result'].strip()!r}; allowed: void, a scalar or cudaError_t "
            "(write results through a pointer parameter)"
        )
    if len({parameter.name for parameter in parameters}) != len(parameters):
        raise PrototypeError(f"{where}: {name} has two parameters of one name")
    return Prototype(name=name, result=dtype, parameters=parameters)


def _split(parameters: str) -> list[str]:
    """Splits at the commas outside parentheses and braces (of default values)."""
    pieces, depth, current = [], 0, ""
    for character in parameters:
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            pieces.append(current)
            current = ""
        else:
            current += character
    return [piece.strip() for piece in [*pieces, current] if piece.strip()]


def _parameter(piece: str, index: int, where: str) -> Parameter:
    declared = piece.split("=")[0].strip()
    dtype, pointer, name = _type(declared, named=True)
    if dtype is None or (dtype in POINTER_ONLY and not pointer):
        raise PrototypeError(
            f"{where}: parameter {' '.join(declared.split())!r} has no binding; allowed: {ALLOWED_TYPES}"
        )
    return Parameter(name=name or f"arg{index}", dtype=dtype, pointer=pointer)


def _type(text: str, *, named: bool) -> tuple[str | None, bool, str | None]:
    """(dtype or None, is a pointer, parameter name) of a C declaration."""
    if re.search(r"[&(<>)]", text) or text.count("*") + text.count("[") > 1:
        return None, False, None
    pointer = "*" in text or "[" in text
    words = re.sub(r"\[[^\]]*\]|\*|\bstd\s*::|(?<!\w)::", " ", text).split()
    kept = [word for word in words if word not in _DROPPED_WORDS]
    name = None
    if named and len(kept) > 1 and " ".join(kept) not in DTYPES and _spelling(kept[:-1]) in DTYPES:
        name = kept.pop()
    return DTYPES.get(_spelling(kept)), pointer, name


def _spelling(words: list[str]) -> str:
    """`int unsigned long` and `unsigned long int` are both `unsigned long`."""
    rest = [word for word in words if word not in ("int", "signed")]
    if not rest:
        return "int" if words else ""
    if rest == ["char"] and "signed" in words:
        return "signed char"
    if "int" not in words and "signed" not in words and len(rest) == 1:
        return rest[0]
    if any(word not in ("unsigned", "long", "short", "char") for word in rest):
        return " ".join(words)
    order = {"unsigned": 0, "short": 1, "long": 2, "char": 3}
    return " ".join(sorted(rest, key=lambda word: order[word]))
