"""The files of the folders that are open: specs with what each reads, and the Python beside them.

Files are listed and read within bounds, links are not followed, and nothing is run. What cannot be
read is kept with the reason: a rename that could miss a name in it is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.words import by_key
from shardspec.language import loader
from shardspec.language.files import SPEC_NAMES, boundary_of, decode, open_unnoted, real_path
from shardspec.language.reading import Data, is_dsl
from shardspec.language.validate import looks_like_spec
from shardspec.lsp.python_calls import Calls, calls

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
