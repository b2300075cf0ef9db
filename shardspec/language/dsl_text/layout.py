"""The first look at a DSL file: its words, and where its statements begin and end.

Nothing is parsed here. A statement ends with its line, or at `;`, unless a bracket is open;
`{` after the head of a block opens it, and braces inside a path pattern are part of the
pattern. So whatever is wrong within one statement leaves the others whole, and where a bracket
or a block is never closed, the next line that can only begin a statement ends it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shardspec.language import sections

#: Statements that hold entries in braces and nothing before them.
SECTION_WORDS = (
    *(each.name for each in sections.SECTIONS.values() if each.form == "pairs"),
    *("rules", "activations", "activation", "step"),
)

#: Statements in which `{` always opens a block.
BLOCKS = frozenset(SECTION_WORDS) - {"scan", "activation"} | {"target", "mesh", "phase"}

#: The block that holds statements.
PHASE = "phase"

#: Every word that begins a statement.
KEYWORDS = BLOCKS | sections.BY_WORD.keys()

#: What people write who know the keys of the YAML file.
OTHER_WORDS = {
    "axes": "axis",
    **{f"{word}s": word for word in ("target", "override", "lint", "phase")},
    **{word: f"{word}s" for word in ("rule", "param", "array", "cache", "extend")},
    "derived": "derive",
    "version": "shardspec",
    "replicated": "replicate",
    "program": "step",
}


#: A word, or brackets on one line; of a line without braces, quotes and comments.
_ATOM = r"""(?:[^\s"\\;{}()\[\]\#]|\[[^\n"\\;{}()\[\]\#]*\])"""
#: Most lines are one indented entry without anything that could open or end: each is one lexeme.
_LEXEME = re.compile(
    rf"""(?<=\n)[^\S\n]+(?P<line>{_ATOM}++(?:[^\S\n]++{_ATOM}++)*+)(?=[^\S\n]*\n)
    | (?P<comment>(?<!\S)\#[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*"?)
    | (?P<newline>\n)
    | (?P<space>[^\S\n]+)
    | (?P<mark>[;{{}}()\[\]])
    | (?P<word>(?:\\[^\n]|[^\s"\\;{{}}()\[\]])+|\\)
    """,
    re.VERBOSE,
)
#: The groups of `_LEXEME`, by number.
_KINDS = ("", *_LEXEME.groupindex)
_LINE, _COMMENT, _NEWLINE, _SPACE = map(_KINDS.index, ("line", "comment", "newline", "space"))
#: A line that begins a statement, whatever is still open above it.
_BEGINS = re.compile(
    rf"(?:{'|'.join(SECTION_WORDS)})[^\S\n]*\{{|target[^\S\n]+\S[^\n]*\{{|mesh[^\S\n]+on\b"
    rf"|phase[^\S\n]+\S[^\n]*\{{"
    rf"|(?:{'|'.join(sorted(KEYWORDS - BLOCKS - {'devices'}))})[^\S\n]+[\w\"./*]"
)
#: The slices of a machine: `{1..8} * tpu v5e 16x16`.
_COUNTS = re.compile(r"\{[\s.,]*+\d[\s\d.,]*+\}\s*+\*")
#: A line that cannot go on with what stands in brackets above it.
_NEW_ENTRY = re.compile(r"[^\n]*?(?:->|:|\})")


@dataclass(frozen=True, slots=True)
class Comment:
    """One comment.

    Attributes:
      own_line: nothing stands before it on its line.
    """

    start: int
    end: int
    own_line: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement or one entry of a block, not parsed yet.

    Attributes:
      start, end: its text; for a block, that of its head, before `{`.
      entries: what stands in the block; None where there is no block.
      opening: the offset of `{`.
      block_end: the end of the block, `}` included.
      is_closed: whether there is a `}`.
    """

    start: int
    end: int
    entries: tuple[Statement, ...] | None = None
    opening: int = 0
    block_end: int = 0
    is_closed: bool = True

    @property
    def stop(self) -> int:
        """Return the end of all of it, its block included."""
        return self.end if self.entries is None else self.block_end


@dataclass(frozen=True, slots=True)
class Layout:
    """A file cut into statements.

    Attributes:
      text: the same text, of the same length, with blanks for comments.
    """

    text: str
    statements: tuple[Statement, ...]
    comments: tuple[Comment, ...]


class _Lexeme(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class _Lexemes:
    """The lexemes of a text as numbers, each made when it is asked for: a file has millions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds = bytearray()
        self.starts = array("L")
        self.ends = array("L")

    def add(self, kind: int, start: int, end: int) -> None:
        """Add one at the end; the kind is a number of `_KINDS`."""
        self.kinds.append(kind)
        self.starts.append(start)
        self.ends.append(end)

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, at: int) -> _Lexeme:
        start, end = self.starts[at], self.ends[at]
        return _Lexeme(_KINDS[self.kinds[at]], self.text[start:end], start, end)


def lay_out(text: str) -> Layout:
    """Return where the statements and comments of `text` are."""
    lexemes, comments = _lexemes(text)
    pieces: list[str] = []
    at = 0
    for comment in comments:
        pieces += (text[at : comment.start], " " * (comment.end - comment.start))
        at = comment.end
    blanked = "".join((*pieces, text[at:]))
    return Layout(blanked, tuple(_Cutter(blanked, lexemes).statements()), comments)


def _lexemes(text: str) -> tuple[_Lexemes, tuple[Comment, ...]]:
    """Return the lexemes that count (no space, one line break of several), and the comments."""
    solid = _Lexemes(text)
    comments: list[Comment] = []
    own_line = True
    previous = -1
    for match in _LEXEME.finditer(text):
        kind = match.lastindex or 0
        if kind == _COMMENT:
            comments.append(Comment(match.start(), match.end(), own_line))
        elif kind != _SPACE:
            own_line = kind == _NEWLINE
            if kind != _NEWLINE or previous != _NEWLINE:
                solid.add(kind, *match.span(kind))
            previous = kind
    return solid, tuple(comments)


class _Cutter:
    """The walk over the lexemes of one file."""

    def __init__(self, text: str, lexemes: _Lexemes) -> None:
        self.text = text
        self.lexemes = lexemes
        self.at = 0
        self.is_in_phase = False

    def statements(self) -> Iterator[Statement]:
        """Yield the statements of the file."""
        while self._skip_separators():
            yield self._statement()

    def _skip_separators(self) -> bool:
        """Go to the next statement; return whether there is one."""
        kinds, starts = self.lexemes.kinds, self.lexemes.starts
        while self.at < len(kinds):
            if kinds[self.at] != _NEWLINE and self.text[starts[self.at]] != ";":
                return True
            self.at += 1
        return False

    def _statement(self) -> Statement:
        is_phase = self.lexemes[self.at].text == PHASE and not self.is_in_phase
        start, end, opens = self._run(self.at)
        if not opens:
            return Statement(start, end)
        opening = self.lexemes[self.at]
        self.at += 1
        entries = tuple(self._in_phase() if is_phase else self._entries())
        closing = self.lexemes[self.at] if self.at < len(self.lexemes) else None
        is_closed = closing is not None and closing.text == "}"
        self.at += is_closed
        last = entries[-1].stop if entries else opening.end
        block_end = closing.end if closing is not None and is_closed else last
        return Statement(start, end, entries, opening.start, block_end, is_closed)

    def _in_phase(self) -> Iterator[Statement]:
        """Yield the statements of a phase, up to its `}` or the next phase."""
        self.is_in_phase = True
        while self._skip_separators():
            lexeme = self.lexemes[self.at]
            if lexeme.text == "}" or (lexeme.text == PHASE and self._begins_statement(lexeme)):
                break
            yield self._statement()
        self.is_in_phase = False

    def _entries(self) -> Iterator[Statement]:
        """Yield the entries of a block, up to its `}` or what can only stand outside."""
        lexemes = self.lexemes
        while self._skip_separators():
            if lexemes.kinds[self.at] == _LINE:
                yield Statement(lexemes.starts[self.at], lexemes.ends[self.at])
                self.at += 1
                continue
            lexeme = lexemes[self.at]
            if lexeme.text == "}" or self._begins_statement(lexeme):
                return
            start, end, _ = self._run(None)
            yield Statement(start, end)

    def _begins_statement(self, lexeme: _Lexeme) -> bool:
        at_margin = lexeme.start == 0 or self.text[lexeme.start - 1] == "\n"
        return at_margin and _BEGINS.match(self.text, lexeme.start) is not None

    def _run(self, head: int | None) -> tuple[int, int, bool]:
        """Go to the end of one statement or entry.

        Args:
          head: the index of the first word of a statement; None within a block.

        Returns:
          Its start and end, and whether a block opens there.
        """
        start = end = self.lexemes[self.at].start
        braces = brackets = 0
        while self.at < len(self.lexemes):
            lexeme = self.lexemes[self.at]
            if lexeme.kind == "newline":
                if not brackets or self._cannot_go_on():
                    break
            elif lexeme.text == ";" and lexeme.kind == "mark" and not brackets:
                break
            elif lexeme.text == "{" and lexeme.kind == "mark":
                if head is not None and not braces and self._opens_block(head):
                    return start, end, True
                braces += 1
            elif lexeme.text == "}" and lexeme.kind == "mark":
                if not braces and (head is None or self.is_in_phase):
                    break
                braces = max(0, braces - 1)
            elif lexeme.kind == "mark":
                brackets = max(0, brackets + (1 if lexeme.text in "([" else -1))
            if lexeme.kind != "newline":
                end = lexeme.end
            self.at += 1
        return start, end, False

    def _cannot_go_on(self) -> bool:
        """Say whether the line after this line break is no part of what stands in brackets."""
        if self.at + 1 >= len(self.lexemes):
            return True
        after = self.lexemes[self.at + 1]
        return self._begins_statement(after) or bool(_NEW_ENTRY.match(self.text, after.start))

    def _opens_block(self, head: int) -> bool:
        """Say whether the `{` here opens a block, and is not the brace of a pattern."""
        word = self.lexemes[head].text
        if word in BLOCKS:
            return not _COUNTS.match(self.text, self.lexemes[self.at].start)
        if word in KEYWORDS:
            return word in SECTION_WORDS and self.at == head + 1
        at, end = self.lexemes[self.at].start, self.lexemes[self.at].end
        is_apart = self.text[at - 1 : at].isspace() and not self.text[end : end + 1].strip()
        return self.at > head and is_apart
