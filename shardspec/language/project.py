"""`[tool.shardspec.lints]` of a pyproject.toml -> what a project wants to hear.

TOML comes without positions, so the place of a fault is looked for in the text: the key below
its header, or the header.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, point
from shardspec.diagnostics.levels import NOTHING_ASKED, WORDS, LevelTable, known
from shardspec.diagnostics.words import did_you_mean
from shardspec.language.files import leads_out, veiled

_HEADER = re.compile(r"^[ \t]*\[[ \t]*tool\.shardspec(?:\.lints)?[ \t]*\]", re.MULTILINE)
_OPTIONS = ("select", "ignore", "pedantic")
_WHERE = re.compile(r"\(at line (\d+), column (\d+)\)")
_AS_IN = 'as in `SHD203 = "allow"`'


def project_levels(spec: str) -> tuple[LevelTable, tuple[Diagnostic, ...]]:
    """Return what `[tool.shardspec.lints]` asks for, of the nearest pyproject.toml above a spec.

    One that says nothing of shardspec is passed by.

    Args:
      spec: a path, or `-` for a text that has none: the project of this folder counts.
    """
    folder = Path(os.path.abspath(spec)).parent
    for above in (folder, *folder.parents):
        file = above / "pyproject.toml"
        if not os.path.isfile(file):  # False also where the path is too long for one
            continue
        from shardspec.language.files import read_source

        source = read_source(file, name=os.path.relpath(file))
        if isinstance(source, Diagnostic):
            return NOTHING_ASKED, (source,)
        table, faults = read_project(source)
        if faults and leads_out(str(file)):
            faults = tuple(veiled(faults, f"cat {os.path.realpath(file)}"))
        if table is not None or faults:
            return table or NOTHING_ASKED, faults
    return NOTHING_ASKED, ()


def read_project(source: SourceFile) -> tuple[LevelTable | None, tuple[Diagnostic, ...]]:
    """Return what a pyproject.toml asks for; None where it has no table of ours at all."""
    if "shardspec" not in source.text:
        return None, ()
    import tomllib

    try:
        tool = tomllib.loads(source.text).get("tool")
    except tomllib.TOMLDecodeError as error:
        return None, (_not_toml(source, str(error)),)
    except RecursionError:
        return None, (_not_toml(source, "it is nested too deep"),)
    own = tool.get("shardspec") if isinstance(tool, dict) else None
    if not isinstance(own, dict):
        return None, ()
    lints = own.get("lints", {})
    if not isinstance(lints, dict):
        message = "`[tool.shardspec] lints` should be a table"
        return LevelTable(), (
            point(codes.WRONG_TYPE, message, _place(source, "lints"), help=_AS_IN),
        )
    return _table(lints), tuple(_faults(lints, source))


def _table(lints: dict[str, Any]) -> LevelTable:
    """Return what of the table can be followed."""
    settings = tuple(
        (finding, WORDS[level])
        for finding, level in lints.items()
        if finding not in _OPTIONS and known(finding) and isinstance(level, str) and level in WORDS
    )
    select, ignore = (tuple(filter(known, _texts(lints.get(key)))) for key in ("select", "ignore"))
    return LevelTable(settings, select, ignore, lints.get("pedantic") is True)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _faults(lints: dict[str, Any], source: SourceFile) -> Iterator[Diagnostic]:
    for key, value in lints.items():
        if key == "pedantic":
            if not isinstance(value, bool):
                yield _wrong(key, "`true` or `false`", value, source)
        elif key in _OPTIONS:
            if not isinstance(value, list) or len(_texts(value)) != len(value):
                yield _wrong(key, 'a list of findings, as in `["SHD3"]`', value, source)
            yield from (_unknown(each, source) for each in _texts(value) if not known(each))
        elif not known(key):
            yield _unknown(key, source)
        elif not isinstance(value, str) or value not in WORDS:
            yield _wrong(key, "`allow`, `warn` or `error`", value, source)


def _wrong(key: str, wanted: str, value: object, source: SourceFile) -> Diagnostic:
    shown = f"`{value}`" if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    message = f"`{key}` should be {wanted}, and is {shown.replace('True', 'true')}"
    return point(codes.WRONG_TYPE, message, _place(source, key), help=_AS_IN)


def _unknown(name: str, source: SourceFile) -> Diagnostic:
    names = (*_OPTIONS, *(code.name for code in codes.ALL))
    near = None if name.startswith("SHD") else did_you_mean(name, names)
    help = near or "an id, a name or the start of an id; `shardspec explain --list` shows them all"
    message = f"no finding is called `{name}`"
    return point(codes.UNKNOWN_LINT, message, _place(source, name), help=help)


def _place(source: SourceFile, word: str) -> Span:
    """Return where a word of the table stands; its header where that cannot be told."""
    headers = list(_HEADER.finditer(source.text))
    header = next((each for each in headers if "lints" in each[0]), headers[0] if headers else None)
    start = header.end() if header else 0
    following = re.compile(r"^[ \t]*\[", re.MULTILINE).search(source.text, start)
    end = following.start() if following else len(source.text)
    words = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])").finditer(source.text, start, end)
    found = next((each for each in words if not _is_comment(source.text, each.start())), header)
    return Span(source, *found.span()) if found else source.whole


def _is_comment(text: str, at: int) -> bool:
    return "#" in text[text.rfind("\n", 0, at) + 1 : at]


def _not_toml(source: SourceFile, why: str) -> Diagnostic:
    found = _WHERE.search(why)
    message = (
        f"this is not TOML: {why.partition(' (at ')[0][:1].lower()}{why.partition(' (at ')[0][1:]}"
    )
    span = source.whole
    if found:
        lines = source.text.splitlines(keepends=True)
        at = sum(map(len, lines[: int(found[1]) - 1])) + int(found[2]) - 1
        at = min(at, max(len(source.text) - 1, 0))
        span = Span(source, at, min(at + 1, len(source.text)))
    help = "shardspec reads `[tool.shardspec]` of the pyproject.toml above a spec"
    return point(codes.SYNTAX, message, span, help=help)
