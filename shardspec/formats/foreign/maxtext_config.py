"""MaxText's files as one configuration: base, model and custom mesh files, joined as MaxText does.

Rules are joined by name: the rules of a name that a later file has are taken out, and the new ones
stand at the end. `override_logical_axis_rules: true` in a file replaces the whole list, and so does
a custom mesh and rule file, together with `mesh_axes` and `data_sharding`. Every other key is
replaced by the last file that has it.
Source: AI-Hypercomputer/maxtext, `maxtext/configs/pyconfig.py` and `types.py`.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.data_text import read_data
from shardspec.formats.foreign.imported import bad, lost
from shardspec.formats.foreign.node import Node
from shardspec.formats.foreign.rules import ForeignRule, read_rules
from shardspec.frontend.boundary import leads_out
from shardspec.frontend.files import read_source

_CUSTOM_KEYS = frozenset(
    {
        *("mesh_axes", "logical_axis_rules", "data_sharding", "context_sharding"),
        "input_data_sharding_logical_axes",
    }
)
_TRUE = frozenset(("true", "yes", "on"))
_DEEPEST = 16

Rules = tuple[ForeignRule, ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """Rules of one name that a later file put others in place of.

    Attributes:
      position: where the first of the old ones stood, in `before`.
      before: the whole list at that time.
    """

    name: str
    position: int
    before: Rules
    new: Rules


@dataclass(slots=True)
class MaxTextConfig:
    """What the files say together.

    Attributes:
      values: the last value of each key, but for the rules.
      rules: as MaxText has them: replaced ones at the end.
      in_place: the same rules, each name where the first file has it.
    """

    values: dict[str, Node] = field(default_factory=dict)
    rules: Rules = ()
    in_place: Rules = ()
    replaced: list[Replaced] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)

    def text(self, key: str) -> str:
        """Return a value that is a word; "" where there is none."""
        node = self.values.get(key)
        return node.text if node is not None and node.kind == "text" else ""

    def is_true(self, key: str) -> bool:
        """Say whether a key is set to true, in any of the spellings of YAML 1.1."""
        node = self.values.get(key)
        return node is not None and _is_true(node)

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a list of words; None where there is none, or something else."""
        node = self.values.get(key)
        if node is None or not node.is_list or any(item.kind != "text" for item in node.items):
            return None
        return tuple(item.text for item in node.items)

    def _add(self, node: Node, source: SourceFile) -> None:
        keys = {key.text for key in node.keys}
        is_custom = keys <= _CUSTOM_KEYS and {"mesh_axes", "logical_axis_rules"} <= keys
        rules = node.get("logical_axis_rules")
        if rules is not None and rules.kind != "nothing":
            read, faults = read_rules(rules, "`logical_axis_rules`")
            self.faults += faults
            flag = node.get("override_logical_axis_rules")
            if is_custom or (flag is not None and _is_true(flag)):
                self.rules = self.in_place = read
                self.replaced.clear()
            else:
                self._merge(read)
        pairs = zip(node.keys, node.items, strict=True)
        self.values.update({key.text: item for key, item in pairs})
        self._add_custom(node, source)

    def _merge(self, new: Rules) -> None:
        names = {rule.name for rule in new}
        for name in dict.fromkeys(rule.name for rule in new):
            at = next((i for i, rule in enumerate(self.rules) if rule.name == name), None)
            if at is not None and name is not None:
                mine = tuple(rule for rule in new if rule.name == name)
                self.replaced.append(Replaced(name, at, self.rules, mine))
        self.rules = (*(rule for rule in self.rules if rule.name not in names), *new)
        self.in_place = _put_in_place(self.in_place, new)

    def _add_custom(self, node: Node, source: SourceFile) -> None:
        """Add the file that `custom_mesh_and_rule` names, from beside the file that says so."""
        named = node.get("custom_mesh_and_rule")
        if named is None or named.kind != "text" or not named.text:
            return
        folder = os.path.join(os.path.dirname(source.name), "custom_mesh_and_rule")
        path = os.path.join(folder, f"{os.path.basename(named.text)}.yml")
        if not os.path.isfile(path):
            message = f"`custom_mesh_and_rule` names `{named.text}`, and `{path}` is not there"
            self.faults.append(lost(message, named.span, help="give the file as the last FILE"))
            return
        read = _read(path, named)
        if isinstance(read, SourceFile):
            self.add_source(read)
        else:
            self.faults.append(read)

    def add_source(self, source: SourceFile, depth: int = 0) -> None:
        """Add what a file says, and before it the file that it is based on."""
        node = read_data(source)
        if not isinstance(node, Node):
            self.faults += node or (bad(f"`{source.name}` is no YAML", source.whole),)
        elif node.kind != "mapping":
            message = f"`{source.name}` is {node.described()}, not a configuration of MaxText"
            self.faults.append(bad(message, source.whole, help="a mapping of keys to values"))
        else:
            self._add_base(node, source, depth)
            self._add(node, source)

    def _add_base(self, node: Node, source: SourceFile, depth: int) -> None:
        """Add the file that `base_config` names; its lists are replaced, not joined."""
        named = node.get("base_config")
        if named is None or named.kind != "text" or not named.text:
            return
        folder = os.path.dirname(source.name)
        places = [os.path.join(folder, named.text), os.path.join(folder, "..", named.text)]
        path = next((each for each in places if os.path.isfile(each)), None)
        if path is None or depth >= _DEEPEST or _leads_out(path, folder or "."):
            message = f"`base_config` names `{named.text}`, which is not beside this file"
            self.faults.append(lost(message, named.span, help="give that file as a FILE before it"))
            return
        read = _read(os.path.normpath(path), named)
        if isinstance(read, Diagnostic):
            self.faults.append(read)
            return
        self.add_source(read, depth + 1)
        if node.get("logical_axis_rules") is not None:
            self.rules = self.in_place = ()


def _put_in_place(rules: Rules, new: Rules) -> Rules:
    """Return `rules` with the new ones of each name where the first old one stood."""
    names = {rule.name for rule in new}
    merged: list[ForeignRule] = []
    settled: set[str | None] = set()
    for rule in rules:
        if rule.name not in names:
            merged.append(rule)
        elif rule.name not in settled:
            settled.add(rule.name)
            merged += [each for each in new if each.name == rule.name]
    return (*merged, *(each for each in new if each.name not in settled))


def _leads_out(path: str, folder: str) -> bool:
    """Say whether a file is elsewhere than below a folder, or below the one above it."""
    return os.path.relpath(path, folder).split(os.sep)[:2] == ["..", ".."]


def _is_true(node: Node) -> bool:
    if node.kind == "boolean":
        return bool(node.number)
    return node.kind == "text" and node.text.lower() in _TRUE


def _read(path: str, named: Node) -> SourceFile | Diagnostic:
    if leads_out(path):
        return bad(f"`{path}` is a link that leads out of the project", named.span)
    read = read_source(Path(path), name=path)
    if isinstance(read, Diagnostic):
        return bad(read.message, named.span, help=read.help)
    return replace(read, included_from=named.span)


def read_configs(sources: Sequence[SourceFile]) -> MaxTextConfig:
    """Return what files say together, each above those before it."""
    config = MaxTextConfig()
    for source in sources:
        config.add_source(source)
    return config
