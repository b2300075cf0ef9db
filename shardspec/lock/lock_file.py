"""`spec.lock`: what every device holds on every target, as text for people and for git.

One line for each group of arrays that agree, sorted, in the spelling of the language: names and
sizes as in `arrays:`, the answer as in `overrides:`. Nothing in it depends on the platform, the
time or the place; what made it is there as digests.

A lock that was edited by hand or half merged is refused when it is read. Whether the lock beside a
spec is still true is asked here too.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from shardspec.analysis import layout_diff
from shardspec.diagnostics import Diagnostic, SourceFile, codes, point
from shardspec.diagnostics.words import MOST_PATHS, collapsed, expanded, listed, natural, template
from shardspec.ir import spec as ir
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Target
from shardspec.language.files import read_argument, read_source, veiled
from shardspec.versions import LANGUAGE, LOCK

HEADING = "# What every device holds. Made by `shardspec lock`; do not edit, run it again."

#: How a proof names the step that the spec states.
STATED_STEP = "spec:step"

#: A name that stands for itself in a lock; others are quoted.
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN_PATH = re.compile(r"[^\s\"{}*?\\,#=]+")


def lock_text(layout: layout_diff.Layout) -> str:
    """Return the lock of a layout. Equal layouts have equal texts."""
    return "\n".join(_lines(layout)) + "\n"


def _lines(layout: layout_diff.Layout) -> Iterator[str]:
    yield HEADING
    yield f"lock {LOCK}, language {layout.language}"
    yield from (f"input {quoted_path(each.name)} = {each.digest}" for each in layout.inputs)
    yield f"arrays = {layout.arrays_digest}"
    for target in layout.targets:
        yield ""
        yield from _target_lines(target)


def _target_lines(target: layout_diff.TargetLayout) -> Iterator[str]:
    yield f"target {name_text(target.name)}{f' on {target.hardware}' if target.hardware else ''}"
    yield from (_axis_line(placed) for placed in target.axes)
    if target.devices:
        yield f"devices {target.order} = {target.devices}"
    for each in target.activations:
        dims = " ".join(map(_dim_text, each.logical_axes, each.sizes))
        yield f"activation {name_text(each.name)} : [{dims}] = {_answer_text(each)}"
    if target.proof is not None:
        yield from _proof_lines(target.proof)
    yield from (f"{path} : {rest}" for path, rest in _groups(target.arrays))


def _proof_lines(proof: layout_diff.ProofLayout) -> Iterator[str]:
    yield f"proof {proof.step} = {proof.made_from}"
    yield f"proof by {', '.join(map(' '.join, proof.made_by))}"
    yield from (f"proof flags {name} = {json.dumps(value)}" for name, value in proof.flags)
    yield from (f"proof code {quoted_path(each.name)} = {each.digest}" for each in proof.code)
    for each in proof.sent:
        axes = " + ".join(map(name_text, each.mesh_axes))
        yield f"proof sends {axes} = {each.compiled}, predicted {each.predicted}"
    held = "unknown" if proof.held.compiled is None else proof.held.compiled
    room = "" if proof.room is None else f", of {proof.room}"
    yield f"proof holds = {held}, predicted {proof.held.predicted}{room}"


def _axis_line(placed: layout_diff.AxisLayout) -> str:
    axis = placed.axis
    network = " @ dcn" if axis.network == "dcn" else ""
    kind = "" if axis.axis_type == "auto" else f" {axis.axis_type}"
    runs = f" : {placed.runs}" if placed.runs else ""
    return f"mesh {name_text(axis.name)} = {axis.size}{network}{kind}{runs}"


def _answer_text(lying: layout_diff.ActivationLayout | layout_diff.ArrayLayout) -> str:
    """Return an answer as an override spells it: `(none, (replica, data))`."""
    kinds = zip(ir.Sums._fields, lying.partition.sums, strict=True)
    sums = "".join(f" {kind} {_entry(axes)}" for kind, axes in kinds if axes)
    memory = "" if lying.memory is None else f" memory {lying.memory}"
    return f"({', '.join(map(_entry, lying.partition.dims))}){sums}{memory}"


def _groups(arrays: Sequence[layout_diff.ArrayLayout]) -> Iterator[tuple[str, str]]:
    """Yield the paths of each group and what they have in common, in natural order."""
    found: dict[tuple[str, str], list[str]] = {}
    texts: dict[tuple[object, ...], str] = {}
    for array in arrays:
        key = (array.dtype, array.shape, array.logical_axes, array.partition, array.memory)
        text = texts.get(key)
        if text is None:
            dims = " ".join(map(_dim_text, array.logical_axes, array.shape))
            text = f"{name_text(array.dtype)}[{dims}] = {_answer_text(array)}"
            texts[key] = text
        found.setdefault((template(array.path), text), []).append(array.path)
    lines: list[tuple[str, str, str]] = []
    for (_, text), paths in found.items():
        paths.sort(key=natural)
        together = collapsed(paths) if all(map(_PLAIN_PATH.fullmatch, paths)) else None
        if together is None:
            lines += [(path, quoted_path(path), text) for path in paths]
        else:
            lines.append((paths[0], together, text))
    lines.sort(key=lambda line: (natural(line[0]), line[0]))
    yield from ((paths, text) for _, paths, text in lines)


def _dim_text(name: str | None, size: int | None) -> str:
    known = "" if size is None else f"={size}"
    return f"{'_' if name is None else name_text(name)}{known}"


def _entry(dim: tuple[str, ...]) -> str:
    if not dim:
        return "none"
    names = ", ".join(map(name_text, dim))
    return names if len(dim) == 1 else f"({names})"


def name_text(name: str) -> str:
    """Return a name, quoted where it could be taken for something else."""
    plain = PLAIN_NAME.fullmatch(name) and name not in {"_", "none"}
    return name if plain else json.dumps(name)


def quoted_path(path: str) -> str:
    """Return a path, quoted where it could be taken for something else."""
    return path if _PLAIN_PATH.fullmatch(path) else json.dumps(path)


_QUOTED = r'"(?:[^"\\]|\\.)*"'
_NAME = rf"(?:{_QUOTED}|[A-Za-z_][A-Za-z0-9_.-]*)"
_PATH = rf"(?:{_QUOTED}|[^\s\"=#]+)"
_DIGEST = r"sha256:[0-9a-f]{32}"
_SIZE = r"(?:0|[1-9][0-9]{0,18})"
_DIM = rf"{_NAME}(?:={_SIZE})?"
_DIMS = rf"\[(?P<dims>(?:{_DIM}(?: {_DIM})*)?)\]"
_STEP = r"[A-Za-z_][\w.]{0,199}:[A-Za-z_][\w.]{0,199}"
_MADE_BY = r"[A-Za-z0-9_.-]{1,99} [A-Za-z0-9_.+-]{1,99}"
_AXES = rf"(?:{_NAME}|\({_NAME}(?:, {_NAME})+\))"
_SUMS = rf"(?: unreduced (?P<unreduced>{_AXES}))?(?: reduced (?P<reduced>{_AXES}))?"
_MEMORY = rf"(?: memory (?P<memory>{'|'.join(ir.MEMORY_KINDS)}))?"
_ANSWER = rf"\((?P<answer>[^\n]*?)\){_SUMS}{_MEMORY}"

_HEAD = re.compile(r"lock (?P<format>[0-9]{1,9}), language (?P<language>[0-9]{1,9})")
_INPUT = re.compile(rf"input (?P<name>{_PATH}) = (?P<digest>{_DIGEST})")
_ARRAYS = re.compile(rf"arrays = (?P<digest>{_DIGEST})")
_TARGET = re.compile(rf"target (?P<name>{_NAME})(?: on (?P<hardware>.+))?")
_MESH = re.compile(
    rf"mesh (?P<name>{_NAME}) = (?P<size>{_SIZE})(?P<dcn> @ dcn)?"
    r"(?: (?P<type>explicit|manual))?(?: : (?P<runs>.+))?"
)
_DEVICES = re.compile(rf"devices (?P<order>t5x|ring|listed) = (?P<digest>{_DIGEST})")
_ACTIVATION = re.compile(rf"activation (?P<name>{_NAME}) : {_DIMS} = {_ANSWER}")
_ARRAY = re.compile(rf"(?P<path>{_PATH}) : (?P<dtype>{_NAME}){_DIMS} = {_ANSWER}")
_PROOF = re.compile(rf"proof (?P<step>{_STEP}) = (?P<digest>{_DIGEST})")
_PROOF_BY = re.compile(rf"proof by (?P<made_by>{_MADE_BY}(?:, {_MADE_BY})*)")
_PROOF_FLAGS = re.compile(r'proof flags (?P<name>\w+) = (?P<value>"[^\n]*")')
_PROOF_CODE = re.compile(rf"proof code (?P<name>{_PATH}) = (?P<digest>{_DIGEST})")
_PROOF_SENDS = re.compile(
    rf"proof sends (?P<axes>{_NAME}(?: \+ {_NAME})*) = (?P<bytes>{_SIZE}),"
    rf" predicted (?P<ours>{_SIZE})"
)
_PROOF_HOLDS = re.compile(
    rf"proof holds = (?P<bytes>{_SIZE}|unknown),"
    rf" predicted (?P<ours>{_SIZE})(?:, of (?P<room>{_SIZE}))?"
)
_DIM_PARTS = re.compile(rf"(?P<name>{_NAME})(?:=(?P<size>[0-9]+))?")
_ENTRIES = re.compile(rf"(?:{_NAME}|\((?:{_NAME}(?:, {_NAME})+)\))(?:, (?!$)|$)")
_NAMES = re.compile(_NAME)

_CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")
_HELP = "run `shardspec lock` to write it anew"

#: What a line begins with that is none of an array -> what such a line looks like.
_FORMS = {
    "input": "`input NAME = sha256:` and 32 digits from 0 to f",
    "arrays": "`arrays = sha256:` and 32 digits from 0 to f",
    "target": "`target NAME on HARDWARE`",
    "mesh": "`mesh NAME = SIZE`, a whole number from 1",
    "devices": "`devices t5x = sha256:` (or `ring`, `listed`), and 32 digits from 0 to f",
    "activation": "`activation NAME : [NAME=SIZE ...] = (MESH_AXIS, ...)`",
    "proof": "as `shardspec lock --verify` writes it",
}


class _LineError(Exception):
    """A line that no lock has; leaves the reader as a diagnostic."""


def read_lock(source: SourceFile) -> layout_diff.Layout | Diagnostic:
    """Return the layout in the text of a lock, or what is wrong with the text.

    Invariants:
      round_trip: `read_lock` of `lock_text(layout)` is the layout, arrays in natural order.
    """
    found = _read_lock(source)
    if isinstance(found, Diagnostic) and source.is_outside:
        return next(veiled((found,), f"cat {source.name}"))
    return found


def _read_lock(source: SourceFile) -> layout_diff.Layout | Diagnostic:
    stripped = ((text.rstrip(), span) for text, span in source.lines())
    lines = [line for line in stripped if line[0] and not line[0].startswith("#")]
    first, span = lines[0] if lines else ("", source.whole)
    head = _HEAD.fullmatch(first)
    if head is None:
        return point(codes.BAD_LOCK, f"{source.name} is no lock", span, help=_HELP)
    for what, known in (("format", LOCK), ("language", LANGUAGE)):
        if int(head[what]) != known:
            whose = "the lock" if what == "format" else "the language"
            message = f"this is version {head[what]} of {whose}; this shardspec knows {known}"
            help = f"{_HELP}, or take the shardspec that wrote it"
            return point(codes.BAD_LOCK, message, span, help=help)
    reader = _Reader(int(head["language"]))
    for text, span in lines[1:]:
        try:
            reader.read(text)
        except _LineError as fault:
            message = f"this is no line of a lock{f': {fault}' if str(fault) else ''}"
            if text.startswith(_CONFLICT):
                message = "the lock holds a merge conflict"
            return point(codes.BAD_LOCK, message, span, help=_HELP)
    missing = reader.missing()
    if missing:
        message = f"every lock has a line {missing}, and this one has none"
        return point(codes.BAD_LOCK, message, span, help=_HELP)
    return reader.layout()


class _Reader:
    """The walk over the lines of one lock."""

    def __init__(self, language: int) -> None:
        self.language = language
        self.inputs: list[layout_diff.Input] = []
        self.digest = ""
        self.targets: list[layout_diff.TargetLayout] = []
        self.axes: list[layout_diff.AxisLayout] = []
        self.arrays: list[layout_diff.ArrayLayout] = []
        self.activations: list[layout_diff.ActivationLayout] = []
        self.proof: layout_diff.ProofLayout | None = None
        self.code: list[layout_diff.Input] = []
        self.sent: list[layout_diff.ProvedBytes] = []
        self.known: set[tuple[str, str]] = set()
        self.known_here: set[tuple[str, str]] = set()
        self.path_count = 0

    def read(self, text: str) -> None:
        """Add what one line says.

        Raises:
          _LineError: no line of a lock reads like this here.
        """
        if found := _ARRAY.fullmatch(text) if self.targets else None:
            self._array(found)
        elif found := _TARGET.fullmatch(text):
            self._target(found)
        elif self.targets:
            self._part(text)
        elif found := _INPUT.fullmatch(text):
            name = _unquoted(found["name"])
            _refuse_again(self.known, "input", name)
            self.inputs.append(layout_diff.Input(name, found["digest"]))
        elif found := _ARRAYS.fullmatch(text):
            _refuse_again(self.known, "line", "arrays")
            self.digest = found["digest"]
        else:
            raise _LineError(_form(text))

    def missing(self) -> str:
        """Return the form of a line that the lock should have and has not; empty without one."""
        found = {"input": self.inputs, "arrays": self.digest, "target": self.targets}
        return next((_FORMS[each] for each, lines in found.items() if not lines), "")

    def layout(self) -> layout_diff.Layout:
        """Return all that was read."""
        self._close()
        return layout_diff.Layout(
            self.language, tuple(self.inputs), self.digest, tuple(self.targets)
        )

    def _target(self, found: re.Match[str]) -> None:
        name = _named(found["name"])
        _refuse_again(self.known, "target", name)
        self._close()
        self.targets.append(layout_diff.TargetLayout(name, found["hardware"] or "", (), "", "", ()))

    def _part(self, text: str) -> None:
        """Add a line about the target that is being read, other than an array."""
        target = self.targets[-1]
        if found := _MESH.fullmatch(text):
            self._axis(found)
        elif found := _DEVICES.fullmatch(text):
            _refuse_again(self.known_here, "line", "devices")
            self.targets[-1] = replace(target, order=found["order"], devices=found["digest"])
        elif found := _ACTIVATION.fullmatch(text):
            self._activation(found)
        elif text.startswith("proof "):
            self._proof(text)
        elif text.startswith(("input ", "arrays =")):
            raise _LineError("it belongs above the first target")
        else:
            raise _LineError(_form(text))

    def _activation(self, found: re.Match[str]) -> None:
        name = _named(found["name"])
        _refuse_again(self.known_here, "activation", name)
        names, sizes = _dims(found["dims"])
        _check_size(math.prod(size for size in sizes if size))
        answer = self._partition(found, len(names))
        memory = cast(ir.MemoryKind | None, found["memory"])
        self.activations.append(layout_diff.ActivationLayout(name, names, sizes, answer, memory))

    def _proof(self, text: str) -> None:
        """Add a line of the proof of a step on this target; the first names the step."""
        if found := _PROOF.fullmatch(text):
            _refuse_again(self.known_here, "line", "proof")
            none = layout_diff.ProvedBytes((), 0, None)
            self.proof = layout_diff.ProofLayout(found["step"], found["digest"], (), (), (), none)
        elif self.proof is None:
            raise _LineError("a proof begins with its step, `proof train:step = sha256:...`")
        elif found := _PROOF_BY.fullmatch(text):
            pairs = (each.partition(" ") for each in found["made_by"].split(", "))
            made_by = tuple((name, version) for name, _, version in pairs)
            self.proof = replace(self.proof, made_by=made_by)
        elif found := _PROOF_FLAGS.fullmatch(text):
            try:
                flags = (*self.proof.flags, (found["name"], str(json.loads(found["value"]))))
            except ValueError:
                raise _LineError(_form(text)) from None
            self.proof = replace(self.proof, flags=flags)
        elif found := _PROOF_CODE.fullmatch(text):
            self.code.append(layout_diff.Input(_unquoted(found["name"]), found["digest"]))
        elif found := _PROOF_SENDS.fullmatch(text):
            axes = tuple(map(_named, _NAMES.findall(found["axes"])))
            sizes = int(found["ours"]), int(found["bytes"])
            self.sent.append(layout_diff.ProvedBytes(axes, *sizes))
        elif found := _PROOF_HOLDS.fullmatch(text):
            size, room = found["bytes"], found["room"]
            compiled = None if size == "unknown" else int(size)
            held = layout_diff.ProvedBytes((), int(found["ours"]), compiled)
            self.proof = replace(self.proof, held=held, room=None if room is None else int(room))
        else:
            raise _LineError(_form(text))

    def _axis(self, found: re.Match[str]) -> None:
        name, size = _named(found["name"]), int(found["size"])
        if not size:
            raise _LineError("a mesh axis has at least one device")
        _refuse_again(self.known_here, "mesh axis", name)
        if self.arrays or self.activations:
            raise _LineError("the mesh of a target stands above its arrays")
        kind = cast(ir.AxisType, found["type"] or "auto")
        axis = ir.MeshAxis(name, size, "dcn" if found["dcn"] else "ici", axis_type=kind)
        self.axes.append(layout_diff.AxisLayout(axis, found["runs"] or ""))
        _check_size(math.prod(placed.axis.size for placed in self.axes))

    def _array(self, found: re.Match[str]) -> None:
        names, sizes = _dims(found["dims"])
        shape = tuple(size for size in sizes if size is not None)
        if len(shape) != len(sizes):
            raise _LineError("an array has all its sizes")
        _check_size(math.prod(shape))
        answer = self._partition(found, len(names))
        if found["memory"] == "device":
            raise _LineError("an array of the device's own memory has no word for it")
        memory = cast(ir.HostMemory | None, found["memory"])
        paths = self._paths(found["path"])
        dtype = _unquoted(found["dtype"])
        self.arrays += [
            layout_diff.ArrayLayout(path, shape, dtype, names, answer, memory) for path in paths
        ]

    def _paths(self, text: str) -> list[str]:
        """Return the paths of a line, none of which the target had before."""
        paths = [_unquoted(text)] if text.startswith('"') else None
        if paths is None:
            paths = expanded(text, MOST_PATHS - self.path_count)
            if paths is None:
                raise _LineError(f"more than {MOST_PATHS:,} paths, which no model has")
            if not paths or not _PLAIN_PATH.fullmatch(paths[0]):
                raise _LineError(f"`{text}` is no path and no range of them, such as `w_{{0..3}}`")
        for path in paths:
            _refuse_again(self.known_here, "array", path)
        self.path_count += len(paths)
        return paths

    def _partition(self, found: re.Match[str], rank: int) -> ir.PartitionSpec:
        """Return an answer, which names axes of the mesh of this target, each once."""
        kinds = (_NAMES.findall(found[kind] or "") for kind in ir.Sums._fields)
        sums = ir.Sums(*(tuple(map(_named, names)) for names in kinds))
        answer = replace(_partition(found["answer"], rank), sums=sums)
        names = [*answer.mesh_axes, *sums.mesh_axes]
        mesh = [placed.axis.name for placed in self.axes]
        for name in names:
            if name not in mesh:
                known = listed(mesh) or "none"
                raise _LineError(f"the mesh has no axis `{name}`; it has {known}")
            if names.count(name) > 1:
                raise _LineError(f"the answer has the mesh axis `{name}` more than once")
        return answer

    def _close(self) -> None:
        if self.proof is not None:
            self.proof = replace(self.proof, code=tuple(self.code), sent=tuple(self.sent))
        if self.targets:
            self.targets[-1] = replace(
                self.targets[-1],
                axes=tuple(self.axes),
                arrays=tuple(self.arrays),
                activations=tuple(self.activations),
                proof=self.proof,
            )
        self.proof, self.code, self.sent = None, [], []
        self.axes, self.arrays, self.activations = [], [], []
        self.known_here = set()


def _check_size(count: int) -> None:
    if count > ir.MOST_ELEMENTS:
        raise _LineError(f"{count:,} is beyond 2^63, which no machine can count")


def _dims(text: str) -> tuple[tuple[str | None, ...], tuple[int | None, ...]]:
    found = list(_DIM_PARTS.finditer(text))
    names = tuple(None if each["name"] == "_" else _unquoted(each["name"]) for each in found)
    return names, tuple(None if each["size"] is None else int(each["size"]) for each in found)


def _partition(text: str, rank: int) -> ir.PartitionSpec:
    dims = []
    end = 0
    # One match at a time, each where the last one ended: a search would try every place in a
    # line that does not go on, and take the square of its length.
    while end < len(text) and (found := _ENTRIES.match(text, end)):
        end = found.end()
        names = _NAMES.findall(found[0])
        dims.append(() if names == ["none"] else tuple(map(_named, names)))
    if end != len(text) or len(dims) != rank:
        raise _LineError(f"the answer has to place {rank} dimensions")
    return ir.PartitionSpec(tuple(dims))


def _refuse_again(known: set[tuple[str, str]], what: str, name: str) -> None:
    """Raise where a thing of this kind and name was there before, and note it."""
    if (what, name) in known:
        raise _LineError(f"the {what} `{name}` stands here for the second time")
    known.add((what, name))


def _form(text: str) -> str:
    """Return what a line that begins so looks like; empty where no line does."""
    form = _FORMS.get(text.split(" ", 1)[0])
    return f"it should be {form}" if form else ""


def _named(text: str) -> str:
    """Return a name that a thing has; `none` and `_` are none, but in quotes."""
    if text in {"none", "_"}:
        raise _LineError(f"`{text}` is no name; in quotes it is one")
    return _unquoted(text)


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        raise _LineError("a quoted name is not closed or escaped as in JSON") from None


class LockWarning(UserWarning):
    """The lock beside a spec cannot be relied on: it is stale, or cannot be read."""


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock as it lies on disk.

    Attributes:
      stale: why it can no longer be trusted; None where its inputs are those of today.
    """

    path: str
    layout: layout_diff.Layout = field(repr=False)
    stale: Diagnostic | None = None


def lock_path(spec_name: str) -> str:
    """Return where the lock of a spec lies: `model/spec.yaml` has `model/spec.lock`."""
    return f"{os.path.splitext(spec_name)[0]}.lock"


def find_lock(spec: ir.Spec) -> LockFile | Diagnostic | None:
    """Return the lock beside the spec; what is wrong with it; or None where there is none."""
    path = lock_path(spec.source.name)
    if spec.source.name in {"-", "<string>"} or not os.path.isfile(path):
        return None
    source = read_argument(path)
    layout = source if isinstance(source, Diagnostic) else read_lock(source)
    if isinstance(layout, Diagnostic):
        return layout
    return LockFile(path, layout, _staleness(spec, layout, path))


def lock_remark(plan: ShardingPlan, path: str | None) -> str | None:
    """Return whether the lock agrees about the array at `path`; None where it does not say."""
    found = find_lock(plan.spec)
    if found is None:
        return None
    if isinstance(found, Diagnostic):
        return f"lock: {found.message}; {found.help}"
    if found.stale is not None:
        return f"lock: {found.stale.message}; {found.stale.help}"
    locked = next((t for t in found.layout.targets if t.name == plan.name), None)
    arrays = {array.path: array for array in locked.arrays} if locked else {}
    if path is None or path not in arrays:
        return None
    array, now = arrays[path], plan[path]
    if (array.partition, array.memory) == (now.partition_spec, now.memory_kind):
        return f"lock: {found.path} agrees"
    return (
        f"lock: {found.path} says {_answer_text(array)}: made by another shardspec; see"
        " `shardspec lock --check`"
    )


def _staleness(spec: ir.Spec, layout: layout_diff.Layout, path: str) -> Diagnostic | None:
    """Return which inputs are others than when the lock was made."""
    then = {each.name: each.digest for each in layout.inputs}
    now = {each.name: each.digest for each in layout_diff.inputs(spec, locked=layout.inputs)}
    changed = [name for name, digest in now.items() if then.get(name, digest) != digest]
    said = [
        *([f"{listed(changed)} changed"] if changed else []),
        *(f"{name} is new" for name in now if name not in then),
        *(f"{name} is gone" for name in then if name not in now),
    ]
    if not said:
        return None
    message = f"`{path}` is stale: {'; '.join(said)}"
    name = shlex.quote(spec.source.name)
    help = f"`shardspec lock --check {name}` shows what moved, `shardspec lock {name}` accepts it"
    return point(codes.STALE_LOCK, message, spec.source.whole, help=help)


# Proofs in a lock: what the real compiler made of a step, and whether it would be made again.
#
# A proof belongs to the files and arrays of the spec, to the code of the step, and to the versions
# of jax and of the compiler. All of these are there as digests and versions, so that a machine
# without a compiler, and without jax, can say which of them is another today. No code runs for it.


#: Returns the version of a package that is installed here, None where it is not.
Installed = Callable[[str], str | None]
#: Of packages that are installed into a project's folder: no code of the project.
_INSTALLED = frozenset(("site-packages", "dist-packages"))


def code_inputs(folder: str, lock_folder: str) -> tuple[layout_diff.Input, ...]:
    """Return the Python files below a folder that this process has imported, with their digests.

    Args:
      folder: where the module of the step was looked for.
      lock_folder: names are relative to it.
    """
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and _is_of(file, folder):
            name = os.path.relpath(file, lock_folder or os.curdir).replace(os.sep, "/")
            digest = _digest(file)
            if digest is not None:
                found[name] = layout_diff.Input(name, digest)
    return tuple(found[name] for name in sorted(found))


def _is_of(file: str, folder: str) -> bool:
    """Say whether a file is code of the project in a folder: below it, and not installed."""
    path, top = os.path.realpath(file), os.path.realpath(folder)
    here = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    others = (here, os.path.realpath(sysconfig.get_path("stdlib")))
    is_below = path.startswith(os.path.join(top, ""))
    is_other = any(path.startswith(os.path.join(each, "")) for each in others)
    return is_below and not is_other and not _INSTALLED & set(Path(path).parts)


def _digest(file: str) -> str | None:
    """Return the digest of a text, None where it cannot be read."""
    source = read_source(Path(file))
    return None if isinstance(source, Diagnostic) else layout_diff.text_digest(source.text)


def with_proofs(
    layout: layout_diff.Layout, proofs: dict[str, layout_diff.ProofLayout]
) -> layout_diff.Layout:
    """Return a layout that holds these proofs, by target, and no others."""
    targets = (replace(each, proof=proofs.get(each.name)) for each in layout.targets)
    return replace(layout, targets=tuple(targets))


def proofs_of(layout: layout_diff.Layout) -> dict[str, layout_diff.ProofLayout]:
    """Return the proofs that a layout holds, by target."""
    return {each.name: each.proof for each in layout.targets if each.proof is not None}


def changes(
    proof: layout_diff.ProofLayout,
    layout: layout_diff.Layout,
    lock_folder: str,
    installed: Installed,
    flags: Mapping[str, str],
) -> Iterator[str]:
    """Yield what of all that a proof belongs to is another today; nothing where it is as it was.

    What is not installed here is no other version: that is for the machine that proves.

    Args:
      flags: that compilers would have here, by the variable that they are in.
    """
    if proof.made_from != layout_diff.made_from(layout):
        yield "the spec or its arrays changed"
    today = {each.name: _digest(os.path.join(lock_folder, each.name)) for each in proof.code}
    gone = [each.name for each in proof.code if today[each.name] is None]
    changed = [each.name for each in proof.code if today[each.name] not in (None, each.digest)]
    if changed:
        yield f"{listed(changed)} changed"
    if gone:
        yield f"{listed(gone)} cannot be read"
    for name, version in proof.made_by:
        now = installed(name)
        if now not in (None, version):
            yield f"{name} was {version} and is {now}"
    had = {name: value for name, value in proof.flags if name.isupper()}
    for name in sorted(had.keys() | flags.keys()):
        was, now = had.get(name, "not set"), flags.get(name, "not set")
        if was != now:
            yield f"{name} was {was} and is {now}"


def is_provable(target: Target) -> bool:
    """Say whether there may be a compiler for the machine of a target."""
    hardware = target.hardware
    return hardware is not None and hardware.chip.platform in ("tpu", "gpu")
