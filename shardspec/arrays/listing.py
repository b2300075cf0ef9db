"""Manifests, read and written: files that list the arrays of a model, as JSON or YAML.

Either `{path: type}` alone, or under `arrays:` beside `shardspec-arrays: 1` with a `doc` and
the `source` of the figures. A type is `bf16[4096, 512]`, or `{shape: [4096, 512], dtype: bf16}`.
Paths may hold ranges: `layers_{0..23}/kernel`.

A path -> the arrays there: finds out what it is, and asks the reader of that format.

A function (`package.module:function`) is refused here. To check a spec that came from somewhere
else must stay safe, so only the person at the command line may ask for code to be run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from shardspec.arrays import reading
from shardspec.arrays.reading import LISTING, MOST_ARRAYS, Kind, Outcome, foreign, refused, unsafe
from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, codes, point, words
from shardspec.diagnostics.diagnostic import printable_json
from shardspec.diagnostics.words import by_key, collapsed, counted, listed, natural, template
from shardspec.ir.spec import Arrays, Param, Params, dtype_name
from shardspec.language import files
from shardspec.language.files import Boundary, veiled
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import ArrayType, SyntaxFault
from shardspec.language.layer import countable, distinct, unknown_dtype
from shardspec.language.reading import Route, SourceMap, is_dsl
from shardspec.versions import MANIFEST

_HEADER = "shardspec-arrays"
_HEADER_KEYS = (_HEADER, "doc", "source", "parameters", "arrays")
_ENTRY_KEYS = dict.fromkeys(("shape", "dtype", "axes"))

_NO_SPEC = "name a checkpoint or a manifest"
_DSL_VERSION = re.compile(r"(?:\s++|#[^\n]*\n)*+(shardspec\s+[0-9]+)")
_HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_MINIMAL = 'a manifest maps paths to arrays: `"decoder/wi/kernel": bf16[4096, 512]`'


def read_manifest(source: SourceFile) -> tuple[Params, tuple[Diagnostic, ...]]:
    """Return the arrays that `source` lists, and what in it is no array."""
    version = _DSL_VERSION.match(source.text) if is_dsl(source) else None
    if version or source.name.endswith(".shard"):
        message = f"`{source.name}` is a spec, not a list of arrays"
        place = Span(source, *version.span(1)) if version else source.whole
        return (), (point(codes.BAD_MANIFEST, message, place, help=_NO_SPEC),)
    if source.text.lstrip()[:1] == "{":
        data, source_map, diagnostics = _read_json(source)
    else:
        from shardspec.language.yaml_text.reader import read_yaml

        reading, faults = read_yaml(source, with_comments=False, minimal=_MINIMAL)
        if reading is None:
            return (), faults
        data, source_map, diagnostics = reading.data, reading.source_map, list(faults)
    if _is_spec(data):
        return (), (_spec_fault(data, source_map),)
    route: Route = ()
    if isinstance(data, dict) and _HEADER in data:
        diagnostics += _unknown_keys(data, (), _HEADER_KEYS, source_map)
        diagnostics += _wrong_version(data[_HEADER], source_map)
        data, route = data.get("arrays"), ("arrays",)
    if not isinstance(data, dict):
        if not diagnostics:
            diagnostics.append(_fault("a manifest maps paths to arrays", source.whole))
        return (), tuple(diagnostics)
    params = tuple(_params(data, route, source_map, diagnostics))
    return params, tuple(diagnostics)


def _wrong_version(version: Any, source_map: SourceMap) -> Iterator[Diagnostic]:
    """Yield a fault where a manifest states another version than the one that is read."""
    if version is True or version != MANIFEST:
        message = (
            f"`{_HEADER}: {version!r:.20}`: this shardspec reads manifests of version {MANIFEST}"
        )
        help = f"write `{_HEADER}: {MANIFEST}`, or install a shardspec that reads it"
        place = source_map.key((_HEADER,)).span
        yield point(codes.BAD_MANIFEST, message, place, "another version", help=help)


def _is_spec(data: Any) -> bool:
    """Say whether this is a spec: its version, or two of its sections, none of them an array."""
    if not isinstance(data, dict) or _HEADER in data:
        return False
    return isinstance(data.get("shardspec"), int) or len(_sections(data)) > 1


def _sections(data: dict[str, Any]) -> list[str]:
    """Return the keys of a spec that stand here and hold neither the type nor the shape of one."""
    from shardspec.language.validate import fields_at

    kept = (key for key in fields_at(()) if isinstance(data.get(key), dict | list))
    return [key for key in kept if "shape" not in data[key]]


def _spec_fault(data: dict[str, Any], source_map: SourceMap) -> Diagnostic:
    key = next(iter(["shardspec"] if "shardspec" in data else _sections(data)))
    message = f"`{source_map.source.name}` is a spec, not a list of arrays"
    span, label = source_map.key((key,)).span, f"`{key}` is a key of specs"
    help = _NO_SPEC
    if isinstance(data.get("arrays"), dict):
        help += "; what stands under `arrays:`, with sizes as numbers, is one in a file of its own"
    return point(codes.BAD_MANIFEST, message, span, label, help=help)


def _fault(message: str, span: Span) -> Diagnostic:
    help = 'an array is `"path": bf16[4096, 512]` or `{"shape": [4096, 512], "dtype": "bf16"}`'
    return point(codes.BAD_MANIFEST, message, span, help=help)


def _read_json(source: SourceFile) -> tuple[Any, SourceMap, list[Diagnostic]]:
    """Return the data of a JSON file; keys have spans, found by their text."""
    twice: list[str] = []
    data: Any = None
    span = source.whole
    try:
        data, why = reading.loaded_json(source.text, twice), ""
    except json.JSONDecodeError as error:
        at, end = error.pos, len(source.text)
        span = Span(source, min(at, end), min(at + 1, end))
        why = f"{error.msg[0].lower()}{error.msg[1:]}"
    except (RecursionError, ValueError) as error:
        why = "brackets are nested too deep" if isinstance(error, RecursionError) else str(error)
    diagnostics = [_repeated(key, source) for key in twice]
    if why:
        diagnostics.append(point(codes.SYNTAX, f"not JSON: {why}", span))
        return None, SourceMap(source), diagnostics
    if "\\u" in source.text and not reading.is_text(data):
        half = _HALF.search(source.text)
        place = source.whole if half is None else Span(source, *half.span())
        message = "a name in it is no text: half of a surrogate pair"
        return None, SourceMap(source), [point(codes.SYNTAX, message, place)]
    route: Route = ("arrays",) if isinstance(data, dict) and _HEADER in data else ()
    paths = data.get("arrays") if route else data
    keys = dict(_keys(paths, route, source)) if isinstance(paths, dict) else {}
    if route:
        keys |= _keys(data, (), source)
    return data, SourceMap(source, keys, keys), diagnostics


def _keys(
    paths: Iterable[str], route: Route, source: SourceFile
) -> Iterator[tuple[Route, Excerpt]]:
    """Yield the place of each key, found by its text: keys stand in order, so one pass will do."""
    text, at = source.text, 0
    for path in paths:
        found = text.find(f'"{path}"', at)
        if found >= 0:
            at = found + len(path) + 2
            yield (*route, path), Excerpt(path, Span(source, found + 1, at - 1), found + 1)


def _repeated(twice: str, source: SourceFile) -> Diagnostic:
    at = source.text.rfind(f'"{twice}"')
    span = Span(source, at, at + len(twice) + 2) if at >= 0 else source.whole
    return point(codes.DUPLICATE_KEY, f"`{twice}` is given twice", span)


def _params(
    data: dict[str, Any], route: Route, source_map: SourceMap, diagnostics: list[Diagnostic]
) -> Iterator[Param]:
    from shardspec.language.glob import expand

    count = 0
    for path, entry in data.items():
        here = (*route, path)
        key = source_map.key(here)
        if isinstance(entry, dict) and "shape" in entry and entry.keys() - _ENTRY_KEYS:
            diagnostics += _unknown_keys(entry, here, _ENTRY_KEYS, source_map)
            continue
        template = _template(path, entry, key)
        if isinstance(template, SyntaxFault):
            value = source_map.value(here)
            exact = value if value.text == entry else Excerpt(entry, key.span)
            template = template.diagnostic(exact)
        if isinstance(template, Diagnostic):
            diagnostics.append(template)
            continue
        paths = expand(path) if "{" in path else (path,)
        if isinstance(paths, SyntaxFault):
            diagnostics.append(paths.diagnostic(key))
            continue
        count += len(paths)
        if count > MOST_ARRAYS:
            message = f"this entry makes it {count:,} arrays"
            help = f"a manifest may list {MOST_ARRAYS:,}; what comes after is not read"
            diagnostics.append(point(codes.BAD_MANIFEST, message, key.span, help=help))
            return
        if paths == (path,):
            yield template
            continue
        for each in paths:
            yield Param(each, template.shape, template.dtype, template.logical_axes, template.span)


def _unknown_keys(
    data: dict[str, Any], route: Route, known: Collection[str], source_map: SourceMap
) -> list[Diagnostic]:
    """Return a fault for each key of a manifest's header or entry that means nothing there."""
    inside = f" in `{route[-1]}`" if route else ""
    return [
        point(
            codes.UNKNOWN_KEY,
            f"unknown key `{key}`{inside}",
            source_map.key((*route, key)).span,
            "means nothing here",
            help=words.near_or_known(key, known),
        )
        for key in data
        if key not in known
    ]


def _template(path: str, entry: Any, key: Excerpt) -> Param | Diagnostic | SyntaxFault:
    """Return the array of one entry, its path not yet expanded."""
    if isinstance(entry, str):
        parsed = expressions.parse_array_type(entry)
        return parsed if isinstance(parsed, SyntaxFault) else _typed(path, parsed, key)
    if not isinstance(entry, dict) or "shape" not in entry:
        return _fault(f"`{path}` is no array", key.span)
    if "dtype" not in entry:
        return _fault(f"`{path}` lacks `dtype`", key.span)
    shape, dtype = entry["shape"], entry["dtype"]
    if not isinstance(shape, list) or {*map(type, shape)} - {int} or min(shape, default=0) < 0:
        return _fault(f"`{path}`: `shape` should be a list of sizes", key.span)
    name = dtype_name(dtype) if isinstance(dtype, str) else None
    if name is None:
        return unknown_dtype(str(dtype), key.span)
    axes = entry.get("axes")
    if axes is None:
        return Param(path, tuple(shape), name, None, key.span)
    names = tuple(axes.split()) if isinstance(axes, str) else axes
    if not isinstance(names, list | tuple) or not all(isinstance(a, str | None) for a in names):
        return _fault(f"`{path}`: `axes` should be names", key.span)
    if len(names) != len(shape):
        counts = f"{counted(len(names), 'name')} for {counted(len(shape), 'dimension')}"
        return _fault(f"`{path}`: `axes` has {counts}", key.span)
    own = tuple(None if axis == "_" else axis for axis in names)
    return Param(path, tuple(shape), name, own, key.span)


def _typed(path: str, parsed: ArrayType, key: Excerpt) -> Param | Diagnostic:
    """Return the array of a type whose sizes are all numbers."""
    dtype = dtype_name(parsed.dtype.text)
    if dtype is None:
        return unknown_dtype(parsed.dtype.text, key.span)
    shape = []
    for dim in parsed.dims:
        size = dim.size.value(lambda axis: None) if dim.size else None
        if size is None or size < 0:
            return _fault(f"`{path}`: a manifest states every size as a number", key.span)
        shape.append(size)
    names = tuple(dim.name.text if dim.name else None for dim in parsed.dims)
    return Param(path, tuple(shape), dtype, names if any(names) else None, key.span)


# Arrays as a manifest: the names, shapes and dtypes of a checkpoint in a file for git.
#
# YAML has one line for all layers that differ in their numbers alone, `layers.{0..79}.mlp.up`;
# JSON has one for each array. Both read back as the same arrays.


#: What a path must not hold: braces are ranges in a manifest.
UNWRITABLE = "{}"


def manifest_json(params: Params, source: str) -> str:
    """Return the manifest as JSON, one array a line, and its line break."""
    arrays = {param.path: array_type(param) for param in params}
    data = {"shardspec-arrays": MANIFEST, **_head(params, source), "arrays": arrays}
    return printable_json(json.dumps(data, indent=1, ensure_ascii=False)) + "\n"


def manifest_yaml(params: Params, source: str) -> str:
    """Return the manifest as YAML, layers as ranges, and its line break."""
    head = {"shardspec-arrays": MANIFEST, **_head(params, source)}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    if not params:
        return "\n".join((*lines, "arrays: {}")) + "\n"
    entries = (f"  {_quoted(path)}: {kind}" for path, kind in array_entries(params))
    return "\n".join((*lines, "arrays:", *entries)) + "\n"


def array_type(param: Param) -> str:
    """Return the type of an array with the names it carries.

    >>> array_type(Param("k", (4, 8), "bf16", ("embed", None)))
    'bf16[embed=4 _=8]'
    """
    if param.logical_axes is None:
        return str(param)
    dims = zip(param.logical_axes, param.shape, strict=True)
    inside = " ".join(f"{axis or '_'}={size}" for axis, size in dims)
    return f"{param.dtype}[{inside}]"


def _head(params: Params, source: str) -> dict[str, str | int]:
    return {"source": source, "parameters": sum(param.element_count for param in params)}


def array_entries(params: Params) -> Iterator[tuple[str, str]]:
    """Yield a glob and its type for all arrays, in the order of their first ones."""
    named = (((template(param.path), array_type(param)), param.path) for param in params)
    for (_, kind), paths in by_key(named).items():
        glob = collapsed(paths)
        for path in paths if glob is None else (glob,):
            yield path, kind


def _quoted(path: str) -> str:
    """Return a path as a YAML key: JSON's escapes are YAML's, of characters below U+10000."""
    return json.dumps(path, ensure_ascii=not path.isprintable())


_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def is_entry_point(name: str) -> bool:
    """Say whether `name` is `package.module:function`, and no file that happens to be called so.

    >>> is_entry_point("models.gpt:init"), is_entry_point("./gpt.json")
    (True, False)
    """
    return spells_entry_point(name) and not os.path.lexists(name)


def spells_entry_point(name: str) -> bool:
    """Say whether `name` has the form `package.module:function`."""
    return _ENTRY_POINT.fullmatch(name) is not None


def read_arrays(
    path: str, included_from: Span | None = None, boundary: Boundary | None = None
) -> Outcome:
    """Return the arrays of a manifest, a checkpoint or a folder of one (`-` is standard input).

    No weights are read, and nothing in a file is run. A file at fault has no arrays, except
    that sound entries of a manifest stay.

    Args:
      included_from: the entry of a spec that names the path; None where a person names it.
      boundary: of whose project; None for that of the file itself.
    """
    if is_entry_point(path):
        return refused(entry_point_refused(path))
    try:
        arrays, faults = _read(path, included_from, boundary or files.boundary_of(path))
    except (OSError, ValueError) as fault:
        return refused(_unreadable(path, fault))
    params, twice = distinct(arrays.params, f" of `{path}`")
    params, too_large = countable(params)
    return arrays._replace(params=params), (*faults, *twice, *too_large)


def _read(path: str, included_from: Span | None, boundary: Boundary) -> Outcome:
    place, name = path, path
    if os.path.isdir(path):
        found = arrays_in(path, path)
        if isinstance(found, Diagnostic):
            return refused(found)
        place, name = found
    if os.path.isdir(place):
        return _folder(place, name)
    kind: Kind | Diagnostic = LISTING
    if place != "-" and os.path.isfile(place):
        kind = reading.kind_at(place, name)
    if isinstance(kind, Diagnostic):
        return refused(kind)
    if not kind.is_text:
        return reading.read_as(kind, place, name)
    is_asked = included_from is None and place == path
    source = files.read_argument(place) if is_asked else files.read_source(Path(place), name=name)
    if isinstance(source, Diagnostic):
        arrays, faults = refused(source)
    else:
        source = replace(source, name=name, included_from=included_from)
        source = source if is_asked else files.marked(source, boundary, place)
        arrays, faults = _from_text(kind, source, place)
    is_shown = (is_asked and place == "-") or boundary.holds(place)
    if not faults or is_shown:
        return arrays, faults
    return refused(*veiled(faults, f"shardspec manifest {files.real_path(place)}"))


def _folder(folder: str, name: str) -> Outcome:
    from shardspec.arrays import orbax

    try:
        return orbax.read(folder, name)
    except reading.DamageError as damage:
        return refused(reading.damaged(f"`{name}`: {damage}"))


def _from_text(kind: Kind, source: SourceFile, path: str) -> Outcome:
    if kind is not LISTING:
        module = import_module(f"{__package__}.{kind.module}")
        outcome: Outcome = module.read(source)
        return outcome
    if source.text.lstrip()[:1] == "{":
        from shardspec.arrays.safetensors import is_index, read_index

        if is_index(source):
            return read_index(source, os.path.dirname(path))
    params, faults = read_manifest(source)
    return Arrays(params, (), (source,)), faults


def entry_point_refused(name: str) -> Diagnostic:
    """Return the finding for a function where only files are read."""
    return unsafe(
        f"`{name}` is a function, and calling it would run code",
        f"the command line may ask for that, `--arrays {name}`; Python code passes what it returns",
    )


def _unreadable(
    path: str, fault: OSError | ValueError, help: str = "name a file that can be read"
) -> Diagnostic:
    reason = str(fault)
    if isinstance(fault, OSError):
        reason = (fault.strerror or reason).lower()
    return Diagnostic(codes.UNREADABLE, f"`{path}` cannot be read: {reason}", help=help)


_SOUGHT = (
    "looked for an Orbax checkpoint (`_METADATA`), `*.index.json`, `*.safetensors`, `*.msgpack`, "
    "`*.npz`, `model-info.txt`, and folders of steps"
)
_ITEMS = "_CHECKPOINT_METADATA"

#: A checkpoint in a folder of items in a folder of steps.
_DEEPEST = 3


def arrays_in(folder: str, name: str, depth: int = 0) -> tuple[str, str] | Diagnostic:
    """Return path and name of the file, or the folder of one checkpoint, that holds the arrays.

    Args:
      name: what messages call the folder.
    """
    from shardspec.arrays.orbax import is_checkpoint

    try:
        if is_checkpoint(folder):
            return folder, name
        names = sorted(os.listdir(folder), key=natural)
    except OSError as fault:
        return _unreadable(name, fault, "check its permissions")
    binary = (kind.suffixes for kind in reading.KINDS if not kind.is_text)
    for suffixes in ((".index.json",), *binary):
        found = [each for each in names if each.endswith(suffixes)]
        if found:
            return _only(found, folder, name)
    folders = [each for each in names if os.path.isdir(os.path.join(folder, each))]
    # Of steps of training, `1000` or `checkpoint_1000`, the newest is the last.
    below = [each for each in folders if each.rpartition("_")[2].isdecimal()][-1:]
    if not below and _ITEMS in names:
        below = [each for each in folders if is_checkpoint(os.path.join(folder, each))]
    if below and depth < _DEEPEST:
        inner = _only(below, folder, name)
        return inner if isinstance(inner, Diagnostic) else arrays_in(*inner, depth + 1)
    if reading.MODEL_INFO.suffixes[0] in names:
        return _only([reading.MODEL_INFO.suffixes[0]], folder, name)
    return foreign(f"the folder `{name}` holds no arrays that can be read", _SOUGHT)


def _only(found: list[str], folder: str, name: str) -> tuple[str, str] | Diagnostic:
    first = os.path.join(name, found[0])
    if len(found) == 1:
        return os.path.join(folder, found[0]), first
    message = f"the folder `{name}` holds {len(found)} of a kind: {listed(found, 4)}"
    return foreign(message, f"name the one you mean: `{first}`")


_SUFFIXES = (*(suffix for kind in reading.KINDS for suffix in kind.suffixes), *reading.PICKLES, "/")
_PREFIXES = ("./", "../", "/")


def names_path(name: str) -> bool:
    """Say whether an entry of `manifest:` is a path or a function, not a bundled name.

    >>> names_path("./run"), names_path("model.safetensors"), names_path("gpt2")
    (True, True, False)
    """
    return name.endswith(_SUFFIXES) or name.startswith(_PREFIXES) or spells_entry_point(name)


def read_named(name: str, path: str, excerpt: Excerpt, boundary: Boundary) -> Outcome:
    """Return the arrays of an entry of `manifest:`; a file outside the project is not quoted.

    Args:
      name: the entry as it is written.
      path: where that is, seen from this folder.
      excerpt: the entry in the spec; what has no place of its own is shown there.
    """
    if spells_entry_point(name):
        return refused(_here(entry_point_refused(name), excerpt))
    arrays, faults = read_arrays(path, excerpt.span, boundary)
    if faults and not boundary.holds(path):
        arrays, faults = Arrays(), tuple(veiled(faults, f"shardspec manifest {path}"))
    return arrays, tuple(_here(fault, excerpt) for fault in faults)


def _here(fault: Diagnostic, excerpt: Excerpt) -> Diagnostic:
    """Return a fault with a place; a file that is not there is the entry's fault."""
    is_gone = fault.code is codes.UNREADABLE
    if fault.labels and not is_gone:
        return fault
    code, notes = codes.UNKNOWN_PRESET if is_gone else fault.code, fault.notes
    return point(code, fault.message, excerpt.span, "named here", notes=notes, help=fault.help)
