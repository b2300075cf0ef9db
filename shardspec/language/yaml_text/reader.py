"""YAML text -> plain data, where every piece came from, and the comments.

The data is composed here from the events of libyaml's parser, without recursion: PyYAML's own
composer lets the last of two equal keys win, knows no depth limit (100,000 brackets end the
process), and reads words as YAML 1.1 does. Every fault of the document is reported at once;
only a text that is no YAML at all, or nested without end, stops the reading.

YAML itself ends at its first error. There the line, or the section, that holds the error is
blanked, and the rest is read: one slip is told, and so is everything else that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, point
from shardspec.language.reading import Data, Reading, SourceMap, section_at
from shardspec.language.yaml_text.composer import Composer

#: Characters of a text that is read on behind a syntax error.
_MOST_MENDED = 2**18

_MINIMAL = "a spec is at least:\nrules:\n  - batch -> data"


def read_yaml(
    source: SourceFile, *, with_comments: bool = True, minimal: str = _MINIMAL
) -> tuple[Reading | None, tuple[Diagnostic, ...]]:
    """Return the document in `source`, and every fault found in it.

    The reading is there whenever the text is YAML, even where keys or words in it are faulty:
    the first of two equal keys counts, and a faulty word stays the text it is.

    Args:
      with_comments: whether comments are wanted; only formatting wants them.
      minimal: the help where there is no mapping: what such a file is at least.

    Invariants:
      robust: any text gives a reading or a fault, and every label lies in the text.
    """
    composer = Composer(source, is_own=True)
    if _compose(composer):
        return _finish(composer, with_comments, minimal), tuple(composer.faults)
    if composer.stopped_at is None or len(source.text) > _MOST_MENDED:
        return None, tuple(composer.faults)
    rest, faults = _read_rest(composer)
    if rest is None or not isinstance(rest.root, dict):
        return None, faults
    faults = tuple(dict.fromkeys((*faults, *rest.faults)))
    return Reading(rest.root, SourceMap(source, rest.keys, rest.values), is_whole=False), faults


class YamlValue(NamedTuple):
    """Any YAML: its root may be a list or a single value.

    Attributes:
      source_map: None where the text is no YAML.
    """

    root: Data
    source_map: SourceMap | None
    faults: tuple[Diagnostic, ...]


def read_yaml_value(source: SourceFile, composer: Composer | None = None) -> YamlValue:
    """Return what a file of another tool holds, with every fault that its composer finds.

    Args:
      composer: one that takes more than our own files may have.
    """
    composer = composer or Composer(source)
    is_whole = _compose(composer)
    source_map = SourceMap(source, composer.keys, composer.values) if is_whole else None
    return YamlValue(composer.root, source_map, tuple(composer.faults))


#: How libyaml 0.2.6 and later refuse what they read ahead of the events that we count levels by.
_TOO_DEEP = "exceeded maximum nesting depth"


def _compose(composer: Composer) -> bool:
    """Feed the events to `composer`; return whether the text was read to its end."""
    import yaml
    from yaml._yaml import CParser

    text = composer.text
    if text.startswith("\ufeff"):
        # libyaml does not count a byte order mark; an empty line keeps the offsets right.
        text = "\n" + text[1:]
    try:
        next_event = CParser(text).get_event
        while (event := next_event()) is not None:
            if not composer.take(event):
                return False
    except (UnicodeEncodeError, yaml.reader.ReaderError):
        from shardspec.language.yaml_text.scalars import find_foreign_characters

        unread = point(codes.SYNTAX, "the text cannot be read as YAML", composer.source.whole)
        composer.faults.extend(find_foreign_characters(composer.source) or [unread])
        return False
    except yaml.MarkedYAMLError as error:
        from shardspec.language.yaml_text.faults import explain_yaml_error

        mark = error.problem_mark or error.context_mark
        if mark is not None and error.problem == _TOO_DEEP:
            composer.refuse_depth(mark.index, "the YAML parser stops here")
            return False
        fault = explain_yaml_error(error, composer.source)
        composer.stopped_at = None if mark is None else mark.index
        composer.faults = [known for known in composer.faults if not _is_part(known, fault)]
        composer.faults.append(fault)
        return False
    return True


def _is_part(known: Diagnostic, fault: Diagnostic) -> bool:
    """Say whether a fault was only the beginning of a syntax error: `{0..3}` of `{0..3}/k`."""
    if known.primary is None or fault.primary is None:
        return False
    first, second = known.primary.span, fault.primary.span
    return first.end == second.start or first.start == second.start


def _finish(composer: Composer, with_comments: bool, minimal: str) -> Reading | None:
    """Return the reading of a document whose root is a mapping; else note the fault."""
    source, root = composer.source, composer.root
    if isinstance(root, dict):
        source_map = SourceMap(source, composer.keys, composer.values)
        if not with_comments:
            return Reading(root, source_map)
        from shardspec.language.yaml_text.comments import attach_comments

        return Reading(root, source_map, attach_comments(source_map))
    excerpt = composer.values.get(())
    if root is None and (excerpt is None or excerpt.text in ("", "null", "~")):
        empty = "the document is empty"
        composer.faults.append(point(codes.SYNTAX, empty, source.whole, help=minimal))
    elif excerpt is not None:
        kind = "list" if isinstance(root, list) else "single value"
        message = f"the document is a {kind}, not a mapping of keys to values"
        first, _, rest = excerpt.span.text.partition("\n")
        start, first = excerpt.span.start, first.rstrip()
        span = Span(source, start, start + len(first))
        way_out = f"a key ends with `:`: write `{first}:`" if rest.startswith(" ") else minimal
        composer.faults.append(point(codes.WRONG_TYPE, message, span, help=way_out))
    return None


#: Errors that are passed over, one after another.
_MOST_ERRORS = 8

_TOP_LEVEL = re.compile(r"^[^\s#]", re.MULTILINE)
_NOT_BLANK = re.compile(r"[^\n]")


def _read_rest(composer: Composer) -> tuple[Composer | None, tuple[Diagnostic, ...]]:
    """Return what is left of a text when its syntax errors are blanked, and those errors.

    Args:
      composer: one that stopped at an error.

    Returns:
      A composer that came to the end, None where no blanks help; and the errors, each with the
      section that it took something, or all, of.
    """
    errors: list[Diagnostic] = []
    while len(errors) < _MOST_ERRORS:
        error = composer.faults[-1]
        found = _without(error, composer)
        if found is None:
            return None, (*errors, error)
        composer, is_whole, is_read = found
        errors.append(_placed(error, is_whole))
        if is_read:
            return composer, tuple(errors)
    return None, tuple(errors)


def _without(error: Diagnostic, composer: Composer) -> tuple[Composer, bool, bool] | None:
    """Return a composer that got past an error, whether a section went, and if it is done."""
    for start, end, is_whole in _regions(composer.text, error):
        text = composer.text
        text = text[:start] + _NOT_BLANK.sub(" ", text[start:end]) + text[end:]
        rest = Composer(composer.source, text=text, is_own=True)
        is_read = _compose(rest)
        if is_read or not _is_again(error, rest.faults[-1]):
            return rest, is_whole, is_read
    return None


def _is_again(error: Diagnostic, other: Diagnostic) -> bool:
    """Say whether an error is the same slip, met elsewhere."""
    return bool({label.span for label in error.labels} & {label.span for label in other.labels})


def _regions(text: str, error: Diagnostic) -> Iterator[tuple[int, int, bool]]:
    """Yield what may be blanked for an error, the least first, and whether a section goes whole."""
    starts = [label.span.start for label in error.labels]
    for at in dict.fromkeys((min(starts, default=0), *starts)):
        line = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        top, below = _section(text, at)
        others = f"{text[top:line]}{text[end:below]}".strip()
        if (line <= top and not others) or (line > top and not others.endswith(":")):
            yield line, end, line <= top
        yield top, below, True


def _section(text: str, at: int) -> tuple[int, int]:
    """Return from where to where the top-level entry around an offset goes."""
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    top = 0
    for found in _TOP_LEVEL.finditer(text, 0, end):
        top = found.start()
    below = _TOP_LEVEL.search(text, end)
    return top, below.start() if below else len(text)


def _placed(error: Diagnostic, is_whole: bool) -> Diagnostic:
    """Return the error with the section of its first label, where the slip is."""
    span = min((label.span for label in error.labels), key=lambda span: span.start, default=None)
    section = None if span is None else section_at(span)
    return replace(error, section=section, subject=section if is_whole else None)
