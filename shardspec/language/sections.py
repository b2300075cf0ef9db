"""The sections of a spec, each declared once: readers, printers, merging and editors go by this.

The type and the description of a section are in `document`. Whatever else is known of it, in YAML,
in the DSL, in `--set`, in phases and in an editor, follows from its row here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from shardspec.diagnostics import quote

#: How a section is written in the DSL: a statement with one value or several; a statement for each
#: name (`axis a = 1`), key (`lint a warn`) or item of a list (`override a : b`); a block of entries
#: by pattern; or in a way of its own.
Form = Literal["value", "words", "named", "settings", "items", "pairs", "own"]

_NO_FIELDS: Mapping[str, str] = MappingProxyType({})
_ANSWER = {"axes": "names", "spec": "partition"}
_PATTERNS = {"path": "pattern", "match": "pattern"}
_SIZES = dict.fromkeys(("size", "unit", "parts"), "size")
_MACHINE = {"hardware": "hardware", "mesh": "mesh_size", "devices": "devices"}


class Section(NamedTuple):
    """One section.

    Attributes:
      name: its key in YAML.
      value: the kind of expression that its value is, or that of each entry, by the start symbol of
        its grammar; or what it names; empty for others.
      keys: what the keys of its entries name, as `lsp.kinds` calls it.
      fields: kinds of expressions in the fields of its entries.
      rules: of patterns, where a `Spec` has them and the type of each: the first match wins.
      is_bare: whether no other finding follows from the loss of it.
      alone: why a phase has none of its own.
    """

    name: str
    form: Form
    value: str = ""
    keys: str = ""
    fields: Mapping[str, str] = _NO_FIELDS
    rules: tuple[str, str] | None = None
    is_bare: bool = False
    alone: str = ""

    @property
    def depth(self) -> int:
        """Return how many keys and numbers lead to the fields of its entries, its own first."""
        return 2 if self.keys or self.form == "items" or self.name == "rules" else 1

    @property
    def word(self) -> str:
        """Return what its statements begin with in the DSL."""
        return quote.WORDS.get(self.name, self.name)


_OF_SPEC = "the arrays of a phase are those of the spec: that they can move is the point of it"
_VERSION = "the version is that of the whole file"
_EXTENDS = "a phase extends the spec that it stands in, and no other"
_LEVELS = "levels are those of the spec; `# shardspec: ignore[...]` silences one line"
_PHASES = "phases stand side by side; a phase is merged over the spec alone"

_ALL = (
    Section("shardspec", "value", is_bare=True, alone=_VERSION),
    Section("doc", "value", is_bare=True),
    Section("extends", "words", "base", alone=_EXTENDS),
    Section("let", "named", "size", "number", is_bare=True),
    Section("axes", "named", "size", "logical axis", _SIZES),
    Section("hardware", "value", "hardware"),
    Section("mesh", "own", "mesh_size", "mesh axis"),
    Section("devices", "value", "devices", is_bare=True),
    Section("targets", "named", "", "target", _MACHINE),
    Section("rules", "own", "axis_rule", fields={"rule": "axis_rule", "at": "place"}),
    Section("drop", "words", "axes"),
    Section("params", "pairs", "names", "pattern", rules=("path_rules", "PathRule")),
    Section("overrides", "items", fields=_ANSWER | _PATTERNS),
    Section("derive", "pairs", "derived", "pattern", rules=("derives", "DeriveRule")),
    Section("scan", "pairs", "scan", "pattern", rules=("scans", "ScanRule")),
    Section("memory", "pairs", "", "pattern", rules=("memory", "MemoryRule"), is_bare=True),
    Section("training", "pairs", "", "pattern", rules=("training", "TrainingRule"), is_bare=True),
    Section("activations", "own", "names", "activation", _ANSWER),
    Section("arrays", "pairs", "array_type", "array", alone=_OF_SPEC),
    Section("caches", "pairs", "array_type", "array"),
    Section("manifest", "words", "manifest", alone=_OF_SPEC),
    Section("policy", "settings", fields={"whole_below": "bound"}, is_bare=True),
    Section("state", "settings", fields={"over": "mesh_axes"}, is_bare=True),
    Section("step", "own", fields={"program": "step_line", "extends": "step"}),
    Section("coverage", "settings", fields={"max_replicated_bytes": "bound"}, is_bare=True),
    Section("replicate", "items", fields=_PATTERNS, is_bare=True),
    Section("lints", "settings", keys="finding", is_bare=True, alone=_LEVELS),
    Section("phases", "named", keys="phase", is_bare=True, alone=_PHASES),
)

#: By the key in YAML, in the order in which a spec has them.
SECTIONS = {section.name: section for section in _ALL}
#: By the word that its statements begin with in the DSL.
BY_WORD = {section.word: section for section in _ALL}
#: Those of patterns, of which the first that matches counts.
RULES = {section.name: section.rules for section in _ALL if section.rules}
#: Sections that a phase has none of its own of, and why that is.
SPEC_ALONE = {section.name: section.alone for section in _ALL if section.alone}


def section_of(word: str) -> str:
    """Return the section that a word of the DSL is about; the word itself where it is none."""
    return BY_WORD[word].name if word in BY_WORD else word


def expression_at(route: Sequence[str | int]) -> str:
    """Return the kind of expression that stands at a route, counted from a file or a phase.

    >>> expression_at(("params", "**/wi")), expression_at(("overrides", 0, "spec"))
    ('names', 'partition')
    """
    section = SECTIONS.get(str(route[0]))
    if section is None:
        return ""
    field = route[section.depth :][:1]
    return section.fields.get(str(field[0]), "") if section.fields and field else section.value
