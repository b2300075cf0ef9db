"""Linear matching of the few paths that are not plain ASCII, exactly as Python would.

The characters of a path fall into kinds that the patterns cannot tell apart: two characters are
of one kind when the same sets of the patterns hold both. Each kind becomes one character, and
RE2 matches the translated path. So Python's Unicode tables decide, RE2 walks, and even text that
has no UTF-8 form (a lone surrogate) works.

RE2 knows a word boundary only between its own ASCII words, so kinds that make words get ASCII
letters; and it knows a line break only as such, so breaks that `$` or `^` look at stay breaks.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Literal

from shardspec.frontend.patterns.re2_engine import Re2Set, re2_set
from shardspec.frontend.patterns.re2_source import NEVER, PLAIN, Alphabet, holds, re2_source
from shardspec.frontend.patterns.regex_tree import Anchor, AnchorKind, CharSet, Exactly, Tree, nodes

_WORD_TOKENS = string.ascii_letters + string.digits + "_"
_OTHER_TOKENS = "".join(char for char in PLAIN if char not in _WORD_TOKENS)
_FIRST_LONG_TOKEN = 0x10000

_ANCHORS: Mapping[AnchorKind, str] = {
    "start": r"\A",
    "end": r"\z",
    "line_start": "(?m:^)",
    "line_end": "(?m:$)",
    "end_or_break": "(?m:$)",
    "boundary": r"\b",
    "not_boundary": r"\B",
}

Kind = tuple[str, tuple[bool, ...], bool]


class WideMatcher:
    """Several trees against any text; it learns the kinds of characters as they come.

    Attributes:
      trouble: why it could not say, after it did not.

    Trees with word boundaries or line anchors go one to a matcher: `needs_own_matcher`.
    """

    def __init__(self, trees: tuple[Tree, ...]) -> None:
        """Collect what the trees can tell apart."""
        found = [node for tree in trees for node in nodes(tree)]
        self._trees = trees
        self._chars = frozenset(node.char for node in found if isinstance(node, Exactly))
        self._sets = tuple(dict.fromkeys(node for node in found if isinstance(node, CharSet)))
        self._anchors = frozenset(node for node in found if isinstance(node, Anchor))
        self._tokens: dict[int, str] = {}
        self._kinds: dict[Kind, tuple[str, str]] = {}
        self._compiled: tuple[int, Re2Set | None] = (-1, None)
        self.trouble = "its size: RE2 would need too much memory"

    def indices(self, path: str) -> list[int] | None:
        """Return which trees match the whole path, or None where RE2 cannot say."""
        if not path:
            return self._of_empty()
        for char in set(path):
            if ord(char) not in self._tokens and not self._learn(char):
                return None
        compiled = self._current()
        return None if compiled is None else compiled.indices(self._translated(path))

    def _of_empty(self) -> list[int] | None:
        """Return which trees match "", where Python's word boundaries have their own rule."""
        outside = "" if re.fullmatch(r"\B", "") else NEVER
        anchors = {**_ANCHORS, "boundary": NEVER, "not_boundary": outside}
        compiled = self._compile(Alphabet((), anchors))
        return None if compiled is None else compiled.indices("")

    def _learn(self, char: str) -> bool:
        """Give a new character its kind; False when ASCII has no letter left for it."""
        is_word = self._is_word(char)
        exact = char if char in self._chars else ""
        kind: Kind = (exact, tuple(holds(chars, char) for chars in self._sets), is_word)
        if kind not in self._kinds:
            taken = sum(other[2] == is_word for other in self._kinds)
            if is_word and taken == len(_WORD_TOKENS):
                self.trouble = f"a word boundary among more than {taken} kinds of characters"
                return False
            self._kinds[kind] = (_token(taken, is_word=is_word), char)
        self._tokens[ord(char)] = self._kinds[kind][0]
        return True

    def _is_word(self, char: str) -> bool:
        """Say whether a character makes words, where the trees ask for word boundaries."""
        for anchor in self._anchors:
            if anchor.kind in ("boundary", "not_boundary"):
                flags = re.ASCII if anchor.ascii else re.UNICODE
                return re.compile(r"\w", flags).fullmatch(char) is not None
        return False

    def _current(self) -> Re2Set | None:
        """Return the trees compiled for the kinds that are known so far."""
        if self._compiled[0] != len(self._kinds):
            kinds = (*self._kinds.values(), ("\n", "\n")) if self._breaks else self._kinds.values()
            alphabet = Alphabet(tuple(kinds), _ANCHORS)
            self._compiled = (len(self._kinds), self._compile(alphabet))
        return self._compiled[1]

    def _compile(self, alphabet: Alphabet) -> Re2Set | None:
        return re2_set(re2_source(tree, alphabet) for tree in self._trees)

    @property
    def _breaks(self) -> Literal["", "final", "all"]:
        """Say which line breaks the anchors look at."""
        kinds = {anchor.kind for anchor in self._anchors}
        if kinds & {"line_start", "line_end"}:
            return "all"
        return "final" if "end_or_break" in kinds else ""

    def _translated(self, path: str) -> str:
        translated = path.translate(self._tokens)
        if self._breaks == "final" and path.endswith("\n"):
            return translated[:-1] + "\n"
        if self._breaks == "all":
            lines = path.split("\n")
            return "\n".join(line.translate(self._tokens) for line in lines)
        return translated


def _token(position: int, *, is_word: bool) -> str:
    """Return the character for a new kind, of one byte while they last."""
    if is_word:
        return _WORD_TOKENS[position]
    if position < len(_OTHER_TOKENS):
        return _OTHER_TOKENS[position]
    return chr(_FIRST_LONG_TOKEN + position)


def needs_own_matcher(tree: Tree) -> bool:
    """Say whether a tree asks for breaks or words in a way that other trees might not."""
    special = ("end_or_break", "line_start", "line_end", "boundary", "not_boundary")
    return any(isinstance(node, Anchor) and node.kind in special for node in nodes(tree))
