"""A place in code that is not the user's, as `at:` of an activation states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Which values of a place a constraint is put on.
CodeValue = Literal["result", "argument", "line"]
REGEX = "re:"


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A place in code, and which of its values are constrained.

    Attributes:
      text: as written.
      scope: a pattern of named scopes and module paths, regexes behind `re:`; empty where a
        function is meant.
      file, function: how the path of a file and the qualified name of a function end.
      value: what it is of the place.
      index: the number of a result; None for all.
      name: of an argument.
      line: the number of a line in the file.

    Invariants:
      one: it has a scope, or a file.
    """

    text: str
    scope: str = ""
    file: str = ""
    function: str = ""
    value: CodeValue = "result"
    index: int | None = None
    name: str = ""
    line: int = 0

    @property
    def is_regex(self) -> bool:
        """Say whether the pattern of scopes is a regex."""
        return self.scope.startswith(REGEX)

    @property
    def pattern(self) -> str:
        """Return the pattern of scopes as such."""
        return self.scope.removeprefix(REGEX)
