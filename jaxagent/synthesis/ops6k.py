"""Tasks as CUDA-Agent-Ops-6K stores them: a parquet with `ops`, `data_source`, `code`, and our `metadata` beside.

`ops` is a JSON list as text, or a bare class name where `data_source` is `transformers`. What a row declares need not
be what its code calls, so the operators are derived from the code again.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasketch import MinHash, MinHashLSH

from jaxagent.synthesis.duplicates import PERMUTATIONS, sketch_of
from jaxagent.synthesis.normal_form import normalised
from sandbox.tasks import TaskError, declared_ops, read_rows

_NEAR = 0.95
"""Share of common runs of tokens of neighbours; one operator in place of another already leaves less."""


@dataclass(slots=True)
class OpsRow:
    """One task of a set."""

    ops: list[str]
    data_source: str
    code: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Cleaned:
    """A set after cleaning: what is left, and what was noticed, by row number of the set before."""

    rows: list[OpsRow]
    duplicates: dict[int, int]
    """Row -> the earlier row it repeats."""
    mislabelled: dict[int, list[str]]
    """Row -> declared operators that its code does not call."""
    broken: list[int]
    """Rows that are no Python."""


def load_ops6k(path: Path) -> list[OpsRow]:
    """Rows of the file, as they are. Raises TaskError for another schema."""
    return [
        OpsRow(
            declared_ops(row["ops"]),
            row["data_source"] or "",
            row["code"] or "",
            json.loads(row.get("metadata") or "{}"),
        )
        for row in read_rows(path)
    ]


def export_ops6k(rows: Sequence[OpsRow], path: Path) -> None:
    """Writes the released schema and a column `metadata` (JSON as text). Nothing half-written stays."""
    import pyarrow
    import pyarrow.parquet

    columns = {
        "ops": [_ops_text(row) for row in rows],
        "data_source": [row.data_source for row in rows],
        "code": [row.code for row in rows],
        "metadata": [json.dumps(row.metadata) for row in rows],
    }
    table = pyarrow.table({name: pyarrow.array(values, pyarrow.string()) for name, values in columns.items()})
    partial = path.with_name(path.name + ".partial")
    try:
        pyarrow.parquet.write_table(table, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def clean(rows: Sequence[OpsRow]) -> Cleaned:
    """Drops repeated programs (names and layout aside) and text that is no Python; derives `ops` from the code.

    What a row declared stays in metadata.declared_ops where it differs.
    """
    result = Cleaned([], {}, {}, [])
    seen: dict[str, int] = {}
    for index, row in enumerate(rows):
        try:
            form, called = normalised(row.code), called_names(row.code)
        except (SyntaxError, ValueError):
            result.broken.append(index)
            continue
        if form in seen:
            result.duplicates[index] = seen[form]
            continue
        seen[form] = index
        wrong = [name for name in row.ops if _plain(name) not in {_plain(found) for found in called}]
        if wrong:
            result.mislabelled[index] = wrong
        changed = {"declared_ops": row.ops} if wrong else {}
        ops = row.ops if row.data_source == "transformers" else called
        result.rows.append(OpsRow(ops, row.data_source, row.code, row.metadata | changed))
    return result


def called_names(code: str) -> list[str]:
    """Operators that the classes of a program name, in the order of the text: `torch.nn.Linear`, `torch.tanh`, ….

    Names are full where they begin at an import; a method of a tensor (`x.relu()`) is `torch.Tensor.relu` where torch
    has such a method and it computes something. Raises SyntaxError.
    """
    tree = ast.parse(code)
    aliases = {
        alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    calls = [
        call
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
    ]
    names: dict[str, None] = {}
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = _full_name(call.func, aliases)
        if name is not None and name.startswith(("torch.", "transformers.")) and not _is_container(name):
            names[name] = None
    return list(names)


def split_by_family(rows: Sequence[OpsRow], *, validation: float, seed: int) -> list[str]:
    """ "train" or "validation" for every row: rows with the same operators, or nearly the same text, stay together.

    `validation` is the share aimed at; whole groups are taken, in an order that `seed` decides, while they fit.
    """
    groups = _groups(rows)
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)

    def order(group: int) -> str:
        names = " ".join(sorted(rows[group].ops)) + rows[group].code
        return hashlib.sha256(f"{seed} {names}".encode()).hexdigest()

    splits, room = ["train"] * len(rows), int(validation * len(rows))
    for group in sorted(members, key=order):
        if len(members[group]) <= room:
            room -= len(members[group])
            for index in members[group]:
                splits[index] = "validation"
    return splits


def _groups(rows: Sequence[OpsRow]) -> list[int]:
    """For every row the first row of its group."""
    parent = list(range(len(rows)))

    def find(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(first: int, second: int) -> None:
        a, b = sorted((find(first), find(second)))
        parent[b] = a

    near = MinHashLSH(threshold=_NEAR, num_perm=PERMUTATIONS)
    by_operators: dict[frozenset[str], int] = {}
    sketches: list[MinHash] = []
    for index, row in enumerate(rows):
        join(by_operators.setdefault(frozenset(map(_plain, row.ops)), index), index)
        sketch = sketch_of(row.code)
        for other in map(int, map(str, near.query(sketch))):
            if sketch.jaccard(sketches[other]) >= _NEAR:
                join(other, index)
        near.insert(str(index), sketch)
        sketches.append(sketch)
    return [find(index) for index in range(len(rows))]


def _ops_text(row: OpsRow) -> str:
    if row.data_source == "transformers" and len(row.ops) == 1:
        return row.ops[0]
    return json.dumps(row.ops)


def _plain(name: str) -> str:
    """nn.GELU, F.gelu and torch.nn.functional.gelu name the same operator."""
    return name.rpartition(".")[2].lower().replace("_", "")


def _full_name(node: ast.expr, aliases: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in aliases:
        return ".".join([aliases[node.id], *reversed(parts)])
    return f"torch.Tensor.{parts[0]}" if parts and parts[0] in _tensor_operators() else None


def _tensor_operators() -> frozenset[str]:
    from sandbox.taskcheck.observe import FREE_CALLS, tensor_methods

    return tensor_methods() - FREE_CALLS


def _is_container(name: str) -> bool:
    return name.rpartition(".")[2] in ("Sequential", "ModuleList", "ModuleDict", "Module", "Parameter", "Identity")


__all__ = ["Cleaned", "OpsRow", "TaskError", "called_names", "clean", "export_ops6k", "load_ops6k", "split_by_family"]
