"""A path or text -> one Spec: reads the file, what it extends, and its manifests.

Files that are no spec, or not in the spelling that their name says, are told before they are read:
read as what they are not, they would have a fault in every line. Readers of arrays stand above this
floor, so whoever loads hands in what reads a `manifest:`.

Of the bundled presets it knows what each is for, its rules, and which of them T5X's standard rules
are.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from shardspec import assets
from shardspec.diagnostics import Diagnostic, Excerpt, Fix, Label, SourceFile, Span, codes, point
from shardspec.diagnostics.diagnostic import sort_key
from shardspec.diagnostics.words import near_or_known, nearest, respelt
from shardspec.ir.spec import Arrays, AxisRule, DeriveRule, Params, Spec
from shardspec.language import files
from shardspec.language.files import Boundary, beside, boundary_of, is_revision, marked, real_path
from shardspec.language.layer import Layer, merge, spec_of
from shardspec.language.phases import Lowered, lowered, with_phases, with_roles
from shardspec.language.reading import Data, Reading, Route, SourceMap, looks_like_dsl, placed
from shardspec.language.sections import SECTIONS
from shardspec.language.settings import apply_settings, check_settings, is_refusal
from shardspec.language.validate import looks_like_spec

if TYPE_CHECKING:
    from shardspec.language.document import Document


_LOOKED_AT = 4096

_SCHEMA = re.compile(r'\A\s*\{.*?"schema"\s*:\s*"shardspec\.(\w+)/', re.DOTALL)
_SPEC = re.compile(r'"spec"\s*:\s*"([^"\\\n]+)"')
_LOCK = re.compile(r"^lock \d+, language \d+", re.MULTILINE)
_MANIFEST = re.compile(r"^[ \t]*+\{?[ \t]*+\"?shardspec-arrays\"?\s*+:", re.MULTILINE)
_KEY = rf"(?:{'|'.join(SECTIONS)})"
#: The first entry of a list of arrays without its header: `"a/kernel": bf16[4]`, or with keys.
_ARRAYS = re.compile(
    r"\A(?:[ \t]*(?:#.*|---)?\n)*[ \t]*(?:\{\s*)?"
    rf"(?![\"']?{_KEY}[\"']?\s*:)"
    r"(?:\"[^\"\n]+\"|'[^'\n]+'|[^\s\"'{}\[\],:#][^\"'\n:]*):\s*"
    r"(?:[\"']?[a-z]\w*\[[ \t]*(?:\d|\]|\w++=)|\{?\s*[\"']?(?:shape|dtype)[\"']?:)"
)
_MAXTEXT = re.compile(r"^logical_axis_rules[ \t]*+:", re.MULTILINE)
_YAML_LINE = re.compile(rf"\"?{_KEY}\"?\s*:(?:\s|$)")
_DSL_LINE = re.compile(
    r"shardspec[ \t]+\d"
    r"|(?:rules|params|derive|arrays|caches|activations|scan|mesh|step)[ \t]*\{"
    r"|target[ \t]+\S+[ \t]+on\b|mesh[ \t]+on\b|(?:axis|let)[ \t]+\S+[ \t]*=|extends[ \t]+[\w./]"
    r"|phase[ \t]+\S+[ \t]*\{"
)
_SAYS = {
    "baseline": "a baseline, as `shardspec check --write-baseline` writes it",
    "compile": "a plan, as `shardspec compile` writes it",
    "check": "what `shardspec check` found",
    "diff": "what `shardspec diff` found",
    "mesh": "a mesh, as `shardspec mesh` writes it",
}
_COMPARE = "`shardspec diff` compares it with another; a spec is what it was made from"


def mistaken(source: SourceFile, *, is_dsl: bool) -> Diagnostic | None:
    """Return why a text is not to be read as a spec in this spelling; None where it may be."""
    return _own_file(source) or _other_spelling(source, is_dsl)


Kind = Literal["spec", "list of arrays", "lock", "calibration", "baseline", "project file"]


def kind_of(source: SourceFile) -> Kind | None:
    """Return what a text is under its name: a spec, a list of arrays, a lock; None for all else."""
    start = source.text[:_LOOKED_AT]
    first = _first_line(start)
    schema = _SCHEMA.match(start)
    if schema is not None and schema[1] == "baseline":
        return "baseline"
    if _ARRAYS.match(start) or _MANIFEST.search(start):
        return "list of arrays"
    if _LOCK.search(start):
        return "lock"
    if _DSL_LINE.match(first):
        return None if source.name.endswith((".yaml", ".yml", ".json")) else "spec"
    is_yaml = looks_like_spec(source.text) or _YAML_LINE.match(start.lstrip("{ \t\r\n"))
    return "spec" if is_yaml and not source.name.endswith(".shard") else None


def _own_file(source: SourceFile) -> Diagnostic | None:
    start = source.text[:_LOOKED_AT]
    schema = _SCHEMA.match(start)
    has_arrays = _ARRAYS.match(start) is not None
    if not has_arrays and "shardspec" not in start:
        return _of_maxtext(source)
    if schema and not has_arrays:
        what = _SAYS.get(schema[1], f"output of `shardspec {schema[1]}`")
        named = _SPEC.search(start)
        help = f"name the spec that it is about{f': `{named[1]}`' if named else ''}"
    elif _LOCK.search(start) and not has_arrays:
        what, help = "a lock, as `shardspec lock` writes it", _COMPARE
    elif has_arrays or _MANIFEST.search(start):
        what = "a list of arrays"
        help = f"a spec names it: `manifest: ./{source.name.rpartition('/')[2]}`"
    else:
        return None
    return point(codes.OWN_FILE, f"`{source.name}` is {what}, and no spec", source.whole, help=help)


def _of_maxtext(source: SourceFile) -> Diagnostic | None:
    if _MAXTEXT.search(source.text) is None:
        return None
    message = f"`{source.name}` is a configuration of MaxText, and no spec"
    help = f"`shardspec import maxtext {source.name} -o spec.yaml` makes a spec of it"
    return point(codes.OWN_FILE, message, source.whole, help=help)


def _other_spelling(source: SourceFile, is_dsl: bool) -> Diagnostic | None:
    first = _first_line(source.text)
    if is_dsl and source.name.endswith(".shard") and _YAML_LINE.match(first):
        name = f"{source.name.removesuffix('.shard')}.yaml"
        message = f"`{source.name}` is YAML, and `.shard` is for the DSL"
    elif not is_dsl and source.name.endswith((".yaml", ".yml")) and _DSL_LINE.match(first):
        name = f"{source.name.rpartition('.')[0]}.shard"
        message = f"`{source.name}` is in the DSL, and not YAML"
    else:
        return None
    return point(codes.SYNTAX, message, source.whole, help=f"call it `{name}`")


def _first_line(text: str) -> str:
    """Return the first line of substance."""
    for line in text[:_LOOKED_AT].splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "---")):
            return line.strip()
    return ""


SPEC_SUFFIXES = (".yaml", ".yml", ".shard", ".json")
_DEEPEST = 32
#: What one spec may read, all that it extends and its manifests included.
_MOST_FILES = 1000
_MOST_CHARACTERS = 256 * 2**20
#: A file with more faults than this is not mended key by key.
_MOST_MENDED = 100


class ArrayReader(Protocol):
    """What reads the files that `manifest:` names: the package `shardspec.arrays` does."""

    def names_path(self, name: str, /) -> bool:
        """Say whether an entry is a path or a function, not a bundled name."""

    def read_named(
        self, name: str, path: str, excerpt: Excerpt, boundary: Boundary, /
    ) -> tuple[Arrays, tuple[Diagnostic, ...]]:
        """Return the arrays of an entry, and the faults of it."""

    def read_manifest(self, source: SourceFile, /) -> tuple[Params, tuple[Diagnostic, ...]]:
        """Return the arrays that a text lists, and the faults in it."""


class File(NamedTuple):
    """A file to load: its text, and where relative names in it start from.

    Attributes:
      identity: equal for two ways to name one file; tells circles.
      is_at_revision: whether it came by `git:`, and so what it names relatively.
    """

    source: SourceFile
    folder: str
    identity: str
    is_dsl: bool = False
    is_at_revision: bool = False


class LoadOptions(NamedTuple):
    """What counts beside the files that are read.

    Attributes:
      settings: what-ifs, route to value: `{"mesh.model": "8"}`; they beat the file.
      arrays: what reads the files that `manifest:` names; without it they are left unread.
      texts: by real path, what counts in place of what a file holds: edits not yet written.
      folders: those that a person has open together, without links: they are one project.
      readings: takes what is read of the files, in the order that they are read in.
    """

    settings: Mapping[str, str] = MappingProxyType({})
    arrays: ArrayReader | None = None
    texts: Mapping[str, str] = MappingProxyType({})
    folders: tuple[str, ...] = ()
    readings: list[Reading] | None = None


_NOTHING = LoadOptions()


@dataclass(slots=True)
class _Loading:
    """One run: everything read so far, and what was wrong with it.

    Attributes:
      layers: by identity of the file, in the order they are merged. What two documents extend
        counts once, where it is named first.
      tried: the identities of all files that were opened, readable or not.
      opened, characters: how many files were named so far, and how long the texts read are.
      is_step: whether only the step of what is read counts.
      unset: the data of the first document before the settings.
    """

    boundary: Boundary
    options: LoadOptions
    unset: Data = None
    is_step: bool = False
    is_whole: bool = True
    diagnostics: list[Diagnostic] = field(default_factory=list)
    sources: list[SourceFile] = field(default_factory=list)
    layers: dict[str, Layer] = field(default_factory=dict)
    maps: list[SourceMap] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    opened: int = 0
    characters: int = 0


def load_path(
    path: str, options: LoadOptions = _NOTHING
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec in the file at `path` (`-` is stdin), and every fault found."""
    text = options.texts.get(real_path(path)) if options.texts else None
    edited = None if text is None else marked(SourceFile(path, text), boundary_of(path), path)
    source = edited or files.read_argument(path)
    if isinstance(source, Diagnostic):
        return None, (source,)
    folder = os.path.dirname(path) if path != "-" else ""
    is_dsl = path.endswith(".shard") or (path == "-" and looks_like_dsl(source.text))
    return load_file(File(source, folder, real_path(path), is_dsl, is_revision(path)), options)


def load_text(
    text: str, name: str = "<string>", options: LoadOptions = _NOTHING
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec in `text`, YAML or DSL; relative names start from this folder."""
    is_dsl = name.endswith(".shard") or looks_like_dsl(text)
    return load_file(File(SourceFile(name, text), "", name, is_dsl), options)


def load_file(
    file: File, options: LoadOptions = _NOTHING
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec in `file` with everything it extends, in one pass over all faults."""
    boundary = boundary_of(file.source.name)._replace(others=options.folders)
    loading = _Loading(boundary, options)
    if not _add_layers(file, (), loading):
        return None, _in_order(loading.diagnostics, loading.maps)
    layer, misplaced = merge(loading.layers.values())
    spec, faults = spec_of(with_roles(layer), tuple(loading.sources))
    spec, of_phases = with_phases(spec, layer)
    parents = [each for name, each in loading.layers.items() if name != file.identity]
    unfounded = check_settings(options.settings, loading.unset, layer, spec, parents)
    faults = (*loading.diagnostics, *misplaced, *faults, *of_phases, *unfounded)
    found = _in_order(faults, loading.maps)
    if options.settings and any(map(is_refusal, found)):
        spec = spec.everywhere(_unsound)
    return spec if loading.is_whole else replace(spec, is_whole=False), found


def _unsound(spec: Spec) -> Spec:
    return replace(spec, targets=tuple(replace(each, is_sound=False) for each in spec.targets))


def read(
    file: File, *, with_comments: bool = False
) -> tuple[Reading | None, tuple[Diagnostic, ...]]:
    """Return what the reader for the file's spelling makes of it."""
    fault = mistaken(file.source, is_dsl=file.is_dsl)
    if fault is not None:
        return None, (fault,)
    if file.is_dsl:
        from shardspec.language.dsl_text.reader import read_dsl

        return read_dsl(file.source)
    from shardspec.language.yaml_text.reader import read_yaml

    return read_yaml(file.source, with_comments=with_comments)


def _in_order(
    diagnostics: Sequence[Diagnostic], maps: Iterable[SourceMap]
) -> tuple[Diagnostic, ...]:
    """Return diagnostics in reading order; a word that YAML misreads has no further faults.

    Of a value that was torn at its commas, what is wrong with all of it alone is reported: quotes
    would not help.
    """
    moot = set(_moot(diagnostics))
    traps = (d.primary for d in diagnostics if d.code is codes.YAML_TRAP)
    trapped = {label.span for label in traps if label}
    kept = (
        d
        for d in diagnostics
        if d not in moot
        and (d.code is codes.YAML_TRAP or d.primary is None or d.primary.span not in trapped)
    )
    return tuple(dict.fromkeys(sorted(placed(kept, maps=maps), key=sort_key)))


def _moot(diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Yield the faults whose sure fix writes anew what another fault finds wrong."""
    before: Diagnostic | None = None
    by_place = sorted((each for each in diagnostics if each.primary), key=_outermost)
    for each in by_place:
        if before is not None and _is_within(each, before):
            yield before
        before = each if _is_rewritten(each) else None


def _outermost(fault: Diagnostic) -> tuple[str, int, int, bool]:
    assert fault.primary is not None
    span = fault.primary.span
    return span.source.name, span.start, -span.end, not _is_rewritten(fault)


def _is_rewritten(fault: Diagnostic) -> bool:
    """Say whether a fault of spelling is mended by other words for all that it is about."""
    if fault.code is not codes.SYNTAX or fault.fix is None or fault.primary is None:
        return False
    return fault.fix.is_sure and [edit.span for edit in fault.fix.edits] == [fault.primary.span]


def _is_within(fault: Diagnostic, other: Diagnostic) -> bool:
    assert fault.primary is not None
    assert other.primary is not None
    inner, outer = fault.primary.span, other.primary.span
    return inner.source is outer.source and inner.end <= outer.end and fault != other


def _add_layers(file: File, above: tuple[str, ...], loading: _Loading) -> bool:
    """Add the layers of all that the file extends, then its own; say whether it can be read."""
    loading.sources.append(file.source)
    loading.characters += len(file.source.text)
    loading.tried.add(file.identity)
    document, own, source_map = _lowered(file, loading, is_first=not above)
    if document is None or source_map is None:
        return False
    if loading.options.arrays is not None:
        params = _manifests(document.manifest, file, source_map, loading, loading.options.arrays)
        own = own._replace(params=params)
    for name, index in _allowed(document.extends, "extends", source_map, loading):
        excerpt = _item(source_map, "extends", index)
        _add_parent(name, excerpt, file, (*above, file.identity), loading)
    if document.step is not None and document.step.extends is not None:
        excerpt = source_map.value(("step", "extends"))
        path = (*above, file.identity)
        _add_parent(document.step.extends, excerpt, file, path, loading, "steps")
    loading.layers[file.identity] = own
    return True


def _lowered(
    file: File, loading: _Loading, *, is_first: bool
) -> tuple[Document | None, Layer, SourceMap | None]:
    """Return what a file says itself; no document where it cannot be read.

    Of a file outside the project, faults are all or nothing: what it says may show in others.
    """
    reading, found = read(file)
    faults = [*(map(_with_fix, found) if len(found) <= _MOST_MENDED else found)]
    document, layer = None, Layer(file.source)
    if reading is not None:
        if loading.options.readings is not None:
            loading.options.readings.append(reading)
        loading.is_whole &= reading.is_whole
        if loading.options.settings and is_first:
            loading.unset = reading.data
            reading, found = apply_settings(reading, loading.options.settings)
            faults += found
        made = lowered(reading)
        document, layer = made.valids[0][0].document, made.layer
        faults += (*made.shape, *made.lost)
        layer = layer._replace(phases=tuple(_with_steps(made, file, loading)))
        layer = _calibrated(layer, file, loading, faults)
    if faults and file.source.is_outside:
        shown_by = f"shardspec check {real_path(file.source.name)}"
        loading.diagnostics += files.veiled(faults, shown_by)
        loading.is_whole = False
        return None, layer, None
    emptied = _emptied(layer, faults)
    loading.diagnostics += placed(faults, emptied)
    if reading is None:
        return document, layer, None
    loading.maps.append(reading.source_map)
    return document, layer, reading.source_map


def _calibrated(layer: Layer, file: File, loading: _Loading, faults: list[Diagnostic]) -> Layer:
    """Return a layer whose machines are as fast as the files say that they name behind `by`."""
    phases = [(name, _calibrated(each, file, loading, faults)) for name, each in layer.phases]
    if not any(target.by for target in layer.targets):
        return layer._replace(phases=tuple(phases))

    def read(named: Excerpt) -> SourceFile | Diagnostic:
        path = _path(named.text, file)
        if not is_revision(path) and not loading.boundary.holds(path):
            help = "copy it into the project: a spec names no measurements outside of it"
            return point(codes.BAD_CALIBRATION, "it is outside the project", named.span, help=help)
        found = _read(path, loading)
        if isinstance(found, SourceFile):
            loading.sources.append(replace(found, included_from=named.span))
        return found

    from shardspec.language.calibration import calibrated  # few specs name measurements

    targets = calibrated(layer.targets, read, faults)
    return layer._replace(phases=tuple(phases), targets=targets)


def _with_steps(made: Lowered, file: File, loading: _Loading) -> Iterator[tuple[str, Layer]]:
    """Yield the phases of a file, each over the step that its `step:` extends."""
    for (name, layer), (valid, source_map) in zip(made.layer.phases, made.valids[1:], strict=True):
        step = valid.document.step
        if step is None or step.extends is None or loading.is_step:
            yield name, layer
            continue
        inner = _Loading(loading.boundary, LoadOptions(texts=loading.options.texts), is_step=True)
        excerpt = source_map.value(("step", "extends"))
        _add_parent(step.extends, excerpt, file, (file.identity,), inner, "steps")
        loading.sources += inner.sources
        loading.characters += inner.characters
        loading.diagnostics += inner.diagnostics
        parents = merge(inner.layers.values())[0].step if inner.layers else ()
        yield name, layer._replace(step=tuple((dict(parents) | dict(layer.step)).items()))


def _emptied(layer: Layer, faults: Sequence[Diagnostic]) -> frozenset[str]:
    """Return the sections of a document of which nothing is left: a fault there took all.

    A rule that cannot be read leaves `none` for its axes, at the place of its fault.
    """
    if not faults:
        return frozenset()
    places = [fault.primary.span for fault in faults if fault.primary is not None]
    left = {key: getattr(layer, key) for key in ("axes", "overrides", "arrays", "targets")}
    left |= {key: layer.of(key) for key in ("params", "derive")}
    left["rules"] = any(not _touches(each.rule.span, places) for each in layer.rules)
    return frozenset(section for section, entries in left.items() if not entries)


def _touches(span: Span | None, places: Iterable[Span]) -> bool:
    return span is not None and any(p.start <= span.end and span.start <= p.end for p in places)


def _allowed(
    names: list[str], section: str, source_map: SourceMap, loading: _Loading
) -> list[tuple[str, int]]:
    """Return each name once, with its place in the list; none where there is no room for them."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        first.setdefault(name, index)
    loading.opened += len(first)
    is_long = loading.characters > _MOST_CHARACTERS
    if not first or (loading.opened <= _MOST_FILES and not is_long):
        return [*first.items()]
    most = f"{_MOST_CHARACTERS >> 20} MiB of text" if is_long else f"{_MOST_FILES:,} files"
    message = f"the spec reads more than {most}, with all that it extends"
    span = source_map.key((section,)).span
    help = "put them into fewer files"
    loading.diagnostics.append(point(codes.TOO_DEEP, message, span, help=help))
    return []


def _with_fix(fault: Diagnostic) -> Diagnostic:
    """Return the fault of a second key with the edit that takes it out."""
    if fault.code is not codes.DUPLICATE_KEY or fault.primary is None:
        return fault
    from shardspec.language.removal import without_key

    edit = without_key(fault.primary.span)
    return fault if edit is None else replace(fault, fix=Fix("remove the second", (edit,)))


def _item(source_map: SourceMap, section: str, index: int) -> Excerpt:
    """Return item `index` of a list that may be written as one string."""
    route: Route = (section, index)
    return source_map.value(route if route in source_map.values else (section,))


def _add_parent(
    name: str,
    excerpt: Excerpt,
    child: File,
    above: tuple[str, ...],
    loading: _Loading,
    kind: assets.SpecKind = "presets",
) -> None:
    if _names_file(name) and real_path(_path(name, child)) in loading.tried.difference(above):
        return  # told unread
    parent = _find(name, excerpt, child, kind, loading)
    if isinstance(parent, Diagnostic):
        loading.diagnostics.append(parent)
    elif parent.identity in above:
        loading.diagnostics.append(_cycle(parent, excerpt.span, child))
    elif len(above) > _DEEPEST:
        loading.diagnostics.append(_too_deep(parent, excerpt.span))
    elif parent.identity not in loading.tried:
        _add_layers(parent, above, loading)


def _cycle(parent: File, span: Span, child: File) -> Diagnostic:
    labels = [Label(span, f"{parent.source.name} leads back here")]
    pulled = child.source.included_from
    if pulled is not None:
        labels.append(Label(pulled, "this file is pulled in here", primary=False))
    message = f"`{child.source.name}` extends itself through `{parent.source.name}`"
    return Diagnostic(codes.PRESET_CYCLE, message, tuple(labels), help="remove one of the two")


def _too_deep(parent: File, span: Span) -> Diagnostic:
    chain = f"spec {_DEEPEST + 2} in a chain of `extends`; {_DEEPEST + 1} is the most"
    help = "name it further up: a spec may extend several, `extends: [./a.yaml, ./b.yaml]`"
    message = f"`{parent.source.name}` would be {chain}"
    return point(codes.TOO_DEEP, message, span, "named here", help=help)


def _manifests(
    names: list[str], file: File, source_map: SourceMap, loading: _Loading, arrays: ArrayReader
) -> Params:
    params: list[Any] = []
    for name, index in _allowed(names, "manifest", source_map, loading):
        excerpt = _item(source_map, "manifest", index)
        path = _path(name, file)
        is_edited = real_path(path) in loading.options.texts
        if arrays.names_path(name) and not (is_edited or is_revision(path) or is_revision(name)):
            named, faults = arrays.read_named(name, path, excerpt, loading.boundary)
            loading.sources += named.sources
            loading.characters += sum(len(source.text) for source in named.sources)
            loading.diagnostics += faults
            params += named.params
            continue
        found = _find(name, excerpt, file, "arrays", loading)
        if isinstance(found, Diagnostic):
            loading.diagnostics.append(found)
            continue
        loading.sources.append(found.source)
        listed_here, faults = arrays.read_manifest(found.source)
        params += listed_here
        loading.diagnostics += faults
    return tuple(params)


def _names_file(name: str) -> bool:
    return name.endswith(SPEC_SUFFIXES) or name.startswith(("./", "../", "/"))


def _path(name: str, child: File) -> str:
    """Return where the file is that `child` calls `name`, seen from this folder.

    Only what came by `git:` leads to a name that `git:` starts; a file of such a name has `./`.
    """
    if child.is_at_revision and not os.path.isabs(name):
        return name if is_revision(name) else beside(child.source.name, name)
    path = os.path.normpath(os.path.join(child.folder, name))
    return os.path.join(os.curdir, path) if is_revision(path) else path


def _find(
    name: str, excerpt: Excerpt, child: File, kind: assets.SpecKind, loading: _Loading
) -> File | Diagnostic:
    """Return the file that `extends:` or `manifest:` names: a relative path, or a bundled name."""
    if is_revision(name) and not child.is_at_revision:
        return files.git_in_a_file(excerpt)
    if _names_file(name) or is_revision(name):
        path = _path(name, child)
        source = _read(path, loading)
        if isinstance(source, Diagnostic):
            is_shown = not source.labels or loading.boundary.holds(path)
            why = source.message if is_shown else f"`{path}` is not UTF-8"
            return point(codes.UNKNOWN_PRESET, why, excerpt.span, "named here", help=source.help)
        source = replace(source, name=path, included_from=excerpt.span)
        is_dsl, folder = path.endswith(".shard"), os.path.dirname(path)
        return File(source, folder, real_path(path), is_dsl, is_revision(path))
    found = assets.spec_path(kind, name)
    if found is None:
        return _unknown(name, excerpt, kind, child.folder)
    label = {"presets": "preset", "steps": "step"}.get(kind, kind)
    text = found.read_text(encoding="utf-8")
    source = SourceFile(f"{label}:{name}", text, excerpt.span)
    return File(source, str(found.parent), str(found), found.suffix == ".shard")


def _read(path: str, loading: _Loading) -> SourceFile | Diagnostic:
    """Return the text of a file that another one names, with the edits not yet written."""
    if is_revision(path):
        return files.read_argument(path)
    texts = loading.options.texts
    text = texts.get(real_path(path)) if texts else None
    source = files.read_source(Path(path), name=path) if text is None else SourceFile(path, text)
    return source if isinstance(source, Diagnostic) else marked(source, loading.boundary, path)


def _unknown(name: str, excerpt: Excerpt, kind: assets.SpecKind, folder: str) -> Diagnostic:
    """Return the fault of a name that is no bundled one, with the file that may be meant."""
    known = assets.spec_names(kind)
    what = {"presets": "preset", "steps": "bundled step"}.get(kind, "bundled manifest")
    form = "./arrays.json" if kind == "arrays" else "./base.yaml"
    near = near_or_known(name, known, kind, f"`shardspec explain --list {kind}` shows all")
    help, fix = f"{near}\na file needs its suffix: `{form}`", respelt([excerpt.span], name, known)
    file = _file_meant(name, folder)
    if file is not None:
        help, fix = f"did you mean the file `./{file}`?", None
    message = f"no {what} is called `{name}`"
    return point(codes.UNKNOWN_PRESET, message, excerpt.span, help=help, fix=fix)


def _file_meant(name: str, folder: str) -> str | None:
    """Return the file beside a spec that has this name but for the suffix, or nearly so."""
    try:
        beside = [each for each in os.listdir(folder or ".") if each.endswith(SPEC_SUFFIXES)]
    except (OSError, ValueError):
        return None
    stems = (each for each in beside if os.path.splitext(each)[0] == name)
    has_suffix = bool(os.path.splitext(name)[1])
    near = nearest(name, beside) if has_suffix else []
    return next(stems, None) or next(iter(near), None)


#: (activation, parameter) partitioning dims of T5X's `standard_logical_axis_rules` -> its preset.
T5X_PRESETS = {
    (1, 1): "t5x/1d",
    (2, 1): "t5x/activations-2d",
    (1, 2): "t5x/parameters-2d",
    (2, 2): "t5x/2d",
}


@cache
def preset_rules(name: str) -> tuple[AxisRule, ...]:
    """Return the rules of a preset, first to last."""
    spec, _ = load_text(f"extends: {name}\n")
    assert spec is not None, "presets load"
    return spec.axis_rules


@cache
def known_derives() -> tuple[tuple[str, DeriveRule], ...]:
    """Return the entries of `derive:` that presets have, each with the name of its preset."""
    names = [name for name in assets.spec_names("presets") if name.startswith("derive/")]
    loaded = [(name, load_text(f"extends: {name}\n")[0]) for name in names]
    return tuple((name, rule) for name, spec in loaded if spec for rule in spec.derives)


def bundled_doc(kind: assets.SpecKind, name: str) -> str:
    """Return the one line that a bundled spec says about itself; "" where it says none."""
    from shardspec.language.yaml_text.reader import read_yaml

    path = assets.spec_path(kind, name)
    if path is None:
        return ""
    source = SourceFile(f"{kind}:{name}", path.read_text(encoding="utf-8"))
    reading, _ = read_yaml(source, with_comments=False)
    data = reading.data if reading else None
    doc = data.get("doc") if isinstance(data, dict) else None
    return doc if isinstance(doc, str) else ""
