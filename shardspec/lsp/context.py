"""Where in a spec the cursor stands, told of a text that is still being written.

What is written so far is no YAML yet, and no DSL, so this reads neither: of YAML it follows
indentation, brackets and quotes up to the cursor, of the DSL its statements.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shardspec.language.dsl_text.layout import PHASE, Statement, lay_out
from shardspec.language.sections import section_of

#: What stands at the place of an item of a list.
ITEM = "-"
_KEY = re.compile(
    r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s#'"{}\[\],](?:[^#\n:]|(?<!\s)#|:(?!\s|$))*+))"""
    r"""[ \t]*+:(?=\s|$)"""
)
_FLOW_KEY = re.compile(
    r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s'"{}\[\],](?:[^{}\[\],\n:]|:(?![\s"'{\[]))*+))"""
    r"""[ \t]*+:(?=[\s"'{\[])"""
)
_COMMENT = re.compile(r"(?:^|\s)#([^\n]*)$")


class Place(NamedTuple):
    """Where the cursor stands.

    Attributes:
      route: the keys above, `-` for an item of a list; of a value, its own key too.
      is_key: whether a key is being written, and not a value.
      written: what stands there already, up to the cursor; of a comment, its text.
      is_comment: whether it is within a comment.
      is_dsl: whether the DSL is written, where entries end otherwise.
    """

    route: tuple[str, ...]
    is_key: bool
    written: str
    is_comment: bool = False
    is_dsl: bool = False

    @property
    def inner(self) -> tuple[str, ...]:
        """Return the route counted from the phase that it is in, if it is in one."""
        return self.route[2:] if self.route[:1] == ("phases",) and self.route[1:] else self.route


def place_at(text: str, offset: int, *, is_dsl: bool) -> Place:
    """Return where an offset stands in a text."""
    before = text[:offset]
    line = before[before.rfind("\n") + 1 :]
    comment = _COMMENT.search(_without_quoted(line))
    if comment is not None:
        return Place((), False, line[comment.start(1) :], is_comment=True, is_dsl=is_dsl)
    return _dsl_place(before)._replace(is_dsl=True) if is_dsl else _yaml_place(before)


def _without_quoted(line: str) -> str:
    """Return a line with other letters in place of what stands in quotes, as long as before."""
    return re.sub(r"\"[^\"]*\"|'[^']*'", lambda found: "x" * len(found[0]), line)


# YAML


def _named(key: re.Match[str]) -> str:
    return next(filter(None, key.groups()), "").rstrip(" \t")


class _Block(NamedTuple):
    indent: int
    key: str


def _yaml_place(before: str) -> Place:
    """Return the place at the end of a piece of YAML."""
    top = _last_top_line(before)
    blocks: list[_Block] = []
    at = top
    while True:
        end = before.find("\n", at)
        last = end < 0
        line = before[at:] if last else before[at:end]
        stripped = line.strip()
        if last or (stripped and not stripped.startswith("#")):
            start = _enter(line, at, blocks, is_last=last)
            if start is None:
                return Place((*(block.key for block in blocks),), True, line.lstrip("- \t"))
            found = _Flow(before, start).run(_route(blocks))
            if isinstance(found, Place):
                return found
            at = max(found, end)
        else:
            at = end
        at = before.find("\n", at) + 1
        if at == 0:
            return Place(_route(blocks), False, "")


def _last_top_line(before: str) -> int:
    """Return where the last line above begins that holds a key at the margin."""
    line = before.rfind("\n") + 1
    found = 0
    for match in re.finditer(r"^[^\s#\-\]})]", before, re.MULTILINE):
        if match.start() > line:
            break
        found = match.start()
    return found


def _route(blocks: list[_Block]) -> tuple[str, ...]:
    return tuple(block.key for block in blocks)


def _enter(line: str, at: int, blocks: list[_Block], *, is_last: bool) -> int | None:
    """Follow a line into its block; return the offset of the value on it.

    None where the cursor stands in what may become a key.
    """
    indent = len(line) - len(line.lstrip(" "))
    rest = line[indent:]
    while rest == ITEM or rest.startswith(("- ", "-\t")):
        _leave(blocks, indent, is_item=True)
        blocks.append(_Block(indent, ITEM))
        more = len(rest) - len(rest[1:].lstrip(" \t")) if rest != ITEM else 1
        indent, rest = indent + more, rest[more:]
    if rest or is_last:
        _leave(blocks, indent, is_item=False)
    key = _KEY.match(rest)
    if key is None:
        starts_value = blocks and blocks[-1].key == ITEM and blocks[-1].indent < indent
        if not is_last or starts_value or rest[:1] in ("{", "["):
            return at + indent
        return None
    blocks.append(_Block(indent, _named(key)))
    return at + indent + key.end()


def _leave(blocks: list[_Block], indent: int, *, is_item: bool) -> None:
    """Leave the blocks that a line of this indentation ends; an item may stand below its key."""
    while blocks and (
        blocks[-1].indent > indent
        or (blocks[-1].indent == indent and (not is_item or blocks[-1].key == ITEM))
    ):
        blocks.pop()


class _Flow:
    """The walk over one value, its brackets and quotes included."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def run(self, route: tuple[str, ...]) -> Place | int:
        """Return the place, if the text ends in this value; else the offset behind it."""
        text = self.text
        while self.at < len(text) and text[self.at] in " \t":
            self.at += 1
        if text[self.at : self.at + 1] not in ("{", "["):
            return self._scalar(route)
        found = self._collection(route)
        return self.at if found is None else found

    def _scalar(self, route: tuple[str, ...]) -> Place | int:
        """Return the place in a plain or quoted value of a block, which ends with its line."""
        text, start = self.text, self.at
        quote = text[start : start + 1]
        if quote in ('"', "'") and quote:
            end = text.find(quote, start + 1)
            if end < 0:
                return Place(route, False, text[start + 1 :])
        end = text.find("\n", start)
        return Place(route, False, text[start:]) if end < 0 else end

    def _collection(self, route: tuple[str, ...]) -> Place | None:
        """Go through `{...}` or `[...]`; return the place if the text ends within it."""
        is_map = self.text[self.at] == "{"
        self.at += 1
        inner = route if is_map else (*route, ITEM)
        is_key = is_map
        start = untried = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            key = None
            if is_map and is_key and self.at >= untried and not char.isspace():
                key = _FLOW_KEY.match(self.text, self.at)
                end = self.text.find("\n", self.at)  # a key stands on one line
                untried = len(self.text) if end < 0 else end
            if key is not None:
                inner = (*route, _named(key))
                self.at, is_key = key.end(), False
                start = self.at
            elif char in ('"', "'"):
                end = self.text.find(char, self.at + 1)
                if end < 0:
                    return Place(inner, is_key, self.text[self.at + 1 :])
                self.at = end + 1
            elif char in "{[":
                found = self._collection(inner)
                if found is not None:
                    return found
            elif char in "}]":
                self.at += 1
                return None
            else:
                self.at += 1
                if char == ",":
                    untried = self.at
                    inner, is_key, start = route if is_map else inner, is_map, self.at
        written = self.text[start:].lstrip()
        return Place(route if is_key and is_map else inner, is_key, written)


# DSL


def _dsl_place(before: str) -> Place:
    """Return the place at the end of a piece of DSL."""
    layout = lay_out(before)
    route: tuple[str, ...] = ()
    statements = layout.statements
    while True:
        last = statements[-1] if statements else None
        if last is None or _is_over(last, before):
            return Place(route, True, "")
        head = before[last.start : last.end]
        if last.entries is None:
            return _in_statement(head + before[last.end :], route)
        word, _, rest = head.strip().partition(" ")
        if word != PHASE:
            return _in_block(word, rest, last, before, route)
        route = ("phases", rest.strip())
        statements = last.entries


def _is_over(statement: Statement, before: str) -> bool:
    """Say whether the cursor stands behind a statement."""
    if statement.entries is not None:
        return statement.is_closed
    return bool(re.search(r"[\n;]", before[statement.end :]))


def _in_block(word: str, rest: str, block: Statement, before: str, route: tuple[str, ...]) -> Place:
    """Return the place within the braces of a section or a mesh."""
    section = section_of(word)
    section_route = (*route, section)
    if word == "target":
        section_route = (*route, "targets", *(rest.split() or [""])[:1], "mesh")
    last = block.entries[-1] if block.entries else None
    entry = "" if last is None or _is_over(last, before) else before[last.start :]
    if section == "rules":
        rule, _, at = entry.partition(" at ")
        where = (*section_route, ITEM)
        return Place((*where, "at"), False, at) if at else Place(where, False, rule)
    mark = "=" if section_route[-1] == "mesh" else ":"
    key, found, value = _cut(entry, mark)
    where = (*section_route, key) if found else section_route
    return Place(where, not found, value if found else entry)


def _cut(entry: str, mark: str) -> tuple[str, bool, str]:
    """Return a key, whether it is done, and what stands behind it."""
    if entry.startswith('"') and entry.find('"', 1) > 0:
        end = entry.find('"', 1)
        rest = entry[end + 1 :].lstrip()
        return entry[1:end], rest.startswith(mark), rest[1:].lstrip()
    found = re.match(rf"(\S+?)\s*{mark}(?=\s|$)\s*(.*)", entry, re.DOTALL)
    return (found[1], True, found[2]) if found else (entry, False, "")


def _in_statement(text: str, route: tuple[str, ...]) -> Place:
    """Return the place within a statement that has no block."""
    word, blank, rest = text.partition(" ")
    if not blank:
        return Place(route, True, word)
    section = section_of(word)
    if word in ("extends", "manifest", "drop"):
        return Place((*route, section, ITEM), False, re.split(r",\s*", rest)[-1])
    if word in ("hardware", "doc", "shardspec"):
        return Place((*route, section), False, rest.lstrip())
    if word in ("mesh", "target"):
        name, _, machine = rest.rpartition("on ") if "on " in rest else (rest, "", None)
        where = (*route, "targets", name.strip()) if word == "target" else route
        if machine is None:
            return Place(where, True, "")
        return Place((*where, "hardware"), False, machine)
    if word in ("policy", "state", "coverage", "lint"):
        key, blank, value = rest.partition(" ")
        where = (*route, section)
        return Place((*where, key) if blank else where, not blank, value or key)
    if word in ("axis", "let"):
        name, found, value = _cut(rest, "=")
        where = (*route, section)
        return Place((*where, name), False, value) if found else Place(where, True, name)
    return _in_entry(section, rest, route)


def _in_entry(section: str, rest: str, route: tuple[str, ...]) -> Place:
    """Return the place within an override, and what else is about a pattern."""
    for mark, field in ((":", "axes"), ("=", "spec")):
        key, found, answer = _cut(rest, mark)
        if found:
            return Place((*route, section, ITEM, field), False, answer)
    return Place((*route, section, ITEM, "path"), False, key)
