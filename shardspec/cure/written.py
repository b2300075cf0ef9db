"""The lines of a search as changes of the files that they stand in."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from shardspec import python_syntax
from shardspec.cure.lines import Layout, Line, Site
from shardspec.cure.patching import Constrained, Extent, Patched, Refused, index_at, patched
from shardspec.diagnostics import SourceFile
from shardspec.language.reading import is_dsl

#: What is called where a file has no constraints of its own.
_IDIOM = "shardspec"


def written(
    lines: Iterable[Line], spec: SourceFile | None = None, *, is_own: bool = False
) -> tuple[Patched, ...] | Refused:
    """Return the files that lines change, the spec first, or why they cannot be written.

    Args:
      spec: gets an entry of `params` for each argument.
      is_own: whether shardspec's functions are used even where a file uses Flax's.
    """
    lines = tuple(lines)
    found = []
    entries = [line for line in lines if line.site.is_of_spec]
    if entries:
        changed = _with_entries(entries, spec)
        if isinstance(changed, Refused):
            return changed
        found.append(changed)
    by_file: dict[str, list[Constrained]] = {}
    for line in lines:
        if line.site.at is not None and not line.site.place:
            one = _constrained(line.site.at, line, is_own)
            by_file.setdefault(line.site.at.file, []).append(one)
    for file in sorted(by_file):
        source = source_of(file)
        made = source if isinstance(source, Refused) else patched(source, file, by_file[file])
        if isinstance(made, Refused):
            return made
        found.append(made)
    return tuple(found)


def _constrained(at: Extent, line: Line, is_own: bool) -> Constrained:
    named = [each.names.split() for each in line.layouts]
    vmaps = line.site.vmaps
    seen = tuple(" ".join(names[vmaps:] or "_") for names in named)
    mapped = tuple(" ".join(names[:vmaps]) for names in named if vmaps)
    return Constrained(at, seen, mapped, is_own)


def _with_entries(entries: Sequence[Line], spec: SourceFile | None) -> Patched | Refused:
    """Return a spec with entries of `params` and `activations`, the first of their sections."""
    if spec is None or spec.name == "-":
        return Refused("the spec is no file")
    if any(line.is_move for line in entries):
        return Refused("an entry of the spec has one layout, and no move")
    text, in_dsl = spec.text, is_dsl(spec)
    rows: dict[str, list[str]] = {"params": [], "activations": []}
    written_rows = []
    for number, line in enumerate(entries):
        names = _in_order(line)
        if line.site.place:
            section, name = "activations", _name(line.site, number, text)
            row = f'{name}: {{axes: {names}, at: "{line.site.place}"}}'
            if in_dsl:
                row = f'activation {name} : {names} at "{line.site.place}"'
        else:
            section = "params"  # optional: the arrays that a spec lists may lack it
            row = f'"optional:{line.site.path}": {names}'
            row = f"optional {line.site.path} : {names}" if in_dsl else row
        rows[section].append(row)
        written_rows.append(row)
    if in_dsl and rows["activations"]:
        text = "\n".join((text.rstrip(), *rows.pop("activations"), ""))
    for section, own in rows.items():
        changed = _with_rows(text, section, own, in_dsl=in_dsl) if own else text
        if changed is None:
            return Refused(f"{spec.name} has `{section}` in a form that is not written")
        text = changed
    return Patched(spec.name, spec.text, text, tuple(written_rows))


def _in_order(line: Line) -> str:
    """Return the names of all dimensions: where `jax.vmap` maps some, an entry is of these, too."""
    names, order = line.layouts[0].names.split(), line.site.order
    if not line.site.mapped:
        return line.layouts[0].names
    return " ".join(names[order.index(dim)] for dim in range(len(names)))


def _with_rows(text: str, section: str, rows: Sequence[str], *, in_dsl: bool) -> str | None:
    """Return a text with rows at the beginning of a section, which it may lack."""
    head = _DSL if in_dsl else _YAML
    found = next((each for each in head.finditer(text) if each["section"] == section), None)
    made = "".join(f"  {row}\n" for row in rows)
    if found is not None and found["inline"]:  # `params: {wi: embed mlp}`
        is_empty = text[found.end() :].lstrip().startswith("}")
        made = ", ".join((*rows, *(() if is_empty else ("",))))
    if found is not None:
        return text[: found.end()] + made + text[found.end() :]
    if re.search(rf"(?m)^{section}\b", text):
        return None
    start, end = ("{", "}\n") if in_dsl else (":", "")
    return f"{text.rstrip()}\n{section}{' ' * in_dsl}{start}\n{made}{end}"


#: How a section begins, as a block or on one line.
_DSL = re.compile(r"(?m)^(?P<section>params) \{[ \t]*\n(?P<inline>)")
_YAML = re.compile(
    r"(?m)^(?P<section>params|activations):[ \t]*(?:(?P<inline>\{[ \t]*)|(?:#[^\n]*)?\n)"
)


def _name(site: Site, number: int, text: str) -> str:
    """Return a name for a value of code, which the spec has not yet."""
    extent = site.at
    assert extent is not None, "a value of code"
    function = site.place.rpartition(":")[2].partition(" ")[0].rpartition(".")[2]
    name = f"{re.sub(r'[^a-z0-9]+', '_', function.lower()).strip('_') or 'value'}_{extent.line}"
    return name if not re.search(rf"\b{name}\b", text) else f"{name}_{number + 1}"


def writable(sites: Iterable[Site], folder: str, *, has_places: bool = False) -> list[Site]:
    """Return the sites whose expressions can be constrained in a file inside of a folder.

    Args:
      has_places: whether entries of `activations` reach code: those of other files have a place.
    """
    found = []
    sites = _as_seen(s for each in sites if (s := _at_index(each, folder)))
    own = (each.at for each in sites if each.at is not None and not each.is_index)
    lines = Counter((at.file, at.line) for at in own)
    for site in sites:
        if site.at is None:
            found.append(site)
        elif is_inside(site.at.file, folder):
            any_names = Layout(" ".join("_" * (site.vmaps + 1)), ())
            changed = written([Line(site, (any_names,))])
            if not isinstance(changed, Refused):
                found.append(replace(site, effort=_effort(changed[0])))
        elif has_places and lines[site.at.file, site.at.line] == 1:
            place = _place(site.at)
            if place:
                found.append(replace(site, effort=_OF_SPEC, place=place))
    return found


def _as_seen(sites: Iterable[Site]) -> list[Site]:
    """Return sites with the `jax.vmap` around their functions, without those of what they call.

    JAX counts the `vmap` of `jax.vmap(norm)(x)` for its value, which is outside of it.
    """
    keyed = [
        (site, (_function_at(site.at), _lambda_at(site.at)) if site.at and site.vmaps else None)
        for site in sites
    ]
    around: dict[object, int] = {}
    for site, key in keyed:
        if site.at and key:
            vmaps = site.vmaps - (site.at.place in _mapped_calls(site.at.file))
            around[key] = min(vmaps, around.get(key, vmaps))
    return [replace(site, vmaps=around[key]) if key else site for site, key in keyed]


def _function_at(extent: Extent) -> str:
    """Return the qualified name of the function that an expression is in; empty for none."""
    return next((name for name, *ends in _functions(extent.file) if _spans(ends, extent)), "")


def _lambda_at(extent: Extent) -> tuple[str, tuple[int, ...]]:
    """Return the file of an expression, and where the lambda begins that it is in, if it is."""
    own, end = (extent.line, extent.column), (extent.end_line, extent.end_column)
    around = (at for at in _lambdas(extent.file) if at[:2] <= own and end <= at[2:])
    return extent.file, max(around, default=())


@lru_cache(maxsize=256)
def _lambdas(file: str) -> tuple[tuple[int, int, int, int], ...]:
    """Return where a file has lambdas: the one that begins last is the innermost."""
    tree = _tree_of(file)
    nodes = (each for each in (ast.walk(tree) if tree else ()) if isinstance(each, ast.Lambda))
    return tuple(
        (each.lineno, each.col_offset, each.end_lineno or 0, each.end_col_offset or 0)
        for each in nodes
    )


@lru_cache(maxsize=256)
def _mapped_calls(file: str) -> frozenset[tuple[int, int, int, int]]:
    """Return where a file has `jax.vmap(...)(...)`, whatever its `vmap` is called."""
    found = set()
    tree = _tree_of(file)
    for node in ast.walk(tree) if tree else ():
        match node:
            case ast.Call(func=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
                if name.endswith("vmap"):
                    end = node.end_lineno or 0, node.end_col_offset or 0
                    found.add((node.lineno, node.col_offset, *end))
    return frozenset(found)


@lru_cache(maxsize=16)
def _tree_of(file: str) -> ast.Module | None:
    text = source_of(file)
    try:
        return None if isinstance(text, Refused) else python_syntax.parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _at_index(site: Site, folder: str) -> Site | None:
    """Return a site at what its expression looks up by, others as they are.

    Returns:
      None where that is not clear, or the file is not changed.
    """
    if site.at is None or not site.is_index:
        return site
    text = source_of(site.at.file) if is_inside(site.at.file, folder) else Refused("")
    at = None if isinstance(text, Refused) else index_at(text, site.at)
    return None if at is None else replace(site, at=at)


#: The effort of an entry for code that is not the user's.
_OF_SPEC = 3


def _place(extent: Extent) -> str:
    """Return the `at:` of an expression: `model.py:Mlp.__call__ line 57`; empty for none."""
    name = _function_at(extent)
    file = "/".join(extent.file.replace(os.sep, "/").split("/")[-_PARTS:])
    is_plain = re.fullmatch(r"[\w./\-]+", file) is not None
    return f"{file}:{name} line {extent.line}" if name and is_plain else ""


#: The parts of a path that a place has.
_PARTS = 2


def _spans(ends: Sequence[int], extent: Extent) -> bool:
    return ends[0] <= extent.line and extent.end_line <= ends[1]


@lru_cache(maxsize=256)
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    """Return the functions of a file by qualified name, inner ones first, with their lines."""
    tree = _tree_of(file)
    found: list[tuple[str, int, int]] = []
    waiting: list[tuple[ast.AST, str]] = [] if tree is None else [(tree, "")]
    while waiting:
        node, prefix = waiting.pop(0)
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((prefix + child.name, child.lineno, child.end_lineno or 0))
                inner = f"{prefix}{child.name}.<locals>."
            elif isinstance(child, ast.ClassDef):
                inner = f"{prefix}{child.name}."
            waiting.append((child, inner))
    return tuple(reversed(found))


def is_inside(file: str, folder: str) -> bool:
    """Say whether a file is in a folder, wherever links lead."""
    return os.path.realpath(file).startswith(os.path.join(os.path.realpath(folder), ""))


def _effort(changed: Patched) -> int:
    is_own_line = re.match(r"(\w+) = [\w.]+\(\1, ", changed.lines[0])
    return 2 * (f"{_IDIOM}." in changed.lines[0]) + (not is_own_line)


@lru_cache(maxsize=256)
def source_of(file: str) -> str | Refused:
    """Return the text of a file as it is, line ends and all."""
    try:
        with open(file, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return stream.read()
    except OSError as error:
        return Refused(f"{file} cannot be read: {error.strerror}")
