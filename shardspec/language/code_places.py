"""Places in code, as `at:` of an activation states them: `model.py:Block.__call__ argument x`.

First the place: the end of a file's path and of a function's qualified name, or a pattern of named
scopes. Behind it may stand which of its values is meant.
"""

from __future__ import annotations

import re
from typing import Any

from shardspec.ir.code_place import REGEX, CodePlace
from shardspec.language.grammar.syntax import SyntaxFault

_VALUE = re.compile(
    r"\s(?:(?P<result>result)(?:\[(?P<index>\d{1,4})\])?|argument\s+(?P<name>\w{1,200})"
    r"|line\s+(?P<line>\d{1,7}))\Z"
)
_FUNCTION = re.compile(r"(?P<file>[^\s:*?\[\]{}]+\.py)(?::(?P<function>[\w.<>]+))?\Z")
_FORMS = "`model.py:Block.__call__`, or a named scope such as `**/mlp`"
_LONGEST = 1000


def parse_code_place(text: str) -> CodePlace | SyntaxFault:
    """Return the place that a text states.

    >>> parse_code_place("model.py:Block.__call__ result[1]").index
    1
    >>> parse_code_place("**/mlp line 23").scope
    '**/mlp'
    """
    stated = text.strip()
    if len(stated) > _LONGEST:
        return SyntaxFault(f"a place of more than {_LONGEST:,} characters", 0, len(text))
    found = _VALUE.search(stated)
    where = stated[: found.start()].rstrip() if found else stated
    if not where:
        return SyntaxFault("expected a place in code", 0, len(text), f"write {_FORMS}")
    value = _value_of(found)
    function = _FUNCTION.match(where)
    if function is not None:
        if function["function"] is None and value.get("value") != "line":
            help = f"name a function, `{where}:Block.__call__`, or a line, `{where} line 23`"
            return SyntaxFault("a file alone is no place of a value", 0, len(where), help)
        return CodePlace(stated, "", function["file"], function["function"] or "", **value)
    if not where.startswith(REGEX) and re.search(r"\s", where):
        help = f"write {_FORMS}, and behind it `result`, `result[1]`, `argument x` or `line 23`"
        return SyntaxFault(f"`{stated}` is no place in code", 0, len(text), help)
    return CodePlace(stated, where, **value)


def _value_of(found: re.Match[str] | None) -> dict[str, Any]:
    """Return which value is meant; the result, if nothing is said."""
    if found is None or found["result"]:
        index = found["index"] if found else None
        return {} if index is None else {"index": int(index)}
    if found["name"]:
        return {"value": "argument", "name": found["name"]}
    return {"value": "line", "line": int(found["line"])}
