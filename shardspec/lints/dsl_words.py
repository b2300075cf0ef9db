"""What findings quote, in the spelling of the file that they are about.

A check says its ways out as YAML has them: `lints: {dead-rule: allow}`, `"**/wi": embed mlp`. Of a
spec in the DSL the same is `lint dead-rule allow`, `**/wi : embed mlp`. What stands in backticks is
put into the other spelling here, in one place, by its form; names of sections stay where the DSL
has them as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from shardspec.diagnostics import Diagnostic

#: The sections whose word in the DSL is of one entry.
_ENTRIES = {
    "activations": "activation",
    "axes": "axis",
    "overrides": "override",
    "lints": "lint",
    "targets": "target",
    "phases": "phase",
}
_SECTION = rf"`({'|'.join(_ENTRIES)}):?`"
_STEP = "mode|tokens|microbatches|gradients|remat|dtype|attention|experts"
_SIZE = r"(?:[\w.-]+(?: [*+-] [\w.-]+)*|over [^`:]+|submesh \w+)(?: @ dcn)?(?: explicit| manual)?"


def _settings(found: re.Match[str]) -> str:
    """Return `lint dead-rule allow`, `state optimizer zero1`: a line for each of some keys."""
    word = _ENTRIES.get(found[1], found[1])
    lines = (f"`{word} {each.replace(':', '', 1)}`" for each in found[2].split(", "))
    return " and ".join(lines)


def _replicate(found: re.Match[str]) -> str:
    return f'`replicate {found[1]} because "{found[2]}"`'


#: A form of YAML, and the same in the DSL; each is tried on what those before it left.
_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), made)
    for pattern, made in (
        (r'`replicate: \[\{path: "?([^`"]*?)"?, because: ([^`}]*)\}\]`', _replicate),
        (r"`(lints|state|coverage|policy): \{([^`{}]*)\}`", _settings),
        (r"`lints\.([\w-]+)`", r"`lint \1`"),
        (r"`(state|coverage|policy)\.(\w+)`", r"`\1 \2`"),
        (r"(add|write) `([\w.'-]+): ([^`]+)` to `axes`", r"\1 `axis \2 = \3`"),
        (r"state it in `axes`: `([\w.'-]+): ([^`]+)`", r"state it, `axis \1 = \2`"),
        (r"stands in `axes`, as `\"([^`\"]+)\":`", r'is declared, as `axis "\1"`'),
        (r"add `(\w+): ([^`]+)` to `let`", r"add `let \1 = \2`"),
        (r"under `activations` \(`(\w+): ([^`]+)`\)", r"by a line `activation \1 : \2`"),
        (r"add `(\w+): ([^`]+)`, say", r"add `activation \1 : \2`, say"),
        (r"add `hardware: ([^`]+)`", r"write `on \1` before the `{`"),
        (r"`max_replicated_bytes: ([^`]+)`", r"`coverage max_replicated_bytes \1`"),
        (r"`over: ([^`]+)`", r"`state over \1`"),
        (r"`interleaved: true`", "`interleaved`"),
        (r"`at: ([^`]+)`", r"`at \1`"),
        (r"`(min_shard|unit): (\w+)`", r"`\1 \2`"),
        (rf"`({_STEP}): ([^`]+)`", r"`\1 \2`"),
        (r"`memory: \{\"([^`\"]+)\": (\w+)\}`", r"`memory { \1 : \2 }`"),
        (r"`\"([^`\"\s#;:\\]+)\": ([^`]+)`", r"`\1 : \2`"),
        (r"`(\"(?:[^`\"\\]|\\.)+\"): ([^`]+)`", r"`\1 : \2`"),
        (rf"`([\w.'-]+): ({_SIZE})`", r"`\1 = \2`"),
        (r"`([\w.-]+): \{(\w+): ([^`{},]+), (\w+): ([^`{},]+)\}`", r"`\1 = (\2 = \3, \4 = \5)`"),
        (r"(no|each|every) `axes` entry", r"\1 `axis`"),
        (r"no entry of `axes`", "no `axis`"),
        (r" or `axes` entry", " or `axis`"),
        (r"the sizes in `axes`", "the sizes of each `axis`"),
        (r"`([a-z_]+):`", r"`\1`"),
        (_SECTION, lambda found: f"`{_ENTRIES[found[1]]}`"),
    )
)


def in_dsl(text: str) -> str:
    """Return a sentence of a finding with what it quotes in the spelling of the DSL.

    >>> in_dsl("if that is meant, `lints: {size-one-axis: allow}`")
    'if that is meant, `lint size-one-axis allow`'
    >>> in_dsl('add to `params`: `"**/wi": AXIS`, or add `mlp: SIZE` to `axes`')
    'add to `params`: `**/wi : AXIS`, or add `axis mlp = SIZE`'
    """
    for pattern, made in _FORMS:
        text = pattern.sub(made, text)
    return text


def respelt_for_dsl(found: Diagnostic) -> Diagnostic:
    """Return a finding about a spec in the DSL with all its sentences in that spelling."""
    return replace(
        found,
        message=in_dsl(found.message),
        labels=tuple(replace(label, text=in_dsl(label.text)) for label in found.labels),
        notes=tuple(map(in_dsl, found.notes)),
        help=None if found.help is None else in_dsl(found.help),
    )
