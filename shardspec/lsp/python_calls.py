"""Names of a spec in Python: `constrain(x, "batch length embed")`, `Resolver("spec.yaml", "pod")`.

They are found in the syntax tree; nothing is imported or run. A text that is bound to a name of the
module once counts where the name is used. What is put together while code runs has no place here,
and its call is kept as one whose names are unknown.

A `Project` is the files of the folders that are open: specs with what each reads, and the Python
beside them. Files are listed and read within bounds, links are not followed, and nothing is run.
What cannot be read is kept with the reason: a rename that could miss a name in it is refused.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.diagnostics.words import by_key
from shardspec.foreign.python_text import Places, parse_python
from shardspec.ir.spec import axis_of
from shardspec.language import loader
from shardspec.language.files import SPEC_NAMES, boundary_of, decode, open_unnoted, real_path
from shardspec.language.reading import Data, is_dsl
from shardspec.language.validate import looks_like_spec
from shardspec.lsp.types import Kind

#: Calls that take logical axes -> the position of that argument; all take `names=` too.
_ANYWHERE = {"constrain": 1, "with_logical_constraint": 1, "with_logical_partitioning": 1}
_OF_RESOLVERS = {"partition_spec": 0, "spec": 0, "sharding": 0, "batch": 0, "size": 0}
_AXES = _ANYWHERE | _OF_RESOLVERS
_RESOLVER, _LOADS = "Resolver", ("Resolver", "load", "load_spec")
#: A literal of one piece whose characters are those of the text.
_PLAIN = re.compile(r"[rRuU]?(\"{3}|'{3}|\"|')([^\\]*)\1", re.DOTALL)
_WORD = re.compile(r"(?<![\w.'-])(?:(?:in|out):)?[^\W\d][\w.-]*'?")
_IS_NAMES = re.compile(r"[\w\s.:'-]*")
_LINE_END = re.compile(r"\r\n?")
_SUFFIXES = (".yaml", ".yml", ".shard")


class Called(NamedTuple):
    """A name in code.

    Attributes:
      is_plain: whether the characters of the span are the name: no escape, no pieces.
      specs: the specs that it is of, of a target or a phase.
      is_sure: whether the call is known to be one of shardspec.
    """

    kind: Kind
    name: str
    span: Span
    is_plain: bool = True
    specs: tuple[str, ...] = ()
    is_sure: bool = True


class Calls(NamedTuple):
    """What a module says to shardspec.

    Attributes:
      uses: the names, in order of their places.
      specs: the specs that it names, as it writes them.
      unknown: calls whose names are worked out while code runs.
    """

    source: SourceFile
    uses: tuple[Called, ...]
    specs: tuple[str, ...]
    unknown: tuple[Span, ...]


def is_named(real: str, specs: Iterable[str]) -> bool:
    """Say whether the file of a real path is one of specs that code names, as far as names tell."""
    return any(f"/{real}".endswith(f"/{_tail(name)}") for name in specs)


def _tail(name: str) -> str:
    return re.sub(r"^(?:\.{0,2}/)+", "", name.replace("\\", "/"))


def calls(source: SourceFile) -> Calls | Diagnostic:
    """Return what a module says to shardspec, or why it is no Python."""
    return parse_python(source, lambda tree: _Reader(source, tree).found())


class _Reader:
    """The walk over one module."""

    def __init__(self, source: SourceFile, tree: ast.Module) -> None:
        self.source = source
        self.places = Places(source)
        self.nodes = [*ast.walk(tree)]
        self.texts = _bound_texts(self.nodes)
        self.aliases = _aliases(self.nodes)
        self.resolvers = frozenset(self._resolvers())
        self.uses: dict[tuple[Span, str], Called] = {}
        self.specs: dict[str, None] = {}
        self.unknown: dict[Span, None] = {}

    def found(self) -> Calls:
        for node in self.nodes:
            if isinstance(node, ast.Call):
                self._call(node, node.func, node.args)
        uses = sorted(self.uses.values(), key=lambda each: each.span.start)
        return Calls(self.source, tuple(uses), tuple(self.specs), tuple(self.unknown))

    def _called(self, node: ast.AST) -> str:
        """Return what a function is called, whatever the module calls it."""
        name = _last_name(node)
        return self.aliases.get(name, name)

    def _call(self, call: ast.Call, function: ast.expr, args: list[ast.expr]) -> None:
        name = self._called(function)
        keywords = {each.arg: each.value for each in call.keywords if each.arg}
        if name == "partial" and args:
            self._call(call, args[0], args[1:])
        if name in _AXES:
            is_sure = name in _ANYWHERE or self._is_resolver(function)
            given = args[: _AXES[name] + 1]
            starred = [each for each in given if isinstance(each, ast.Starred)]
            stated = [*starred, *given[_AXES[name] :], keywords.get("names")][0]
            self._names(call, stated, Kind.LOGICAL_AXIS, is_sure=is_sure)
            if is_sure:
                self._names(call, keywords.get("activation"), Kind.ACTIVATION)
        of: tuple[str, ...] = ()
        if name in _LOADS and (args or "spec" in keywords):
            spec = args[0] if args else keywords["spec"]
            paths = [*self._paths(spec)]
            self.specs.update(dict.fromkeys(paths))
            of = tuple(paths)
        if name == _RESOLVER:
            target = args[1] if len(args) > 1 else keywords.get("target")
            self._names(call, target, Kind.TARGET, of)
            self._names(call, keywords.get("phase"), Kind.PHASE, of)

    def _paths(self, node: ast.expr) -> Iterator[str]:
        """Yield the specs that an expression names: `Path("specs") / "a.yaml"`."""
        for each in ast.walk(node):
            text = self.texts.get(each.id) if isinstance(each, ast.Name) else each
            if isinstance(text, ast.Constant) and str(text.value).endswith(_SUFFIXES):
                yield str(text.value)

    def _is_resolver(self, function: ast.expr) -> bool:
        receiver = function.value if isinstance(function, ast.Attribute) else None
        name = "" if receiver is None else _last_name(receiver)
        return name in self.resolvers or "resolver" in name.lower()

    def _resolvers(self) -> Iterator[str]:
        """Yield the names that a `Resolver(...)` is bound to, or that are annotated as one."""
        for node in self.nodes:
            targets: list[ast.AST | None] = []
            parts: list[ast.AST] = []
            if isinstance(node, ast.Assign):
                targets, parts = [*node.targets], [*_branches(node.value)]
            elif isinstance(node, ast.withitem):
                targets, parts = [node.optional_vars], [node.context_expr]
            elif isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
                targets = [node if isinstance(node, ast.arg) else node.target]
                parts = [*ast.walk(node.annotation)]
            is_called = isinstance(node, (ast.Assign, ast.withitem))
            made = (each for each in parts if isinstance(each, ast.Call) or not is_called)
            if any(self._called(each) == _RESOLVER for each in made):
                yield from map(_last_name, targets)

    def _names(
        self,
        call: ast.Call,
        argument: ast.expr | None,
        kind: Kind,
        specs: tuple[str, ...] = (),
        *,
        is_sure: bool = True,
    ) -> None:
        """Note the names in an argument; of one that is no text, that they are unknown."""
        found = [] if argument is None else [*self._pieces(argument)]
        if is_sure and None in found:
            self.unknown[self.places.span(call)] = None
        for node in filter(None, found):
            for use in self._in_text(str(node.value), self.places.span(node), kind):
                stated = use._replace(specs=specs, is_sure=is_sure)
                if is_sure or (use.span, use.name) not in self.uses:
                    self.uses[use.span, use.name] = stated

    def _pieces(self, node: ast.expr) -> Iterator[ast.Constant | None]:
        """Yield the texts that an expression may be, and None for each that code works out."""
        inner: list[ast.expr] = []
        match node:
            case ast.Constant(value=str()):
                yield node
            case ast.Constant(value=None):
                pass
            case ast.Name(id=name) if name in self.texts:
                yield self.texts[name]
            case ast.Dict(values=inner) | ast.Tuple(elts=inner) | ast.List(elts=inner):
                pass
            case ast.JoinedStr(values=inner):
                yield None
            case ast.IfExp(body=one, orelse=other):
                inner = [one, other]
            case ast.BinOp(left=one, op=ast.Add(), right=other) if self._is_apart(one, other):
                inner = [one, other]
            case ast.NamedExpr(value=one) | ast.Starred(value=one):
                inner = [one]
            case ast.Call(func=ast.Attribute(value=one, attr="split"), args=[]):
                inner = [one]
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=" "), attr="join")):
                inner = node.args
            case _:
                yield None
        for each in inner:
            yield from self._pieces(each)

    def _is_apart(self, one: ast.expr, other: ast.expr) -> bool:
        """Say whether a sum joins tuples, or texts at a blank, so that all words stay."""
        sides = [self.texts.get(_last_name(each), each) for each in (one, other)]
        if any(isinstance(each, (ast.Tuple, ast.List)) for each in sides):
            return True
        left, right = (str(getattr(each, "value", "?")) for each in sides)
        return left[-1:].isspace() or right[:1].isspace()

    def _in_text(self, text: str, span: Span, kind: Kind) -> Iterator[Called]:
        plain = _PLAIN.fullmatch(span.text)
        is_plain = plain is not None and _LINE_END.sub("\n", plain[2]) == text
        text = plain[2] if plain is not None and is_plain else text
        at = span.start + (plain.start(2) if plain is not None else 0)
        words = [(0, text)]
        if kind is Kind.LOGICAL_AXIS:
            words = [(word.start(), word[0]) for word in _WORD.finditer(text)]
            words = words if _IS_NAMES.fullmatch(text) else []
        for start, word in words:
            name = axis_of(word) if kind is Kind.LOGICAL_AXIS else word
            inner = at + start + word.rstrip("'").rfind(name)
            place = Span(self.source, inner, inner + len(name)) if is_plain else span
            yield Called(kind, name, place, is_plain)


def _last_name(node: ast.AST | None) -> str:
    match node:
        case ast.Call(func=function):
            return _last_name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name):
            return name
        case ast.Constant(value=str(name)):  # an annotation
            return name.rpartition(".")[2]
    return ""


def _bound_texts(nodes: list[ast.AST]) -> Mapping[str, ast.Constant]:
    """Return the texts that names are bound to, of names that are bound once."""
    bound: dict[str, list[ast.expr | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, []).append(None)
        elif isinstance(node, ast.arg):
            bound.setdefault(node.arg, []).extend((None, None))
    for node in nodes:
        target: ast.AST | None = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and bound.get(target.id) == [None]:
            bound[target.id] = [getattr(node, "value", None)]
    texts = ((name, values[0]) for name, values in bound.items() if len(values) == 1)
    return {
        name: value
        for name, value in texts
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def _branches(node: ast.expr) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def _aliases(nodes: list[ast.AST]) -> Mapping[str, str]:
    """Return the other names that a module gives to functions and classes of shardspec."""
    known = {*_ANYWHERE, *_LOADS}
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Name)):
            found |= {_last_name(target): _last_name(node.value) for target in node.targets}
    return {name: other for name, other in found.items() if other in known}


T = TypeVar("T")

#: Files and folders that are looked at, and what is read of them.
MOST_ENTRIES, MOST_BYTES, _LARGEST = 50_000, 128 * 2**20, 4 * 2**20
_ENCODINGS = ("utf-8", "latin-1", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_SPECS = (".yaml", ".yml", ".shard")
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})
_ARRAYS = re.compile(r"^(?:arrays|manifest)\b", re.MULTILINE)
_MESH = re.compile(r"^(?:mesh|targets?)\b", re.MULTILINE)
_NAMES_OTHERS = re.compile(r"\b(?:extends|manifest)\b")
_EXTENDS = re.compile(r"^extends\b", re.MULTILINE)
_NAMES_SPECS = re.compile(r"constrain|[Rr]esolver|shardspec|with_logical")
_KINDS = (*_SPECS, ".py", ".ipynb")


class Unread(NamedTuple):
    """A file, or all the rest of a folder, that could not be read, and why.

    Attributes:
      raw: its bytes, where those could be had.
    """

    path: str
    reason: str
    raw: bytes | None = None

    def may_hold(self, name: str) -> bool:
        """Say whether a name could stand in it, in whatever encoding."""
        raw = self.raw
        return raw is None or any(name.encode(each, "replace") in raw for each in _ENCODINGS)


class SpecFile(NamedTuple):
    """A spec, or a file that a spec may read.

    Attributes:
      reads: the real paths of the files that it names.
    """

    source: SourceFile
    reads: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Say whether it is a spec by itself, with arrays and a mesh, whoever else extends it."""
        return bool(_ARRAYS.search(self.source.text) and _MESH.search(self.source.text))


class _Kept(NamedTuple):
    """What was made of a file, as long as it stays as it is."""

    stamp: object
    made: SpecFile | Calls | Unread | None


class Project:
    """The folders that an editor has open.

    Attributes:
      specs, code: by real path, in order of the paths.
      unread: what a name could stand in unseen.
    """

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """Start with folders, of which nothing is read yet."""
        self.folders = tuple(dict.fromkeys(map(real_path, folders)))
        self.specs: dict[str, SpecFile] = {}
        self.code: dict[str, Calls] = {}
        self.unread: tuple[Unread, ...] = ()
        self._kept: dict[str, _Kept] = {}

    def with_folder_of(self, path: str) -> bool:
        """Add the project of a file that lies in none of the folders; say whether it is new."""
        top = boundary_of(path).folder
        if any(_is_below(real_path(path), folder) for folder in self.folders):
            return False
        self.folders = (*self.folders, top)
        return True

    def read(self, texts: Mapping[str, str]) -> None:
        """List the files, and read those that have changed.

        Args:
          texts: by real path, what the open buffers hold.
        """
        unread: list[Unread] = []
        kept: dict[str, _Kept] = {}
        room = MOST_BYTES
        for path in sorted({*self._listed(unread), *filter(self._is_wanted, texts)}):
            text = texts.get(path)
            found = self._kept.get(path)
            try:
                about = None if text is not None else os.stat(path)
                stamp: object = text if about is None else (about.st_mtime_ns, about.st_size)
                size = len(text or "") if about is None else about.st_size
                room -= size
                if found is None or found.stamp != stamp:
                    found = _Kept(stamp, _made(path, text, size, room))
            except (OSError, ValueError) as fault:
                found = _Kept(None, Unread(path, str(getattr(fault, "strerror", None) or fault)))
            kept[path] = found
        self._kept = kept
        made = [(path, each.made) for path, each in kept.items()]
        self.specs = {path: each for path, each in made if isinstance(each, SpecFile)}
        self.code = {path: each for path, each in made if isinstance(each, Calls)}
        self.unread = (*unread, *(each for _, each in made if isinstance(each, Unread)))

    def _is_wanted(self, path: str) -> bool:
        return path.endswith(_KINDS) and any(_is_below(path, folder) for folder in self.folders)

    def _listed(self, unread: list[Unread]) -> Iterator[str]:
        """Yield the specs and the Python files of the folders, by real path."""
        left = MOST_ENTRIES
        for top in self.folders:
            for folder, inner, names in os.walk(top):
                left -= len(inner) + len(names)
                if left < 0:
                    unread.append(Unread(top, f"it has more than {MOST_ENTRIES:,} files"))
                    return
                inner[:] = [each for each in inner if _is_looked_into(folder, each)]
                for name in names:
                    path = os.path.join(folder, name)
                    if name.endswith(_KINDS) and not os.path.islink(path):
                        yield path

    def learn(self, real: str, reads: Iterable[str]) -> frozenset[str]:
        """Take in which files a spec reads that was edited, until all is read again.

        Returns:
          The files that it did not read before, or does not any more.
        """
        known = self.specs.get(real)
        if known is not None:
            self.specs[real] = known._replace(reads=tuple(each for each in reads if each != real))
        return frozenset() if known is None else frozenset({*known.reads} ^ ({*reads} - {real}))

    def dependents(self, real: str) -> list[str]:
        """Return the real paths of the specs that read a file, through others too."""
        readers = by_key((read, path) for path, each in self.specs.items() for read in each.reads)
        found = {real}
        pending = [real]
        while pending:
            above = {*readers.get(pending.pop(), ())} - found
            pending += above
            found |= above
        return sorted(found - {real})

    def is_base(self, path: str, text: str) -> bool:
        """Say whether a text is a spec since others extend it, however it looks meanwhile."""
        is_yaml = path.endswith(_SPECS) and loader.kind_of(SourceFile(path, text)) in (None, "spec")
        return is_yaml and bool(self.dependents(real_path(path)))

    def tops(self, real: str) -> list[str]:
        """Return the specs that a file is looked at as part of: itself, where it is a whole one."""
        found = [each for each in self.dependents(real) if self._is_top(each)]
        return [*found, real] if not found or self._is_top(real) else found

    def _is_top(self, real: str) -> bool:
        known = self.specs.get(real)
        return known is not None and (known.is_whole or not self.dependents(real))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_looked_into(above: str, name: str) -> bool:
    is_environment = os.path.lexists(os.path.join(above, name, "pyvenv.cfg"))
    return not name.startswith(".") and name not in _SKIPPED and not is_environment


def _made(path: str, text: str | None, size: int, room: int) -> SpecFile | Calls | Unread | None:
    """Return what is to know of a file; None of one that is neither spec nor about specs.

    Raises:
      OSError: it cannot be read.
    """
    largest = 16 * _LARGEST if path.endswith(".ipynb") else _LARGEST
    if text is None and (size > largest or room < 0):
        most = (largest if room >= 0 else MOST_BYTES) >> 20
        what = "it is" if room >= 0 else "the files of the project are"
        return Unread(path, f"{what} larger than {most} MiB")
    if text is None:
        with open(path, "rb", opener=open_unnoted) as file:
            raw = file.read(largest + 1)
        source = decode(raw, path)
        if isinstance(source, Diagnostic):
            return Unread(path, source.message, raw)
    else:
        source = SourceFile(path, text)
    if path.endswith((".py", ".ipynb")) and not _NAMES_SPECS.search(source.text):
        return None
    if path.endswith(".ipynb"):
        return _notebook(source)
    if path.endswith(".py"):
        return _code(source)
    is_spec = path.endswith(".shard") or os.path.basename(path) in SPEC_NAMES
    is_spec = is_spec or looks_like_spec(source.text)
    if not (is_spec or _NAMES_OTHERS.search(source.text)):
        return SpecFile(source, ()) if loader.kind_of(source) else None
    return _spec(source, is_spec=is_spec or bool(_EXTENDS.search(source.text)))


def _code(source: SourceFile) -> Calls | Unread:
    found = calls(source)
    if isinstance(found, Diagnostic):
        return Unread(source.name, found.message, source.text.encode("utf-8", "surrogatepass"))
    return found


def _notebook(source: SourceFile) -> Unread:
    """Return the code of a notebook, which is not changed; of another file, all of it."""
    reason, text = "it is no notebook that can be read", source.text
    try:
        cells = [each for each in json.loads(text)["cells"] if each["cell_type"] == "code"]
        text = "\n".join("".join(each["source"]) for each in cells)
        reason = "notebooks are not changed"
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return Unread(source.name, reason, text.encode("utf-8", "surrogatepass"))


def _spec(source: SourceFile, *, is_spec: bool) -> SpecFile | Unread:
    """Return a spec with the real paths of the files that it names itself."""
    if not _NAMES_OTHERS.search(source.text):
        return SpecFile(source, ())
    reading, faults = loader.read(loader.File(source, "", source.name, is_dsl(source)))
    data = reading.data if reading is not None else None
    is_lost = not (isinstance(data, dict) and data.get("extends"))
    if is_spec and is_lost and faults:
        raw = source.text.encode("utf-8", "surrogatepass")
        return Unread(source.name, faults[0].message, raw)
    folder = os.path.dirname(source.name)
    named = (real_path(os.path.join(folder, name)) for name in _files(data) if "." in name)
    return SpecFile(source, tuple(dict.fromkeys(named)))


def _files(data: Data) -> Iterator[str]:
    if not isinstance(data, dict):
        return
    phases = data.get("phases")
    inner = [*phases.values()] if isinstance(phases, dict) else []
    steps = [each.get("step") for each in (data, *inner) if isinstance(each, dict)]
    extended = [each.get("extends") for each in steps if isinstance(each, dict)]
    for stated in (data.get("extends"), data.get("manifest"), *extended):
        for name in stated if isinstance(stated, list) else [stated]:
            if isinstance(name, str):
                yield name


def in_words(unread: Iterable[Unread], name: str, said: Callable[[str], str]) -> str | None:
    """Return why a name could stand unseen, file by file; None where it could not."""
    found = [said(f"{each.path}: {each.reason}") for each in unread if each.may_hold(name)]
    more = f" (and {len(found) - 1} more files)" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else None
