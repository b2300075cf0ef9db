"""The names that policies of `jax.checkpoint` save, read in code and written there.

Only calls of `save_only_these_names` are read whose names are texts: what a variable holds is
changed where that is set, and by people.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardspec.diagnostics import SourceFile
from shardspec.foreign.python_text import Places
from shardspec.python_syntax import parsed

_POLICY = "save_only_these_names"


@dataclass(frozen=True, slots=True)
class Policy:
    """A call that makes a policy.

    Attributes:
      start, end: where its names are in the text of the file.
    """

    file: str
    line: int
    start: int
    end: int
    names: tuple[str, ...]


def policies_of(file: str, text: str) -> Iterator[Policy]:
    """Yield the policies of a file, in order; none of a text that is no Python.

    >>> text = 'p = jax.checkpoint_policies.save_only_these_names("query", "key")'
    >>> [(each.line, each.names) for each in policies_of("model.py", text)]
    [(1, ('query', 'key'))]
    """
    if _POLICY not in text:
        return
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    places = Places(SourceFile(file, text))
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
        values = [each.value for each in call.args if isinstance(each, ast.Constant)]
        names = tuple(each for each in values if isinstance(each, str))
        if _name_of(call.func) != _POLICY or call.keywords or len(names) != len(call.args):
            continue
        start = text.index("(", places.span(call.func).end) + 1
        end = places.span(call).end - 1
        if "#" not in text[start:end]:
            yield Policy(file, call.lineno, start, end, names)


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def with_names(text: str, chosen: Sequence[tuple[Policy, tuple[str, ...]]]) -> str:
    """Return the text of a file whose policies save other names.

    >>> text = 'p = save_only_these_names("query")'
    >>> with_names(text, [(policy, ("query", "key")) for policy in policies_of("m.py", text)])
    'p = save_only_these_names("query", "key")'
    """
    for policy, names in sorted(chosen, key=lambda pair: -pair[0].start):
        own = ", ".join(f'"{name}"' for name in names)
        text = f"{text[: policy.start]}{own}{text[policy.end :]}"
    return text
