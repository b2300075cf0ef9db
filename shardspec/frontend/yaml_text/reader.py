"""YAML text -> plain data, where every piece came from, and the comments.

The data is composed here from the events of libyaml's parser, without recursion: PyYAML's own
composer lets the last of two equal keys win, knows no depth limit (100,000 brackets end the
process), and reads words as YAML 1.1 does. Every fault of the document is reported at once;
only a text that is no YAML at all, or nested without end, stops the reading.
"""

from __future__ import annotations

from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.diagnostics.codes import SYNTAX, WRONG_TYPE
from shardspec.diagnostics.diagnostic import point
from shardspec.frontend.reading import Data, Reading, SourceMap
from shardspec.frontend.yaml_text.composer import Composer

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
    composer = Composer(source)
    if _compose(composer):
        return _finish(composer, with_comments, minimal), tuple(composer.faults)
    if composer.stopped_at is None or len(source.text) > _MOST_MENDED:
        return None, tuple(composer.faults)
    from shardspec.frontend.yaml_text.rest import read_rest

    rest, faults = read_rest(composer, _compose)
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


#: Characters of a text that is read on behind a syntax error.
_MOST_MENDED = 2**18


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
        from shardspec.frontend.yaml_text.foreign import find_foreign_characters

        unread = point(SYNTAX, "the text cannot be read as YAML", composer.source.whole)
        composer.faults.extend(find_foreign_characters(composer.source) or [unread])
        return False
    except yaml.MarkedYAMLError as error:
        from shardspec.frontend.yaml_text.faults import explain_yaml_error

        fault = explain_yaml_error(error, composer.source)
        mark = error.problem_mark or error.context_mark
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
        from shardspec.frontend.yaml_text.comments import attach_comments

        return Reading(root, source_map, attach_comments(source_map))
    excerpt = composer.values.get(())
    if root is None and (excerpt is None or excerpt.text in ("", "null", "~")):
        composer.faults.append(point(SYNTAX, "the document is empty", source.whole, help=minimal))
    elif excerpt is not None:
        kind = "list" if isinstance(root, list) else "single value"
        message = f"the document is a {kind}, not a mapping of keys to values"
        start, end = excerpt.span.start, excerpt.span.end
        first, _, rest = source.text[start:end].partition("\n")
        span = Span(source, start, start + len(first.rstrip()))
        way_out = (
            f"a key ends with `:`: write `{first.rstrip()}:`" if rest.startswith(" ") else minimal
        )
        composer.faults.append(point(WRONG_TYPE, message, span, help=way_out))
    return None
