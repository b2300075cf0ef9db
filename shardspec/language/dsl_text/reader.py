"""DSL text -> plain data, where every piece came from, and the comments.

The file is laid out first (`layout`), then each statement is parsed alone with the grammar
`document`, whose expressions are those of the YAML strings; they stay text here, as they do
there. Every fault of the file is reported at once, and what is whole is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, point
from shardspec.diagnostics.codes import SYNTAX, TOO_DEEP
from shardspec.language.dsl_text.data import DslData, child_of, maybe_child_of
from shardspec.language.dsl_text.faults import (
    known_word,
    no_block,
    statement_fault,
    unknown_statement,
)
from shardspec.language.dsl_text.layout import (
    KEYWORDS,
    SECTIONS,
    Comment,
    Statement,
    bad_escape,
    lay_out,
)
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.reading import Comments, Data, Reading, Route, SourceMap, number_or_text
from shardspec.language.yaml_text.comments import comment_text
from shardspec.language.yaml_text.scalars import find_foreign_characters

if TYPE_CHECKING:
    from shardspec.language.dsl_text.data import Node

_MINIMAL = "a spec is at least:\nrules {\n  batch -> data\n}"
_LONGEST = 20_000
#: Syntax faults after which the rest of a file is no longer explained.
_MOST = 500


#: Of the longest text that is read: each takes about a hundred bytes of memory while it is.
MOST_CHARACTERS = 4_000_000


def read_dsl(source: SourceFile) -> tuple[Reading | None, tuple[Diagnostic, ...]]:
    """Return the document in `source`, and every fault found in it.

    Invariants:
      robust: any text gives a reading or a fault, and every label lies in the text.
      same: a file that says what a YAML file says gives equal data.
    """
    if len(source.text) > MOST_CHARACTERS:
        message = f"a spec of {len(source.text):,} characters; {MOST_CHARACTERS:,} is the most"
        help = "arrays stand in a manifest, however many: `manifest ./arrays.json`"
        return None, (point(TOO_DEEP, message, source.whole, help=help),)
    foreign = find_foreign_characters(source, "a spec")
    if foreign:
        return None, tuple(foreign)
    layout = lay_out(source.text)
    if not layout.statements:
        return None, (point(SYNTAX, "the document is empty", source.whole, help=_MINIMAL),)
    build = _Build(source, layout.text)
    for statement in layout.statements:
        build.statement(statement)
    source_map = SourceMap(source, build.keys, build.values)
    comments = attach_comments(source.text, layout.comments, build.entries, build.blocks)
    return Reading(build.data, source_map, comments), tuple(build.diagnostics)


class _Build(DslData):
    """The data as it grows, statement by statement."""

    def statement(self, statement: Statement) -> None:
        """Take in one statement."""
        word = self.text[statement.start : statement.end].split(None, 1)[0]
        keyword = word.partition('"')[0]
        if keyword not in KEYWORDS:
            if len(self.diagnostics) < _MOST:
                self.report(unknown_statement(word, self.text, statement))
            meant = known_word(word)
            if meant in SECTIONS and statement.entries is not None:
                self._section(_SECTION_OF.get(meant, meant), statement)
            return
        if statement.entries is None and keyword not in _STATEMENTS:
            self.report(no_block(keyword), statement.start)
            return
        if statement.entries is not None and not statement.is_closed:
            fault = SyntaxFault("this block is not closed", 0, 1, "close it with `}`")
            self.report(fault, statement.opening)
        is_section = statement.entries is not None and keyword in SECTIONS
        tree = self._parse("section" if is_section else _STARTS.get(keyword, keyword), statement)
        if tree is not None and is_section:
            self._section(_SECTION_OF.get(keyword, keyword), statement)
        elif tree is not None:
            _STATEMENTS[keyword](self, tree, statement)
        else:
            for entry in statement.entries or ():
                self._parse(_ENTRY_OF.get(keyword, "mesh_entry"), entry)

    def _parse(self, start: str, statement: Statement) -> Node | None:
        """Return the tree of a statement, or None after reporting what is wrong."""
        from lark.exceptions import UnexpectedInput

        from shardspec.language.grammar.parser import parser

        text = self.text[statement.start : statement.end]
        if len(text) > _LONGEST and start != "doc":
            message = f"a statement of {len(text):,} characters is too long"
            fault = SyntaxFault(message, 0, len(text), f"at most {_LONGEST:,} characters")
            self.report(fault, statement.start)
            return None
        try:
            tree = parser("document").parse(text, start=start)
        except UnexpectedInput:
            if len(self.diagnostics) < _MOST:
                self.report(statement_fault(start, text), statement.start)
            return None
        for token in tree.scan_values(lambda token: isinstance(token, str)):
            wrong = bad_escape(token) if token.type in {"STRING", "ESCAPED_REGEX"} else None
            if wrong:
                at = token.start_pos or 0
                message = f"`{token[slice(*wrong)]}` means nothing in text"
                help = 'write `\\\\` for a backslash; known: `\\"`, `\\\\`, `\\n`, `\\t`, `\\r`'
                self.report(
                    SyntaxFault(message, at + wrong[0], at + wrong[1], help), statement.start
                )
        return tree

    def version(self, tree: Node, statement: Statement) -> None:
        """Take in `shardspec 1`."""
        self.scalar(("shardspec",), statement, self.tokens(tree, statement)[0])

    def machine(self, tree: Node, statement: Statement) -> None:
        """Take in `hardware tpu v4 4x4x8`."""
        self.scalar(("hardware",), statement, self.whole(child_of(tree, "hardware"), statement))

    def doc(self, tree: Node, statement: Statement) -> None:
        """Take in `doc "..."`."""
        self.scalar(("doc",), statement, self.tokens(child_of(tree, "text"), statement)[0])

    def words(self, tree: Node, statement: Statement) -> None:
        """Take in `extends a, b`, `drop a, b` and `manifest "a"`: lists that add up."""
        section = self.text[statement.start : statement.end].split(None, 1)[0]
        found = self.data.setdefault(section, [])
        items: list[Data] = found if isinstance(found, list) else [found]
        self.open((section,), statement)
        for excerpt in self.tokens(tree, statement, deep=True):
            self.values[section, len(items)] = excerpt
            items.append(excerpt.text)
        self.data[section] = items[0] if section == "manifest" and len(items) == 1 else items
        self.entries.append(((section,), statement.start, statement.end))
        if isinstance(self.data[section], str):
            self.values[section,] = self.values[section, 0]

    def axis(self, tree: Node, statement: Statement) -> None:
        """Take in `axis embed = 4096 unit 64 "..."`."""
        key = self.tokens(child_of(tree, "key"), statement)[0]
        route = self.entry("axes", key, statement)
        if route is None:
            return
        stated: dict[str, Data] = {}
        for node in tree.children[1:]:
            assert not isinstance(node, str)
            name = {"text": "doc"}.get(str(node.data), str(node.data))
            excerpt = (
                self.whole(node, statement) if name == "size" else self.tokens(node, statement)[0]
            )
            stated[name] = number_or_text(excerpt.text) if name != "doc" else excerpt.text
            self.values[(*route, name)] = excerpt
        if stated.keys() <= {"size"}:
            self.values[route] = self.values.pop((*route, "size"), Excerpt("", key.span))
            self.put(route, stated.get("size"))
        else:
            self.put(route, stated)

    def target(self, tree: Node, statement: Statement) -> None:
        """Take in `target NAME on HARDWARE { ... }`."""
        key = self.tokens(child_of(tree, "key"), statement)[0]
        route = self.entry("targets", key, statement)
        if route is None:
            return
        stated: dict[str, Data] = {}
        self.put(route, stated)
        self._machine_and_mesh(tree, statement, route, stated)

    def mesh(self, tree: Node, statement: Statement) -> None:
        """Take in `mesh on HARDWARE { ... }`: the only target."""
        word = self.excerpt(statement.start, statement.start + len("mesh"))
        if self.is_taken(("mesh",), word):
            return
        self.keys["mesh",] = word
        self.entries.append((("mesh",), statement.start, statement.end))
        self._machine_and_mesh(tree, statement, (), self.data)

    def _machine_and_mesh(
        self, tree: Node, statement: Statement, route: Route, into: dict[str, Data]
    ) -> None:
        machine = maybe_child_of(tree, "hardware")
        if machine is not None:
            excerpt = self.whole(machine, statement)
            if not route and self.is_taken(("hardware",), excerpt):
                return
            self.keys.setdefault((*route, "hardware"), excerpt)
            self.values[(*route, "hardware")] = excerpt
            into["hardware"] = excerpt.text
        sizes: dict[str, Data] = {}
        into["mesh"] = sizes
        inner: Route = (*route, "mesh")
        if statement.entries is None:
            end = statement.end
            fault = SyntaxFault(
                "the mesh is missing", 0, end - statement.start, "write `{ data = rest }`"
            )
            self.report(fault, statement.start)
        block = Span(self.source, statement.opening, statement.block_end)
        self.keys.setdefault(inner, self.excerpt(statement.start, statement.end))
        self.values[inner] = Excerpt("", block)
        self.blocks.append((inner, block.start, block.end))
        for entry in statement.entries or ():
            tree_of_entry = self._parse("mesh_entry", entry)
            if tree_of_entry is not None:
                self.pair(inner, tree_of_entry, entry, sizes)

    def override(self, tree: Node, statement: Statement) -> None:
        """Take in `override PATTERN : NAMES` and `override PATTERN = PARTITION`."""
        route, stated = self._patterned("overrides", tree, statement)
        for name, node in (("axes", "names"), ("spec", "partition")):
            found = maybe_child_of(tree, node)
            if found is not None:
                self.say(route, stated, name, self.whole(found, statement))
        self._because(tree, statement, route, stated)

    def replicate(self, tree: Node, statement: Statement) -> None:
        """Take in `replicate PATTERN because "..."`."""
        route, stated = self._patterned("replicate", tree, statement)
        self._because(tree, statement, route, stated)

    def _patterned(
        self, section: str, tree: Node, statement: Statement
    ) -> tuple[Route, dict[str, Data]]:
        """Add an item with a pattern to a list; return where it is, and the item."""
        items = self.data.setdefault(section, [])
        assert isinstance(items, list)
        self.open((section,), statement)
        route: Route = (section, len(items))
        pattern = self.tokens(child_of(tree, "pattern"), statement)[0]
        is_regex = pattern.text.startswith("re:") and not self.is_quoted(pattern)
        stated: dict[str, Data] = {}
        if is_regex:
            pattern = pattern.part(3, len(pattern.text))
        self.say(route, stated, "match" if is_regex else "path", pattern)
        self.values[route] = Excerpt("", Span(self.source, statement.start, statement.end))
        self.entries.append((route, statement.start, statement.end))
        items.append(stated)
        return route, stated

    def _because(
        self, tree: Node, statement: Statement, route: Route, stated: dict[str, Data]
    ) -> None:
        because = maybe_child_of(tree, "because")
        if because is not None:
            text = self.tokens(child_of(because, "text"), statement)[0]
            self.say(route, stated, "because", text)

    def setting(self, tree: Node, statement: Statement) -> None:
        """Take in `policy KEY VALUE`, `lint NAME LEVEL`, `state KEY ...`, `coverage KEY ...`."""
        word = self.text[statement.start : statement.end].split(None, 1)[0]
        first, last = tree.children
        assert not isinstance(first, str)
        assert not isinstance(last, str)
        key = self.tokens(first, statement)[0]
        route = self.entry({"lint": "lints"}.get(word, word), key, statement)
        if route is not None:
            self.values[route] = value = self.tokens(last, statement)[0]
            is_number = route == ("state", "moments")
            self.put(route, number_or_text(value.text) if is_number else value.text)

    def single(self, tree: Node, statement: Statement) -> None:
        """Take in `scan PATTERN : AXES` and `activation NAME : NAMES`."""
        section = {"activation": "activations"}.get(str(tree.data), str(tree.data))
        inner = tree.children[0]
        assert not isinstance(inner, str)
        into = self.data.setdefault(section, {})
        assert isinstance(into, dict)
        self.open((section,), statement)
        self.pair((section,), inner, statement, into)

    def _section(self, section: str, statement: Statement) -> None:
        """Take in a block of entries."""
        is_list = section == "rules"
        into = self.data.setdefault(section, [] if is_list else {})
        self.open((section,), statement)
        self.entries.append(((section,), statement.start, statement.end))
        self.blocks.append(((section,), statement.opening, statement.block_end))
        for entry in statement.entries or ():
            tree = self._parse(_ENTRY_OF[section], entry)
            if tree is None:
                continue
            if isinstance(into, list):
                self._rule(tree, entry, into)
            else:
                assert isinstance(into, dict)
                self.pair((section,), tree, entry, into)

    def _rule(self, tree: Node, entry: Statement, into: list[Data]) -> None:
        route: Route = ("rules", len(into))
        rule = self.whole(child_of(tree, "axis_rule"), entry)
        place = maybe_child_of(tree, "place")
        if place is None:
            self.values[route] = rule
            into.append(rule.text)
        else:
            stated: dict[str, Data] = {}
            self.values[route] = Excerpt("", Span(self.source, entry.start, entry.end))
            self.say(route, stated, "rule", rule)
            self.say(route, stated, "at", self.whole(place, entry))
            into.append(stated)
        self.entries.append((route, entry.start, entry.end))


_STARTS = {"shardspec": "version", "hardware": "machine"}
_SECTION_OF = {"activation": "activations"}
_ENTRY_OF = {
    "rules": "rules_entry",
    "params": "params_entry",
    "scan": "scan_entry",
    "arrays": "arrays_entry",
    "activations": "activation_entry",
}
_STATEMENTS: dict[str, Callable[[_Build, Node, Statement], None]] = {
    "shardspec": _Build.version,
    "doc": _Build.doc,
    "extends": _Build.words,
    "drop": _Build.words,
    "manifest": _Build.words,
    "axis": _Build.axis,
    "hardware": _Build.machine,
    "target": _Build.target,
    "mesh": _Build.mesh,
    "override": _Build.override,
    "scan": _Build.single,
    "activation": _Build.single,
    "policy": _Build.setting,
    "lint": _Build.setting,
    "state": _Build.setting,
    "coverage": _Build.setting,
    "replicate": _Build.replicate,
}


def attach_comments(
    text: str,
    comments: Sequence[Comment],
    entries: Sequence[tuple[Route, int, int]],
    blocks: Sequence[tuple[Route, int, int]] = (),
) -> Mapping[Route, Comments]:
    """Return the comments by route of the entry: those on lines of their own go to the next one.

    Below the last entry of a block, they go to its end.

    Args:
      entries: route, start and end of each entry.
      blocks: route, opening and end of each block.
    """
    entries = sorted(entries, key=lambda entry: entry[1])
    starts = [start for _, start, _ in entries]
    before: dict[Route, list[str]] = {}
    trailing: dict[Route, str] = {}
    after: dict[Route, list[str]] = {}
    previous: Comment | None = None
    for comment in comments:
        place = bisect_left(starts, comment.start)
        following = entries[place][0] if place < len(entries) else ()
        owner = entries[_first_on_line(text, starts, place)][0] if place else following
        if not comment.own_line and owner and owner not in trailing:
            trailing[owner] = comment_text(text[comment.start : comment.end])
            continue
        block = _closed_block(comment, blocks, starts[place] if place < len(starts) else len(text))
        lines = before.setdefault(following, []) if block is None else after.setdefault(block, [])
        if lines and previous and text.count("\n", previous.end, comment.start) > 1:
            lines.append("")
        lines.append(comment_text(text[comment.start : comment.end]))
        previous = comment
    return {
        route: Comments(
            tuple(before.get(route, ())), trailing.get(route), tuple(after.get(route, ()))
        )
        for route in dict.fromkeys((*before, *trailing, *after))
    }


def _closed_block(
    comment: Comment, blocks: Sequence[tuple[Route, int, int]], following: int
) -> Route | None:
    """Return the block that a comment stands in, if no entry of it follows."""
    for route, start, end in blocks:
        if start < comment.start < end <= following:
            return route
    return None


def _first_on_line(text: str, starts: Sequence[int], place: int) -> int:
    """Return the first entry on the line where the one before `place` begins."""
    line_start = text.rfind("\n", 0, starts[place - 1]) + 1
    return bisect_left(starts, line_start)
