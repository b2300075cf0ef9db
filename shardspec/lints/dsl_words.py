"""What findings quote, in the spelling of the file that they are about.

A check says its ways out as YAML has them: `lints: {dead-rule: allow}`, `"**/wi": embed mlp`. Of a
spec in the DSL the same is `lint dead-rule allow`, `**/wi : embed mlp`. What stands in backticks is
put into the other spelling here, in one place, by its form; names of sections stay where the DSL
has them as well. A name of the user is never respelt, whatever it looks like: `policy.weight` may
be an array, and `axes` an activation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from itertools import pairwise

from shardspec.diagnostics import Diagnostic, codes
from shardspec.ir.plan import Entry
from shardspec.ir.spec import MemoryRule, Replicate, ScanRule, Spec, TrainingRule
from shardspec.language.document import ENTRIES
from shardspec.language.reading import is_dsl

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


def _keys() -> Iterator[str]:
    """Yield the keys that are quoted alone: `policy.indivisible`."""
    for section in ("state", "coverage", "policy"):
        yield from (rf"{section}\.{key}" for key in ENTRIES[section].model_fields)


def _replicate(found: re.Match[str]) -> str:
    return f'`replicate {found[1]} because "{found[2]}"`'


def _added(found: re.Match[str]) -> str:
    return f"add {_replicate(found)}"


def _override(found: re.Match[str]) -> str:
    """Return `override w : embed mlp because "..."`, or `= (fsdp, none)` for a partition."""
    path, names, partition, reason = found.groups()
    says = f": {names}" if partition is None else f"= {partition}"
    because = "" if reason is None else f' because "{reason}"'
    return f"`override {path} {says}{because}`"


_Forms = tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]

#: Forms that name a section by the words around it, whatever the user's names are.
_IN_WORDS: _Forms = tuple(
    (re.compile(pattern), made)
    for pattern, made in (
        (r"(add|write) `([\w.'-]+): ([^`]+)` to `axes`", r"\1 `axis \2 = \3`"),
        (r"state it in `axes`: `([\w.'-]+): ([^`]+)`", r"state it, `axis \1 = \2`"),
        (r"stands in `axes`, as `\"([^`\"]+)\":`", r'is declared, as `axis "\1"`'),
        (r"add `(\w+): ([^`]+)` to `let`", r"add `let \1 = \2`"),
        (r"under `activations` \(`(\w+): ([^`]+)`\)", r"by a line `activation \1 : \2`"),
        (r"add to `overrides` (?=`- \{)", "add "),
        (r"(say which|say how it lies) in `overrides`", r"\1"),
        (r"(no|each|every) `axes` entry", r"\1 `axis`"),
        (r"no entry of `axes`", "no `axis`"),
        (r" or `axes` entry", " or `axis`"),
        (r"the sizes in `axes`", "the sizes of each `axis`"),
    )
)

#: A form of YAML, and the same in the DSL; each is tried on what those before it left.
_FORMS: _Forms = tuple(
    (re.compile(pattern), made)
    for pattern, made in (
        (r'add to `replicate`: `\{path: "([^`"]*)", because: ([^`{}]*)\}`', _added),
        (r'`replicate: \[\{path: "?([^`"]*?)"?, because: ([^`}]*)\}\]`', _replicate),
        (
            r'`(?:- )?\{path: "([^`"]*)", (?:axes: ([^`,{}]+)|spec: "([^`"]+)")'
            r"(?:, because: ([^`{}]*))?\}`",
            _override,
        ),
        (r"`(lints|state|coverage|policy): \{([^`{}]*)\}`", _settings),
        (rf"`lints\.({'|'.join(f'{code.name}|{code.id}' for code in codes.ALL)})`", r"`lint \1`"),
        (rf"`(?:{'|'.join(_keys())})`", lambda found: found[0].replace(".", " ")),
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
        (r"`([a-z_]+):`", r"`\1`"),
        (_SECTION, lambda found: f"`{_ENTRIES[found[1]]}`"),
    )
)


#: A word of the DSL, or the `{` of a block.
_WORDS = re.compile(r"[^\s\"'`{}()\[\],;:=#]+|\{")
_COMMENT = re.compile(r"#[^\n]*")

#: What stands for a name while the rest of a sentence is respelt.
_HELD = "\x00"


def in_dsl(text: str, *names: Container[str]) -> str:
    r"""Return a sentence of a finding with what it quotes in the spelling of the DSL.

    Args:
      names: those of the user, which stay as they are.

    >>> in_dsl("if that is meant, `lints: {size-one-axis: allow}`")
    'if that is meant, `lint size-one-axis allow`'
    >>> in_dsl('add to `params`: `"**/wi": AXIS`, or add `mlp: SIZE` to `axes`')
    'add to `params`: `**/wi : AXIS`, or add `axis mlp = SIZE`'
    >>> in_dsl("`axes` and `state.kv` are arrays", {"axes", "state.kv"})
    '`axes` and `state.kv` are arrays'
    """
    if _HELD in text:
        return text
    for pattern, made in _IN_WORDS:
        text = pattern.sub(made, text)
    pieces = text.split("`")
    held = []
    for at in range(1, len(pieces), 2):
        if any(pieces[at] in each for each in names):
            held.append(pieces[at])
            pieces[at] = _HELD
    text = "`".join(pieces)
    for pattern, made in _FORMS:
        text = pattern.sub(made, text)
    first, *rest = text.split(_HELD)
    return first + "".join(name + after for name, after in zip(held, rest, strict=True))


def respelt_for_dsl(found: Diagnostic, names: Container[str] = ()) -> Diagnostic:
    """Return a finding about a spec in the DSL with all its sentences in that spelling.

    Args:
      names: those of the user; what the finding is about is known beside them.
    """
    own = names, frozenset(filter(None, (*found.arrays, found.subject)))
    return replace(
        found,
        message=in_dsl(found.message, *own),
        labels=tuple(replace(label, text=in_dsl(label.text, *own)) for label in found.labels),
        notes=tuple(in_dsl(note, *own) for note in found.notes),
        help=None if found.help is None else in_dsl(found.help, *own),
    )


def names_of(spec: Spec) -> frozenset[str]:
    """Return all that the user has named: arrays, axes, targets, activations, patterns, rules."""
    rules = (*spec.axis_rules, *spec.any_rules)
    names = {param.path for param in spec.params} | {each.logical_axis for each in rules}
    names |= {axis for rule in rules for axis in rule.mesh_axes} | set(map(str, rules))
    names |= {axis.name for axis in spec.logical_axes} | {each.name for each in spec.activations}
    for array in spec.params:
        names.update(filter(None, array.logical_axes or ()))
    for activation in spec.activations:
        names.update(filter(None, activation.logical_axes))
    names |= {target.name for each in (spec, *spec.in_phases) for target in each.targets}
    names |= {phase.phase for phase in spec.phases} | set(spec.mesh_axis_names)
    entries: tuple[Entry | ScanRule | MemoryRule | TrainingRule | Replicate, ...]
    entries = (*spec.path_rules, *spec.derives, *spec.overrides, *spec.scans, *spec.memory)
    names |= {each.pattern.text for each in (*entries, *spec.training, *spec.replicate)}
    for source in filter(is_dsl, (spec.source, *spec.sources)):
        names |= _written(source.text)
    return frozenset(names - {"none", "_", "rest"})


def _written(text: str) -> set[str]:
    """Return the words of a text in the DSL but for those before a `{`, which open a block.

    A name may stand where no part of a spec keeps it: as a value of a step, or misspelt. None of
    the keys that YAML alone has is a word of the DSL.
    """
    words = _WORDS.findall(_COMMENT.sub("", text))
    return {word for word, after in pairwise([*words, ""]) if after != "{"}
