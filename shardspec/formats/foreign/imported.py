"""What a reader of foreign rules gives back, and what it may say on the way.

Every format is one module with two functions:

    read(sources, options) -> (Imported | None, diagnostics)
    answer(reading, params, mesh) -> one `Answer` per array

`read` makes a spec of the files; `answer` computes what the other tool itself would give each
array, by that tool's own semantics and not by way of our resolver. The two together are the proof
of an import. Files are parsed, never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import basename
from typing import Any, NamedTuple

from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.codes import AMBIGUOUS_READING, BAD_FOREIGN_FILE, NOT_CARRIED_OVER
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.printable import printable
from shardspec.frontend.reading import Comments, Data, Route
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import Param, Params
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.spec import target_text

_NAME = re.compile(r"(?!(?:none|_)$)[^\W\d]\w*(?:[-.]\w+)*")


class Options(NamedTuple):
    """What the command line says beside the files; a format says which of these it takes.

    Attributes:
      name: which of several lists, or which gin scope, is meant.
      names: all that are meant, where a format takes several; the first of them is `name`.
      semantics: whose reading: `linen` or `nnx`.
      merge: how MaxText's files are joined: `maxtext` or `in-place`.
      match: how a regex is meant: `search` or `fullmatch`.
      separator: what joins the parts of a path in the other tool.
      strict: whether the other tool refuses arrays that nothing matches.
      include: folders where included files are looked for.
      mesh: axis and size as the language spells it; beats the mesh of the files.
      hardware: beats that of the files.
      params: the arrays of `--against`; None without it.
    """

    name: str | None = None
    names: tuple[str, ...] = ()
    semantics: str | None = None
    merge: str | None = None
    match: str | None = None
    separator: str | None = None
    strict: bool | None = None
    include: tuple[str, ...] = ()
    mesh: tuple[tuple[str, str], ...] = ()
    hardware: str | None = None
    params: Params | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A document made of foreign rules.

    Attributes:
      data: the document as plain data.
      comments: by route of the entry; where each line came from.
      reading: the rules as the other tool reads them, frozen, for `answer`.
      tool: whose reading it is, as messages call it: `Flax Linen`.
    """

    data: Mapping[str, Data]
    comments: Mapping[Route, Comments] = field(default_factory=dict)
    reading: Any = None
    tool: str = ""


class NoAnswer(NamedTuple):
    """Why the other tool has no layout for an array: it raises, or leaves it to the compiler.

    Attributes:
      refuses: whether it raises; False where it has a layout that no PartitionSpec can say.
    """

    reason: str
    refuses: bool = True


class NotRead(NamedTuple):
    """Why nothing is known of what the other tool does to an array.

    Attributes:
      what: what was not read, as far as it has a name.
      reason: why, as a sentence.
      help: how it would be read.
    """

    what: str
    reason: str
    help: str


Answer = PartitionSpec | NoAnswer | NotRead
Outcome = tuple[Imported | None, tuple[Diagnostic, ...]]


def bad(message: str, span: Span | None, label: str = "", help: str | None = None) -> Diagnostic:
    """Return the finding for a file that its own tool would not read."""
    return point(BAD_FOREIGN_FILE, one_line(message), span, label, help=help)


def lost(message: str, span: Span | None, label: str = "", help: str | None = None) -> Diagnostic:
    """Return the finding for what cannot be carried over."""
    return point(NOT_CARRIED_OVER, one_line(message), span, label, help=help)


def ambiguous(message: str, span: Span | None, help: str, label: str = "") -> Diagnostic:
    """Return the finding for a file with two readings; `help` says how to choose one."""
    return point(AMBIGUOUS_READING, one_line(message), span, label, help=help)


def one_line(message: str) -> str:
    """Return a message that quotes foreign text as one line."""
    return " ".join(message.splitlines())


def came_from(span: Span, more: str = "") -> Comments:
    """Return the comment that says where an entry came from: `# from my.gin:12`."""
    return Comments(trailing=f"from {place(span)}{f': {more}' if more else ''}")


def place(span: Span) -> str:
    """Return `my.gin:12`."""
    return f"{printable(basename(span.source.name))}:{span.line}"


def is_name(text: str) -> bool:
    """Say whether the language can spell an axis so.

    >>> is_name("embed"), is_name("joined-kv"), is_name("none"), is_name("a b")
    (True, True, False, False)
    """
    return _NAME.fullmatch(text) is not None


def rule_text(logical_axis: str, mesh_axes: tuple[str, ...]) -> str:
    """Return `embed -> (data, model)`."""
    return f"{logical_axis} -> {target_text(mesh_axes)}"


def placed(dims: tuple[tuple[str, ...], ...], param: Param, mesh: Mesh) -> Answer:
    """Return what JAX makes of a PartitionSpec for an array: itself at full rank, or a refusal.

    Sizes that do not divide are no refusal here: our plan keeps the same partition, and a check
    of the spec reports it.
    """
    partition = PartitionSpec(dims)
    if len(dims) > param.rank:
        return NoAnswer(f"{partition} has {len(dims)} entries for {param.rank} dimensions")
    used = partition.mesh_axes
    unknown = next((axis for axis in used if axis not in mesh.sizes), None)
    if unknown is not None:
        axes = ", ".join(mesh.names)
        return NoAnswer(f"`{unknown}` of {partition} is not found in the mesh ({axes})")
    twice = next((axis for axis in used if used.count(axis) > 1), None)
    if twice is not None:
        return NoAnswer(f"{partition} has `{twice}` twice (DuplicateSpecError)")
    return PartitionSpec(dims + ((),) * (param.rank - len(dims)))
