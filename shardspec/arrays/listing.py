"""Manifests, read and written: files that list the arrays of a model, as JSON or YAML.

Either `{path: type}` alone, or under `arrays:` beside `shardspec-arrays: 1` with a `doc` and
the `source` of the figures. A type is `bf16[4096, 512]`, or `{shape: [4096, 512], dtype: bf16}`.
Paths may hold ranges: `layers_{0..23}/kernel`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from shardspec.arrays.reading import MOST_ARRAYS, first_repeated, is_text
from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, codes, point
from shardspec.diagnostics.diagnostic import printable_json
from shardspec.diagnostics.words import (
    by_key,
    collapsed,
    counted,
    near_or_known,
    template,
)
from shardspec.ir.spec import Param, Params, dtype_name
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import ArrayType, SyntaxFault
from shardspec.language.layer import unknown_dtype
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
    diagnostics: list[Diagnostic] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            diagnostics.append(_repeated(pairs, source))
        return data

    try:
        data = json.loads(source.text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        at = min(error.pos, len(source.text))
        span = Span(source, at, min(at + 1, len(source.text)))
        diagnostics.append(
            point(codes.SYNTAX, f"not JSON: {error.msg[0].lower()}{error.msg[1:]}", span)
        )
        return None, SourceMap(source), diagnostics
    except (RecursionError, ValueError) as error:
        why = "brackets are nested too deep" if isinstance(error, RecursionError) else str(error)
        diagnostics.append(point(codes.SYNTAX, f"not JSON: {why}", source.whole))
        return None, SourceMap(source), diagnostics
    if "\\u" in source.text and not is_text(data):
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


def _repeated(pairs: list[tuple[str, Any]], source: SourceFile) -> Diagnostic:
    twice = first_repeated(pairs)
    at = source.text.rfind(f'"{twice}"')
    span = Span(source, at, at + len(twice) + 2) if at >= 0 else source.whole
    return point(codes.DUPLICATE_KEY, f"`{twice}` is given twice", span)


def _params(
    data: dict[str, Any], route: Route, source_map: SourceMap, diagnostics: list[Diagnostic]
) -> Iterator[Param]:
    from shardspec.language.patterns.glob import expand

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
            help=near_or_known(key, known),
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
