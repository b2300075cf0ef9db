"""DSL text -> plain data, where every piece came from, and the comments.

The file is laid out first (`layout`), then each statement is parsed alone with the grammar
`document`, whose expressions are those of the YAML strings; they stay text here, as they do
there. Every fault of the file is reported at once, and what is whole is kept.

`early_fault` and `statement_fault` say what is wrong with a statement that cannot be read.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from shardspec.diagnostics import Diagnostic, Excerpt, Label, SourceFile, Span, codes, point
from shardspec.diagnostics.budget import spend
from shardspec.diagnostics.words import nearest
from shardspec.language import reading
from shardspec.language.dsl_text import layout
from shardspec.language.dsl_text.layout import BLOCKS, KEYWORDS, SECTION_WORDS, Comment, Statement
from shardspec.language.grammar import expressions
from shardspec.language.grammar.expressions import before_size
from shardspec.language.grammar.parse_faults import either, expected, fault_table
from shardspec.language.grammar.parser import Node, Token, parser
from shardspec.language.grammar.syntax import SyntaxFault, bad_escape, unquoted
from shardspec.language.reading import OPTIONAL, Data, Reading, Route, number_or_text
from shardspec.language.sections import BY_WORD, SECTIONS, section_of
from shardspec.language.validate import fields_at, is_number_at
from shardspec.language.yaml_text.comments import Gathered, comment_text
from shardspec.language.yaml_text.printer import find_foreign_characters

#: What begins a size of an axis behind its first, and what ends one.
_UNIT = re.compile(r"\sunit\b")
_SIZE_END = re.compile(r"\s(?:unit|min_shard)\b")
#: The start symbols of entries whose forms differ, and no more.
ENTRY_STARTS = {
    **{f"{each.name}_entry": "pair_entry" for each in SECTIONS.values() if each.rules},
    "arrays_entry": "array_entry",
    "step_entry": "step_setting",
}

_BARE_REGEX = re.compile(
    r"(?:(?:override|scan|replicate|activation)\s+)?(?:optional\s+)?re:(?=[^\s\"])"
)
_BARE_REASON = re.compile(r'\sbecause\s*(?P<reason>(?:(?<=\s)[^"\s][^"]*)?)$')
_MESH_COLON = re.compile(r"(?P<axis>[A-Za-z_][\w.-]*)\s*+:\s*+(?P<size>\S(?:.*\S)?)\s*+")
_LOOK_BACK = 80


def statement_fault(start: str, text: str) -> SyntaxFault:
    """Return what is wrong with a statement or entry, with offsets into its text.

    Args:
      start: the start symbol that refused it.
    """
    bare = _BARE_REGEX.match(text)
    if bare:
        help = 'a regex stands in quotes: `re".*/kernel"`'
        return SyntaxFault('expected `"` after `re`', bare.end() - 1, bare.end(), help)
    plain = _BARE_REASON.search(text) if start in {"override", "replicate"} else None
    if plain:
        help = 'a reason stands in quotes: `because "tiny"`'
        message = "expected text in double quotes after `because`"
        return SyntaxFault(message, plain.start("reason"), plain.end("reason"), help)
    return _size_fault(start, text) or _layout_fault(start, text)


def early_fault(start: str, text: str) -> SyntaxFault | None:
    """Return the fault of an open quote, or of an entry as in YAML: behind `-`, with commas."""
    if '"' in text and (unclosed := _unclosed_text(text)):
        return unclosed
    before, fault = "", object()
    if start == "rules_entry" and text.startswith("- "):
        help = f"entries of a block stand without `-`: `{text[2:].strip()[:_LOOK_BACK]}`"
        fault = expressions.parse_axis_rule(text)
    elif start == "mesh_entry" and "," in text:
        help = "sizes are separated by `;` or lines: `{ data = rest; model = 8 }`"
        before = text[: text.find("=", text.rfind('"') + 1) + 1]
        fault = expressions.parse_mesh_size(text[len(before) :])
    if not isinstance(fault, SyntaxFault):
        return None
    return SyntaxFault(fault.message, len(before) + fault.start, len(before) + fault.end, help)


def unknown_statement(word: str, text: str, statement: Statement) -> SyntaxFault:
    """Return the fault of a statement that begins with a word that begins none."""
    shown = word if len(word) <= 40 else f"{word[:40]}..."
    known = known_word(word)
    end = statement.start + min(len(word), 40)
    if known and word.removesuffix(":") in {known, *layout.OTHER_WORDS} and word.endswith(":"):
        help = _without_colon(known)
    elif known:
        help = f"did you mean `{known}`?"
    elif word.startswith("//"):
        help = "a comment begins with `#`"
    elif "->" in text[statement.start : statement.end]:
        help = "axis rules stand in a block: `rules { embed -> model }`"
    else:
        help = f"a statement begins with {either(tuple(f'`{word}`' for word in sorted(KEYWORDS)))}"
    return SyntaxFault(f"`{shown}` begins no statement", statement.start, end, help)


def _without_colon(keyword: str) -> str:
    """Return how a statement looks that was begun as a key of a YAML file."""
    if keyword in BLOCKS:
        return f"a block stands in braces: `{keyword} {{`"
    return f"no `:` after the word: `{fault_table().forms.get(keyword, keyword)}`"


def known_word(word: str) -> str:
    """Return the keyword that `word` was meant to be, or nothing."""
    plain = re.match(r"[\w-]+", word[:40])
    name = plain.group() if plain else word[:40]
    return layout.OTHER_WORDS.get(name.lower()) or "".join(nearest(name, KEYWORDS))


def no_block(keyword: str) -> SyntaxFault:
    """Return the fault of a block without braces."""
    form = fault_table().forms.get(keyword, f"{keyword} {{ ... }}")
    if keyword in BLOCKS and keyword not in fault_table().forms:
        form = f"{keyword} {{ {_form(entry_of(keyword))} }}"
    message = f"expected `{{` after `{keyword}`"
    return SyntaxFault(message, 0, len(keyword), f"such as `{form}`")


_SIDE_BY_SIDE = "move it out: phases stand side by side, and each is merged over the spec alone"
#: The fault of a phase that stands in another.
PHASE_IN_PHASE = SyntaxFault("a phase stands in a phase", 0, len("phase"), _SIDE_BY_SIDE)


def entry_of(keyword: str) -> str:
    """Return the start symbol of the entries of a block."""
    starts = {"activations": "activation_entry", "target": "mesh_entry", "caches": "arrays_entry"}
    return starts.get(keyword, f"{keyword}_entry")


def _form(start: str) -> str:
    """Return how a statement or an entry looks; one by pattern, that nothing shows, as others."""
    forms = fault_table().forms
    return forms.get(start, forms["params_entry"])


def _unclosed_text(text: str) -> SyntaxFault | None:
    """Return the fault of a quote without its partner."""
    for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)("?)', text):
        if not match[2]:
            help = 'close it with `"`; a quote within the text is written `\\"`'
            return SyntaxFault("this text is not closed", match.start(), match.end(), help)
    return None


def _size_fault(start: str, text: str) -> SyntaxFault | None:
    """Return the fault that the parser of sizes finds in a statement."""
    if start not in ("axis", "let"):
        return None
    plain = text.partition('"')[0]
    equals = plain.find("=") + 1
    unit = _UNIT.search(plain, equals) if start == "axis" else None
    for at in filter(None, (equals, unit and unit.end())):
        stop = _SIZE_END.search(plain, at) if start == "axis" else None
        fault = expressions.parse_size(plain[at : stop.start() if stop else len(plain)])
        if isinstance(fault, SyntaxFault):
            return fault._replace(start=at + fault.start, end=at + fault.end)
    return None


def _layout_fault(start: str, text: str) -> SyntaxFault:
    """Return the fault of what stands around expressions."""
    machine = parser("document")
    stop = machine.stop(text, ENTRY_STARTS.get(start, start))
    expects = expected(machine, stop.accepted)
    found = re.compile(r"[-=]>|[\w.-]+|\S").match(text, stop.at)
    word = found.group() if found else ""
    before = re.findall(r"[-=]>|[\w./-]+|\S", text[max(0, stop.at - _LOOK_BACK) : stop.at])
    after = f" after `{before[-1]}`" if before else ""
    words = tuple(word.strip("`") for word in expects if word.startswith("`"))
    near = nearest(word, words) if word else ()
    help = f"did you mean `{near[0]}`?" if near else f"such as `{_form(start)}`"
    sized = _MESH_COLON.fullmatch(text) if start == "mesh_entry" else None
    if sized and not isinstance(expressions.parse_mesh_size(sized["size"]), SyntaxFault):
        help = f"write `{sized['axis']} = {sized['size']}`"
    message = f"expected {either(expects)}{after}"
    return SyntaxFault(message, stop.at, stop.at + len(word), help)


#: A line of a mesh that states a field of its target, and is no axis of that name.
_STATED = re.compile(r"(?!(?:hardware|mesh)\s)([a-z_]+)[^\S\n]+(?![\s=])")
_MINIMAL = "a spec is at least:\nrules {\n  batch -> data\n}"
_LONGEST = 20_000
#: Syntax faults after which the rest of a file is no longer explained.
_MOST = 500


#: Routes, each with where its text starts and ends.
Stretches = Sequence[tuple[Route, int, int]]

#: Blocks whose entries are not looked at where the head is wrong: statements, lines of a program.
_UNSEEN = (layout.PHASE, "step")
#: A word before a value, as a key of `step` stands.
_SETTING = re.compile(r"([a-z]+)[^\S\n]+[\w.\"(]")
#: Fields of entries that the grammar calls otherwise; those that are all of their node.
_FIELDS = {"text": "doc", "axis_rule": "rule", "place": "at"}
_WHOLE = ("axes", "spec", "axis_rule", "place")
#: Units of work that an entry costs.
_ENTRY = 400

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
        return None, (point(codes.TOO_DEEP, message, source.whole, help=help),)
    foreign = find_foreign_characters(source, "a spec")
    if foreign:
        return None, tuple(foreign)
    laid_out = layout.lay_out(source.text)
    if not laid_out.statements:
        return None, (point(codes.SYNTAX, "the document is empty", source.whole, help=_MINIMAL),)
    build = _Build(source, laid_out.text)
    for statement in laid_out.statements:
        build.statement(statement)
    source_map = reading.SourceMap(source, build.keys, build.values)
    comments = attach_comments(source.text, laid_out.comments, build.entries, build.blocks)
    return Reading(build.data, source_map, comments), tuple(build.diagnostics)


class _Build:
    """The data as it grows, statement by statement: keys and values by route, and the faults.

    Attributes:
      text: the source with blanks for comments.
      entries: route, start and end of everything that a comment can belong to.
      blocks: the same of everything in braces.
    """

    def __init__(self, source: SourceFile, text: str, *, is_phase: bool = False) -> None:
        """Start with nothing, of a file or of a phase in it."""
        self.source = source
        self.text = text
        self.is_phase = is_phase
        self.data: dict[str, Any] = {}
        self.keys: dict[Route, Excerpt] = {}
        self.values: dict[Route, Excerpt] = {(): Excerpt("", source.whole)}
        self.entries: list[tuple[Route, int, int]] = []
        self.blocks: list[tuple[Route, int, int]] = []
        self.diagnostics: list[Diagnostic] = []

    def report(self, fault: SyntaxFault, at: int = 0) -> None:
        """Note a syntax fault; its offsets count from `at`."""
        span = Span(self.source, at + fault.start, at + fault.end)
        self.diagnostics.append(point(codes.SYNTAX, fault.message, span, help=fault.help))

    def refuse(self, statement: Statement, message: str, help: str) -> None:
        """Note a fault of all of a statement."""
        length = statement.end - statement.start
        self.report(SyntaxFault(message, 0, length, help), statement.start)

    def file(self, route: Route, key: Excerpt, value: Excerpt, entry: Statement) -> bool:
        """Note where an entry stands; say whether nothing stands there yet, and report if so."""
        if self.is_taken(route, key):
            return False
        self.keys[route], self.values[route] = key, value
        self.entries.append((route, entry.start, entry.end))
        return True

    def say(self, route: Route, stated: dict[str, Any], name: str, excerpt: Excerpt) -> None:
        """Put one field of an entry in its place."""
        self.values[(*route, name)] = excerpt
        stated[name] = excerpt.text

    def is_quoted(self, excerpt: Excerpt) -> bool:
        """Say whether the text stands in quotes in the file."""
        return self.text[excerpt.span.start] == '"'

    def pair(self, route: Route, tree: Node, entry: Statement, into: dict[str, Any]) -> None:
        """Take in one entry of name or pattern and expression."""
        left, right = tree.nodes
        key, value = self.key_of(left, entry), self.whole(right, entry)
        if self.file((*route, key.text), key, value, entry):
            into[key.text] = number_or_text(value.text) if route[-1] == "mesh" else value.text

    def key_of(self, left: Node, entry: Statement) -> Excerpt:
        """Return the key that stands for the left side of an entry: `optional re"a"` too."""
        *mark, found = self.tokens(left, entry)
        if not mark:
            return found
        start = None if found.start is None else found.start - len(OPTIONAL)
        return Excerpt(OPTIONAL + found.text, found.span, start)

    def activation(self, tree: Node, entry: Statement, into: dict[str, Any]) -> None:
        """Take in an activation: names alone, or names or a partition and a memory."""
        pattern, *fields = tree.nodes
        key = self.tokens(pattern, entry)[0]
        route: Route = ("activations", key.text)
        if self.file(route, key, self.place(key.span.end, entry.end), entry):
            into[key.text] = self._entry(fields, entry, route, "axes")

    def _entry_taker(self, section: str) -> Callable[[Node, Statement, Any], None]:
        """Return what takes in an entry of a section."""
        if section == "activations":
            return self.activation
        if section == "rules":
            return self._rule
        return self._step if section == "step" else partial(self.pair, (section,))

    def _entry(self, nodes: Iterable[Node], entry: Statement, route: Route, alone: str) -> Data:
        """Return the fields of an entry; where it has only the field `alone`, the value of that."""
        stated = self._fields(nodes, entry, route)
        if stated.keys() != {alone}:
            return stated
        self.values[route] = self.values.pop((*route, alone))
        only: Data = stated[alone]
        return only

    def _fields(self, nodes: Iterable[Node], entry: Statement, route: Route) -> dict[str, Any]:
        """Take in the fields of an entry, which the grammar calls as the document does."""
        stated: dict[str, Any] = {}
        for node in nodes:
            name = _FIELDS.get(node.name, node.name)
            if name == "parts":
                stated[name] = self._parts((*route, name), node, entry)
                continue
            size = node if name == "size" else node.child("size")
            if size is not None or node.name in _WHOLE:
                found, kind = self.whole(size or node, entry), name
            else:
                *_, last = node.all_tokens
                found, kind = self._token(last, entry.start), last.type
            is_number = size is not None or kind == "INTEGER"
            known = number_or_text(found.text) if is_number else found.text
            stated[name] = True if kind == name.upper() else known
            self.values[(*route, name)] = found
        return stated

    def open(self, route: Route, statement: Statement) -> None:
        """Note where a section stands that several statements may add to."""
        start = self.values[route].span.start if route in self.values else statement.start
        self.keys.setdefault(route, self.keyword(statement))
        self.values[route] = self.place(start, statement.stop)

    def entry(self, section: str, name: Node, statement: Statement) -> Route | None:
        """Return the route of a named entry, or None where the name is taken."""
        key = self.tokens(name, statement)[0]
        route: Route = (section, key.text)
        if not self.file(route, key, self.place(statement.start, statement.stop), statement):
            return None
        self.open((section,), statement)
        return route

    def put(self, route: Route, value: Data) -> None:
        """Put a value into its section."""
        section, name = route
        self.data.setdefault(str(section), {})[str(name)] = value

    def place(self, start: int, end: int) -> Excerpt:
        """Return the place of what is no text itself."""
        return Excerpt("", Span(self.source, start, end))

    def is_taken(self, route: Route, key: Excerpt) -> bool:
        """Say whether something stands at `route` already; report if so."""
        first = self.keys.get(route)
        if first is None:
            return False
        message = f"`{key.text}` is given twice"
        labels = (Label(key.span, "again here"), Label(first.span, "first here", primary=False))
        help = "keep one of the two"
        self.diagnostics.append(Diagnostic(codes.DUPLICATE_KEY, message, labels, help=help))
        return True

    def keyword(self, statement: Statement) -> Excerpt:
        """Return the word that a statement begins with."""
        word = self.text[statement.start : statement.end].split(None, 1)[0].partition('"')[0]
        return self.excerpt(statement.start, statement.start + len(word))

    def excerpt(self, start: int, end: int) -> Excerpt:
        """Return a piece of the text."""
        return Excerpt(self.text[start:end], Span(self.source, start, end), start)

    def whole(self, tree: Node, statement: Statement) -> Excerpt:
        """Return the text under a tree; that of an expression which is missing stands last."""
        if tree.start < 0:
            return self.excerpt(statement.end, statement.end)
        at = statement.start
        return self.excerpt(at + tree.start, at + tree.end)

    def tokens(self, tree: Node, statement: Statement, *, deep: bool = False) -> list[Excerpt]:
        """Return the tokens of a tree as the text they stand for."""
        tokens = tree.all_tokens if deep else tree.tokens
        return [self._token(token, statement.start) for token in tokens]

    def _token(self, token: Token, at: int) -> Excerpt:
        start, end = at + token.start, at + token.end
        span = Span(self.source, start, end)
        match token.type:
            case "STRING":
                return Excerpt(unquoted(token), span, None if "\\" in token else start + 1)
            case "REGEX":
                return Excerpt(f"re:{token[3:-1]}", span, start)
            case "ESCAPED_REGEX":
                inner = unquoted(token[3:])
                return Excerpt(f"re:{inner}", span, None if "\\" in token else start + 1)
        return Excerpt(str(token), span, start)

    def statement(self, statement: Statement) -> None:
        """Take in one statement."""
        keyword = self.keyword(statement).text
        if keyword not in layout.KEYWORDS:
            word = self.text[statement.start : statement.end].split(None, 1)[0]
            if len(self.diagnostics) < _MOST:
                self.report(unknown_statement(word, self.text, statement))
            meant = known_word(word)
            if meant in SECTION_WORDS and statement.entries is not None:
                self._section(section_of(meant), statement)
            return
        if keyword == layout.PHASE and self.is_phase:
            self.report(PHASE_IN_PHASE, statement.start)
            return
        if statement.entries is None and keyword not in _STATEMENTS:
            self.report(no_block(keyword), statement.start)
            return
        if statement.entries is not None and not statement.is_closed:
            fault = SyntaxFault("this block is not closed", 0, 1, "close it with `}`")
            self.report(fault, statement.opening)
        is_section = statement.entries is not None and keyword in SECTION_WORDS
        tree = self._parse("section" if is_section else _STARTS.get(keyword, keyword), statement)
        if tree is not None and is_section:
            self._section(section_of(keyword), statement)
        elif tree is not None:
            _STATEMENTS[keyword](self, tree, statement)
        else:
            for entry in statement.entries or () if keyword not in _UNSEEN else ():
                self._parse(entry_of(keyword), entry)

    def _parse(self, start: str, statement: Statement) -> Node | None:
        """Return the tree of a statement, or None after reporting what is wrong."""
        spend(_ENTRY, self.source, statement.start)
        text = self.text[statement.start : statement.end]
        if len(text) > _LONGEST and start != "doc":
            message = f"a statement of {len(text):,} characters is too long"
            self.refuse(statement, message, f"at most {_LONGEST:,} characters")
            return None
        wrong = early_fault(start, text) or (before_size(text) if start == "axis" else None)
        if wrong is not None:
            self.report(wrong, statement.start)
            return None
        tree = parser("document").parse(text, ENTRY_STARTS.get(start, start))
        if tree is None:
            if len(self.diagnostics) < _MOST:
                self.report(statement_fault(start, text), statement.start)
            return None
        for token in tree.all_tokens if "\\" in text else ():
            escape = bad_escape(token) if token.type in {"STRING", "ESCAPED_REGEX"} else None
            if escape:
                at = token.start
                message = f"`{token[slice(*escape)]}` means nothing in text"
                help = 'write `\\\\` for a backslash; known: `\\"`, `\\\\`, `\\n`, `\\t`, `\\r`'
                fault = SyntaxFault(message, at + escape[0], at + escape[1], help)
                self.report(fault, statement.start)
        return tree

    def scalar(self, tree: Node, statement: Statement) -> None:
        """Take in one value: `shardspec 1`, `doc "..."`, `hardware tpu v4 4x4x8`."""
        key = self.keyword(statement)
        machine = tree.child("expression")
        if machine is not None:
            value = self.whole(machine, statement)
        else:
            value = self.tokens(tree, statement, deep=True)[0]
        if self.file((key.text,), key, value, statement):
            self.data[key.text] = _plain(value, (key.text,))

    def words(self, tree: Node, statement: Statement) -> None:
        """Take in `extends a, b`, `drop a, b` and `manifest "a"`: lists that add up."""
        section = self.keyword(statement).text
        found = self.data.get(section, [])
        items = found if isinstance(found, list) else [found]
        self.open((section,), statement)
        for excerpt in self.tokens(tree, statement, deep=True):
            self.values[section, len(items)] = excerpt
            items.append(excerpt.text)
        self.data[section] = items[0] if section == "manifest" and len(items) == 1 else items
        self.entries.append(((section,), statement.start, statement.end))
        if isinstance(self.data[section], str):
            self.values[section,] = self.values[section, 0]

    def named(self, tree: Node, statement: Statement) -> None:
        """Take in `axis embed = 4096 unit 64 "..."`, `let tp = 8`."""
        key, *fields = tree.nodes
        route = self.entry(section_of(self.keyword(statement).text), key, statement)
        if route is None:
            return
        if fields:
            self.put(route, self._entry(fields, statement, route, "size"))
        else:
            self.values[route] = Excerpt("", self.keys[route].span)
            self.put(route, None)

    def _parts(self, route: Route, tree: Node, statement: Statement) -> dict[str, Any]:
        """Take in `parts (q = heads * kv, k = kv)`."""
        sizes: dict[str, Any] = {}
        self.keys[route] = self.values[route] = self.whole(tree, statement)
        for part in tree.nodes:
            key = self.tokens(part["key"], statement)[0]
            inner: Route = (*route, key.text)
            if not self.is_taken(inner, key):
                size = self.whole(part["size"], statement)
                self.keys[inner], self.values[inner] = key, size
                sizes[key.text] = number_or_text(size.text)
        return sizes

    def target(self, tree: Node, statement: Statement) -> None:
        """Take in `target NAME on HARDWARE { ... }`."""
        route = self.entry("targets", tree["key"], statement)
        if route is not None:
            stated: dict[str, Any] = {}
            self.put(route, stated)
            self._machine_and_mesh(tree, statement, route, stated)

    def mesh(self, tree: Node, statement: Statement) -> None:
        """Take in `mesh on HARDWARE { ... }`: the only target."""
        word = self.keyword(statement)
        if self.file(("mesh",), word, word, statement):
            self._machine_and_mesh(tree, statement, (), self.data)

    def _machine_and_mesh(
        self, tree: Node, statement: Statement, route: Route, into: dict[str, Any]
    ) -> None:
        machine = tree.child("on")
        if machine is not None:
            excerpt = self.whole(machine["expression"], statement)
            if not route and self.is_taken(("hardware",), excerpt):
                return
            self.keys.setdefault((*route, "hardware"), excerpt)
            self.values[(*route, "hardware")] = excerpt
            into["hardware"] = excerpt.text
        into["mesh"] = sizes = dict[str, Any]()
        inner: Route = (*route, "mesh")
        if statement.entries is None:
            self.refuse(statement, "the mesh is missing", "write `{ data = rest }`")
        self.keys.setdefault(inner, self.excerpt(statement.start, statement.end))
        self.values[inner] = self.place(statement.opening, statement.block_end)
        self.blocks.append((inner, statement.opening, statement.block_end))
        for entry in statement.entries or ():
            stated = _STATED.match(self.text, entry.start)
            if stated is not None and stated[1] in fields_at(("targets",)):
                self._stated(stated[1], entry, route, into)
            elif (tree_of_entry := self._parse("mesh_entry", entry)) is not None:
                self.pair(inner, tree_of_entry, entry, sizes)

    def _stated(self, key: str, entry: Statement, route: Route, into: dict[str, Any]) -> None:
        """Take in a field of a target in the block of its mesh: `devices 0..3 7..4`."""
        tree = self._parse("device_list" if key == "devices" else "step_setting", entry)
        if tree is not None:
            value = self.tokens(tree, entry, deep=True)[-1]
            if self.file((*route, key), self.keyword(entry), value, entry):
                into[key] = _plain(value, ("targets", key))

    def phase(self, tree: Node, statement: Statement) -> None:
        """Take in `phase NAME { ... }`, whose statements are those of a file."""
        route = self.entry("phases", tree["key"], statement)
        if route is None:
            return
        if statement.entries is None:
            help = "write `{ }` with what this phase has of its own"
            self.refuse(statement, "the block is missing", help)
        inner = _Build(self.source, self.text, is_phase=True)
        for each in statement.entries or ():
            inner.statement(each)
        self.put(route, inner.data)
        del inner.values[()]
        self.keys.update(((*route, *steps), place) for steps, place in inner.keys.items())
        self.values.update(((*route, *steps), place) for steps, place in inner.values.items())
        self.entries += (((*route, *steps), start, end) for steps, start, end in inner.entries)
        self.blocks += (((*route, *steps), start, end) for steps, start, end in inner.blocks)
        self.blocks.append((route, statement.opening, statement.block_end))
        self.diagnostics += inner.diagnostics

    def item(self, tree: Node, statement: Statement) -> None:
        """Take in `override PATTERN : NAMES`, the same with `= PARTITION`, `replicate PATTERN`."""
        word = self.keyword(statement).text
        section = section_of(word)
        items = self.data.setdefault(section, [])
        self.open((section,), statement)
        route: Route = (section, len(items))
        first, *fields = tree.nodes
        *optional, pattern = self.tokens(first, statement)
        is_regex = pattern.text.startswith("re:") and not self.is_quoted(pattern)
        if is_regex:
            pattern = pattern.part(3, len(pattern.text))
        stated: dict[str, Any] = {}
        self.say(route, stated, "match" if is_regex else "path", pattern)
        for mark in optional:
            self.values[(*route, "optional")] = mark
            stated["optional"] = True
        stated |= self._fields(fields, statement, route)
        self.values[route] = self.place(statement.start, statement.end)
        self.entries.append((route, statement.start, statement.end))
        items.append(stated)

    def setting(self, tree: Node, statement: Statement) -> None:
        """Take in `policy KEY VALUE`, `lint NAME LEVEL`, `state KEY ...`, `coverage KEY ...`."""
        word = self.keyword(statement).text
        first, last = tree.nodes
        route = self.entry(section_of(word), first, statement)
        if route is not None:
            self.values[route] = value = self.tokens(last, statement)[0]
            self.put(route, _plain(value, route))

    def single(self, tree: Node, statement: Statement) -> None:
        """Take in `scan PATTERN : AXES` and `activation NAME : NAMES`."""
        section = section_of(tree.name)
        self.open((section,), statement)
        self._entry_taker(section)(tree.nodes[0], statement, self.data.setdefault(section, {}))

    def _section(self, section: str, statement: Statement) -> None:
        """Take in a block of entries."""
        into = self.data.setdefault(section, [] if section == "rules" else {})
        self.open((section,), statement)
        self.entries.append(((section,), statement.start, statement.end))
        self.blocks.append(((section,), statement.opening, statement.block_end))
        take = self._entry_taker(section)
        for entry in statement.entries or ():
            if section == "step" and self._line(entry, into):
                continue
            tree = self._parse(entry_of(section), entry)
            if tree is not None:
                take(tree, entry, into)

    def _step(self, tree: Node, entry: Statement, into: dict[str, Any]) -> None:
        """Take in a key of `step:` with its value."""
        key, value = self.tokens(tree, entry, deep=True)
        words = value.text.replace(",", " ").split()
        is_list = key.text == "remat" and len(words) > 1
        if self.file(("step", key.text), key, value, entry):
            into[key.text] = words if is_list else number_or_text(value.text)

    def _line(self, entry: Statement, into: dict[str, Any]) -> bool:
        """Take in a line of a program; say whether an entry of `step` is one, and no setting."""
        setting = _SETTING.match(self.text, entry.start, entry.end)
        if setting is not None and setting[1] in fields_at(("step",)):
            return False
        unclosed = early_fault("step_line", self.text[entry.start : entry.end])
        if unclosed is not None:
            self.report(unclosed, entry.start)
            return True
        program = into.setdefault("program", [])
        route: Route = ("step", "program", len(program))
        self.values[route] = self.excerpt(entry.start, entry.end)
        self.values.setdefault(("step", "program"), self.values[route])
        program.append(self.values[route].text)
        self.entries.append((route, entry.start, entry.end))
        return True

    def _rule(self, tree: Node, entry: Statement, into: list[Any]) -> None:
        route: Route = ("rules", len(into))
        self.values[route] = self.place(entry.start, entry.end)
        into.append(self._entry(tree.nodes, entry, route, "rule"))
        self.entries.append((route, entry.start, entry.end))


def _plain(value: Excerpt, route: Route) -> int | str:
    """Return a value as the number that should stand at its route, or as the text that it is."""
    return number_or_text(value.text) if is_number_at(route) else value.text


_STARTS = {"shardspec": "version", "hardware": "machine", "devices": "device_list"}
_FORMS: dict[str, Callable[[_Build, Node, Statement], None]] = {
    "value": _Build.scalar,
    "words": _Build.words,
    "items": _Build.item,
    "settings": _Build.setting,
}
_STATEMENTS: dict[str, Callable[[_Build, Node, Statement], None]] = {
    **{word: _FORMS[each.form] for word, each in BY_WORD.items() if each.form in _FORMS},
    **dict.fromkeys(("scan", "activation"), _Build.single),
    **dict.fromkeys(("let", "axis"), _Build.named),
    "target": _Build.target,
    "mesh": _Build.mesh,
    "phase": _Build.phase,
}


def attach_comments(
    text: str, comments: Sequence[Comment], entries: Stretches, blocks: Stretches = ()
) -> Mapping[Route, reading.Comments]:
    """Return the comments by route of the entry: those on lines of their own go to the next one.

    Below the last entry of a block, they go to its end.

    Args:
      entries: route, start and end of each entry.
      blocks: route, opening and end of each block.
    """
    if not comments:
        return {}
    entries = sorted(entries, key=lambda entry: entry[1])
    starts = [start for _, start, _ in entries]
    found = Gathered()
    previous: Comment | None = None
    for comment in comments:
        place = bisect_left(starts, comment.start)
        following = entries[place][0] if place < len(entries) else ()
        owner = entries[_first_on_line(text, starts, place)][0] if place else following
        if not comment.own_line and owner and owner not in found.trailing:
            found.trailing[owner] = comment_text(text[comment.start : comment.end])
            continue
        end = starts[place] if place < len(starts) else len(text)
        closed = (route for route, at, stop in blocks if at < comment.start < stop <= end)
        block = next(closed, None)
        where, route = (found.before, following) if block is None else (found.after, block)
        lines = where.setdefault(route, [])
        if lines and previous and text.count("\n", previous.end, comment.start) > 1:
            lines.append("")
        lines.append(comment_text(text[comment.start : comment.end]))
        previous = comment
    return found.by_route()


def _first_on_line(text: str, starts: Sequence[int], place: int) -> int:
    """Return the first entry on the line where the one before `place` begins."""
    line_start = text.rfind("\n", 0, starts[place - 1]) + 1
    return bisect_left(starts, line_start)
