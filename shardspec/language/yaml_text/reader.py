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
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shardspec.diagnostics import Code, Diagnostic, Excerpt, Label, SourceFile, Span, codes, point
from shardspec.diagnostics.budget import spend
from shardspec.diagnostics.diagnostic import Edit, Fix
from shardspec.diagnostics.words import did_you_mean
from shardspec.language.reading import Data, Reading, Route, SourceMap, section_at
from shardspec.language.yaml_text.printer import SPECIAL_STARTS, ScalarFault, read_plain

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
        from shardspec.language.yaml_text.printer import find_foreign_characters

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


# Parser events -> data and source map, with a stack in place of recursion.


DEEPEST = 64
"""Levels of lists and mappings in one another."""

MOST_ALIASED = 100_000
"""Values that aliases may stand for, all together: a few lines can ask for billions."""

_STRING_TAGS = ("tag:yaml.org,2002:str", "!")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s*(?:#.*\s*)*)+")
_DEEPER_ITEM = re.compile(r"\n[ \t]*(-[ \t]+)(?=\S)")
_TAG = re.compile(r"![^\s,\[\]{}]*")


#: A tile of chips as a tuple, the notation of T5X.
_TILE = re.compile(r"submesh\s*\(([0-9,\s]+)\)")
_LONGEST_JOINED = 400


def _end_of_parentheses(text: str, span: Span) -> int | None:
    """Return where a value ends whose open parenthesis a comma has torn off; None elsewhere."""
    depth = text.count("(", span.start, span.end) - text.count(")", span.start, span.end)
    if depth <= 0:
        return None
    for at in range(span.end, min(len(text), span.end + _LONGEST_JOINED)):
        char = text[at]
        if char in "\n[{#\"'" or (char == ":" and text[at + 1 : at + 2] in ("", " ")):
            return None
        if char == "," and text[at + 1 : at + 9].lstrip(" ")[:1] in tuple("?&*!|>%@`-,"):
            return None
        depth += (char == "(") - (char == ")")
        if char in "]}" or (char == "," and depth <= 0):
            return None if depth else span.start + len(text[span.start : at].rstrip())
    return None


@dataclass(slots=True)
class _Anchored:
    """What `&name` stands before.

    Attributes:
      size: values in it, itself included; height: levels of nesting.
      values: the map that knows the excerpts below `route`.
      is_open: its list or mapping has not ended, so an alias to it would be a circle.
    """

    data: Data
    text: str | None
    route: Route
    values: dict[Route, Excerpt]
    size: int = 1
    height: int = 0
    is_open: bool = False


@dataclass(slots=True)
class _Frame:
    """An open list or mapping.

    Attributes:
      key: the key whose value comes next; None where a key comes next.
      keys, values: the source map to write to; one of its own for what does not count.
      is_detached: the next value does not count: its key is faulty or stands here already.
      is_key: the whole of it stands where a key should, so it does not count.
    """

    data: Any
    is_mapping: bool
    is_flow: bool
    route: Route
    start: int
    keys: dict[Route, Excerpt]
    values: dict[Route, Excerpt]
    key: str | None = None
    is_detached: bool = False
    is_key: bool = False
    size: int = 1
    height: int = 1
    anchored: _Anchored | None = None


@dataclass(slots=True)
class Composer:
    """Takes events one at a time; afterwards holds the root, the positions and the faults.

    Attributes:
      text: the text that is read: that of the source, or the same with blanks for parts of it.
      stopped_at: where the text stopped being YAML; None where it did not.
      is_own: whether the text is in the language of shardspec, where a parenthesis that a comma
        tears apart is meant as one value.
    """

    source: SourceFile
    faults: list[Diagnostic] = field(default_factory=list)
    keys: dict[Route, Excerpt] = field(default_factory=dict)
    values: dict[Route, Excerpt] = field(default_factory=dict)
    root: Data = None
    text: str = ""
    stopped_at: int | None = None
    is_own: bool = False
    _torn: int = 0
    _stack: list[_Frame] = field(default_factory=list)
    _anchors: dict[str, _Anchored] = field(default_factory=dict)
    _aliased: int = 0
    _last_end: int = 0
    _documents: int = 0

    def __post_init__(self) -> None:
        """Keep the text at hand: it is asked for at every event."""
        self.text = self.text or self.source.text

    def take(self, event: Any) -> bool:
        """Return whether reading can go on after `event`."""
        kind = type(event).__name__
        spend(30, self.source, event.start_mark.index)
        if kind == "ScalarEvent":
            self._take_scalar(event)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            return self._open(event, kind == "MappingStartEvent")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._close(event)
        elif kind == "AliasEvent":
            return self._take_alias(event)
        return kind != "DocumentStartEvent" or self._start_document(event)

    def _take_scalar(self, event: Any) -> None:
        if self._torn:
            self._torn -= 1
            return
        excerpt = self._excerpt(event)
        self._last_end = excerpt.span.end
        frame = self._stack[-1] if self._stack else None
        is_plain = not event.style and event.tag is None
        if event.tag is not None:
            self._check_tag(event, is_scalar=True)
        if event.anchor:
            self._anchors[event.anchor] = _Anchored(excerpt.text, excerpt.text, (), {})
        if frame is not None and frame.is_mapping and frame.key is None:
            self._take_key(frame, excerpt, is_plain)
            return
        start, end = excerpt.span.start, excerpt.span.end
        if is_plain and "(" in excerpt.text and self.is_own and self._join(excerpt, frame):
            return
        if is_plain and self.text.find("\n", start, end) >= 0 and self._split(excerpt, frame):
            return
        data = self._read_plain(excerpt) if is_plain else excerpt.text
        if event.anchor:
            self._anchors[event.anchor].data = data
        self._put(data, excerpt)

    def _excerpt(self, event: Any) -> Excerpt:
        """Return the scalar's value with its place, exact where the characters line up."""
        start: int = event.start_mark.index
        end: int = event.end_mark.index
        value: str = event.value
        if event.anchor or event.tag:
            found = _PROPERTIES.match(self.text, start, end)
            start = found.end() if found else start
        style = event.style
        if style in ("|", ">"):
            end = start + len(self.text[start:end].rstrip())
            return Excerpt(value, Span(self.source, start, end))
        inner = start + 1 if style else start
        exact = inner if self.text.startswith(value, inner) else None
        return Excerpt(value, Span(self.source, start, end), exact)

    def _join(self, excerpt: Excerpt, frame: _Frame | None) -> bool:
        """File `submesh (4, 2)` in a flow as the one value that it was meant to be.

        YAML ends the value at the comma, and takes the rest for keys without values, or items.
        """
        end = _end_of_parentheses(self.text, excerpt.span) if frame and frame.is_flow else None
        if end is None or frame is None:
            return False
        whole = Span(self.source, excerpt.span.start, end)
        text = whole.text
        self._torn = text[len(excerpt.text) :].count(",") * (1 + frame.is_mapping)
        self._last_end = end
        where, what = ("braces", "value") if frame.is_mapping else ("brackets", "item")
        meant = _TILE.sub(lambda tile: "submesh " + "x".join(re.findall("[0-9]+", tile[1])), text)
        written, title = f'"{meant}"' if "," in meant else meant, "quote it"
        quoted = f"between {where}, quote what holds a comma: `{written}`"
        if meant != text:
            quoted = title = f"write `{written}`"
        message = f"the comma ends the {what}, which is then `{excerpt.text}`"
        label = Label(whole, f"{'keys' if frame.is_mapping else 'items'} for YAML")
        fix = Fix(title, (Edit(whole, written),), is_sure=True)
        self.faults.append(Diagnostic(codes.SYNTAX, message, (label,), help=quoted, fix=fix))
        self._put(meant, Excerpt(meant, whole, whole.start if meant == text else None))
        return True

    def _split(self, excerpt: Excerpt, frame: _Frame | None) -> bool:
        """File what YAML joins into one value as the items that it was meant to be.

        A list item that is indented deeper than the one above goes on with its text.
        """
        text, (start, end) = self.text, (excerpt.span.start, excerpt.span.end)
        dashes = list(_DEEPER_ITEM.finditer(text, start, end))
        if not dashes or frame is None or frame.is_flow:
            return False
        above = Span(self.source, start, start + len(text[start : dashes[0].start()].rstrip()))
        stops = [*(dash.start() for dash in dashes[1:]), end]
        items = [
            Span(self.source, dash.end(), dash.end() + len(text[dash.end() : stop].rstrip()))
            for dash, stop in zip(dashes, stops, strict=True)
        ]
        line = Span(self.source, dashes[0].end() - len(dashes[0][1]), items[0].end)
        margin = text.rfind("\n", 0, start) + 1
        dash = text.find("-", margin, start) - margin + 1
        column = "" if frame.is_mapping else f": `-` belongs in column {dash}"
        message = "this line is indented deeper than the list, so YAML joins it to the text above"
        labels = (Label(line, ""), Label(above, "goes on below", primary=False))
        help = f"line it up with the other items{column}"
        self.faults.append(Diagnostic(codes.SYNTAX, message, labels, help=help))
        for span in (above,) if frame.is_mapping else (above, *items):
            words = " ".join(span.text.split())
            self._put(words, Excerpt(words, span, span.start if words == span.text else None))
        return True

    def _read_plain(self, excerpt: Excerpt) -> Data:
        if excerpt.text and excerpt.text[0] not in SPECIAL_STARTS:
            return excerpt.text
        read = read_plain(excerpt.text)
        if not isinstance(read, ScalarFault):
            return read
        self._fault(read.code, read.message, excerpt.span, read.label, read.help)
        return excerpt.text

    def _take_key(self, frame: _Frame, excerpt: Excerpt, is_plain: bool) -> None:
        """Note the key of the next value; a faulty or repeated one detaches it."""
        text = excerpt.text
        if is_plain and (not text or text[0] in SPECIAL_STARTS):
            frame.is_detached = self._is_bad_key(excerpt)
        frame.key = text
        if frame.is_detached:
            return
        route = (*frame.route, text)
        first = frame.keys.setdefault(route, excerpt)
        if first is excerpt:
            return
        frame.is_detached = True
        labels = (Label(excerpt.span, "again here"), Label(first.span, "first here", primary=False))
        way_out = "keep one of the two: YAML readers would silently use the last"
        message = f"the key `{text}` is given twice"
        self.faults.append(Diagnostic(codes.DUPLICATE_KEY, message, labels, help=way_out))

    def _is_bad_key(self, excerpt: Excerpt) -> bool:
        """Return whether nothing can be filed under the plain key; note what is wrong with it."""
        text, span = excerpt.text, excerpt.span
        if text == "<<":
            way_out = "write the keys out; whole specs are joined by `extends: [...]`"
            self._fault(codes.SYNTAX, "merge keys (`<<`) are not supported", span, "", way_out)
        elif not text:
            way_out = "write `name: value`; quote a name that holds `:`"
            self._fault(codes.SYNTAX, "a key is missing before `:`", span, "", way_out)
        else:
            fault = read_plain(text)
            if isinstance(fault, ScalarFault) and fault.code is not codes.WRONG_TYPE:
                self._fault(fault.code, fault.message, span, fault.label, fault.help)
            return False
        return True

    def refuse_depth(self, at: int, label: str) -> None:
        """Report nesting that is deeper than any spec needs."""
        message = f"lists and mappings are nested more than {DEEPEST} levels deep"
        span = Span(self.source, at, min(at + 1, len(self.text)))
        self._fault(codes.TOO_DEEP, message, span, label, "a spec needs five or six")

    def _open(self, event: Any, is_mapping: bool) -> bool:
        start = event.start_mark.index
        is_flow = bool(event.flow_style)
        if event.anchor or event.tag:
            start = event.end_mark.index - is_flow
        if event.tag is not None:
            self._check_tag(event, is_scalar=False)
        if len(self._stack) >= DEEPEST:
            self.refuse_depth(start, f"level {DEEPEST + 1}")
            return False
        self._last_end = start + is_flow
        frame = self._child(is_mapping, is_flow, start)
        if event.anchor:
            frame.anchored = _Anchored(frame.data, None, frame.route, frame.values, is_open=True)
            self._anchors[event.anchor] = frame.anchored
        self._stack.append(frame)
        return True

    def _child(self, is_mapping: bool, is_flow: bool, start: int) -> _Frame:
        """Return a new frame below the innermost open one."""
        data: Any = {} if is_mapping else []
        if not self._stack:
            return _Frame(data, is_mapping, is_flow, (), start, self.keys, self.values)
        parent = self._stack[-1]
        last = parent.key if parent.is_mapping else len(parent.data)
        is_key = last is None
        route = (*parent.route, "" if last is None else last)
        keys, values = ({}, {}) if is_key or parent.is_detached else (parent.keys, parent.values)
        return _Frame(data, is_mapping, is_flow, route, start, keys, values, is_key=is_key)

    def _close(self, event: Any) -> None:
        """File the innermost list or mapping, which is complete now."""
        frame = self._stack.pop()
        if frame.is_flow:
            self._last_end = event.end_mark.index
        span = Span(self.source, frame.start, max(frame.start, self._last_end))
        if frame.anchored is not None:
            frame.anchored.size, frame.anchored.height = frame.size, frame.height
            frame.anchored.is_open = False
        if frame.is_key:
            self._refuse_key(self._stack[-1], span, "mapping" if frame.is_mapping else "list")
        else:
            self._put(frame.data, Excerpt("", span), frame.size, frame.height)

    def _refuse_key(self, parent: _Frame, span: Span, kind: str) -> None:
        message = f"a {kind} cannot be a key"
        quoted = self.text[span.start : span.end].split("\n")[0]
        way_out = f"a key that starts with `{quoted[:1]}` needs quotes around all of it"
        self._fault(codes.WRONG_TYPE, message, span, f"this is a {kind}", way_out)
        parent.key, parent.is_detached = "", True

    def _put(self, data: Data, excerpt: Excerpt, size: int = 1, height: int = 0) -> None:
        """File a value under the innermost open list or mapping, or as the root."""
        if not self._stack:
            self.root, self.values[()] = data, excerpt
            return
        frame = self._stack[-1]
        frame.size += size
        frame.height = max(frame.height, height + 1)
        if not frame.is_mapping:
            frame.values[(*frame.route, len(frame.data))] = excerpt
            frame.data.append(data)
            return
        if not frame.is_detached:
            frame.values[(*frame.route, frame.key or "")] = excerpt
            frame.data[frame.key] = data
        frame.key, frame.is_detached = None, False

    def _take_alias(self, event: Any) -> bool:
        """File what `*name` stands for; return False where it would never end."""
        span = Span(self.source, event.start_mark.index, event.end_mark.index)
        self._last_end = span.end
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            name = event.anchor
            quoted = f'a pattern that starts with `*` needs quotes: "*{name}"'
            message = f"the alias `*{name}` has no anchor `&{name}` above it"
            way_out = did_you_mean(name, self._anchors) or quoted
            self._fault(codes.SYNTAX, message, span, "no such anchor", way_out)
            anchored = _Anchored(span.text, span.text, (), {})
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.is_mapping and frame.key is None:
            if anchored.text is None:
                self._refuse_key(frame, span, "list or mapping")
            else:
                self._take_key(frame, Excerpt(anchored.text, span), is_plain=False)
            return True
        if self._is_endless(event.anchor, anchored, span):
            return False
        if frame is not None and anchored.size > 1 and not frame.is_detached:
            last = frame.key if frame.key is not None else len(frame.data)
            self._copy_excerpts(anchored, (*frame.route, last), frame, span)
        self._put(anchored.data, Excerpt(anchored.text or "", span), anchored.size, anchored.height)
        return True

    def _is_endless(self, name: str, anchored: _Anchored, span: Span) -> bool:
        """Return whether an alias is a circle, too deep or one too many; note which."""
        self._aliased += anchored.size
        if anchored.is_open:
            message = f"the alias `*{name}` stands inside its own anchor `&{name}`"
            told = ("a circle without end", "write the value out")
        elif self._aliased > MOST_ALIASED:
            message = f"aliases stand for more than {MOST_ALIASED:,} values"
            told = ("one too many", "write the values out, or use globs")
        elif len(self._stack) + anchored.height > DEEPEST:
            message = f"lists and mappings are nested more than {DEEPEST} levels deep"
            told = (f"{anchored.height} more levels", "nest less")
        else:
            return False
        self._fault(codes.TOO_DEEP, message, span, *told)
        return True

    def _copy_excerpts(self, anchored: _Anchored, here: Route, frame: _Frame, span: Span) -> None:
        """Give all that an alias stands for its text, and the alias as its place."""
        pending: list[tuple[Data, Route]] = [(anchored.data, ())]
        while pending:
            data, below = pending.pop()
            steps = data.items() if isinstance(data, dict) else enumerate(data)  # type: ignore[arg-type]
            for step, value in steps:
                route = (*below, step)
                if isinstance(data, dict):
                    frame.keys[(*here, *route)] = Excerpt(str(step), span)
                known = anchored.values.get((*anchored.route, *route))
                frame.values[(*here, *route)] = Excerpt(known.text if known else "", span)
                if isinstance(value, (dict, list)):
                    pending.append((value, route))

    def _start_document(self, event: Any) -> bool:
        self._documents += 1
        if self._documents == 1:
            return True
        span = Span(self.source, event.start_mark.index, event.end_mark.index)
        way_out = "one file holds one spec: put the second in a file of its own"
        self._fault(codes.SYNTAX, "a second document starts here", span, "", way_out)
        return False

    def _check_tag(self, event: Any, *, is_scalar: bool) -> None:
        if is_scalar and event.tag in _STRING_TAGS:
            return
        start, end = event.start_mark.index, event.end_mark.index
        found = _TAG.search(self.text, start, end)
        span = Span(self.source, *found.span()) if found else Span(self.source, start, end)
        message = f"the tag `{span.text}` is not supported"
        way_out = "leave it out; a value that starts with `!` needs quotes"
        self._fault(codes.SYNTAX, message, span, "only `!!str` may stand here", way_out)

    def _fault(self, code: Code, message: str, span: Span, label: str, way_out: str) -> None:
        fix = None
        if code is codes.YAML_TRAP:
            plain = span.text.replace("_", "")
            if plain != span.text and plain.isdecimal() and plain[0] != "0":
                fix = Fix(f"write {plain}", (Edit(span, plain),))
            else:
                edit = Edit(span, f'"{span.text}"')
                fix = Fix(f"quote it: {edit.text}", (edit,), is_sure=span.text.isalpha())
        self.faults.append(Diagnostic(code, message, (Label(span, label),), help=way_out, fix=fix))
