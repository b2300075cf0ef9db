"""Axis mappings of Haliax, and the configuration files of Levanter that make two of them.

A mapping is a dictionary from axis names to mesh axes. An axis that is not in it is whole; nothing
looks whether a mesh axis is used twice, which JAX refuses later. Levanter has one mapping for
parameters and one for what is computed; a spec has one list of rules, which is that of parameters.
A class of rules, such as the `ShardingRules` of jax-llm-examples, is such a mapping too: its fields
are axes, and what stands for them in a call or as a default are mesh axes.
Source: haliax 1.3, `haliax.partitioning.pspec_for_axis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.imported import (
    Answer,
    Imported,
    NoAnswer,
    Options,
    Outcome,
    ambiguous,
    bad,
    came_from,
    lost,
    placed,
    rule_text,
)
from shardspec.formats.foreign.known_code import no_list
from shardspec.formats.foreign.levanter_config import (
    AxisMapping,
    LevanterMapping,
    levanter_mapping,
    read_mapping,
)
from shardspec.formats.foreign.named_values import NamedValues, likely, read_named_values
from shardspec.formats.foreign.node import Node, group
from shardspec.formats.foreign.rules import Dims, ForeignRule, writable
from shardspec.frontend.reading import Comments, Data, Route
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import Param, Params

_FORM = "a mapping of axis names to mesh axes: {embed: data, mlp: model}"
_CLASS = "the class of rules"
_NAMES = ("parameter_axis_mapping", "axis_mapping", "param_axis_mapping", "axis_resources")


@dataclass(frozen=True, slots=True)
class HaliaxReading:
    """The mapping that parameters have.

    Attributes:
      is_class: whether names that are not in it are an error, as the fields of a class are.
    """

    mapping: tuple[ForeignRule, ...]
    is_class: bool = False


def read(sources: Sequence[SourceFile], options: Options) -> Outcome:
    """Return the spec that says what a mapping does."""
    if len(sources) != 1:
        return None, (bad(f"one file, please: here are {len(sources)}", sources[1].whole),)
    found = _find(sources[0], options)
    if isinstance(found, tuple):
        return None, found
    if any(fault.is_error for fault in found.faults):
        return None, found.faults
    tool = found.tool
    listed = list(writable(found.params.values(), tool))
    faults = [*found.faults, *(each for each in listed if isinstance(each, Diagnostic))]
    data: dict[str, Data] = {
        "doc": "Rules of a class" if tool == _CLASS else f"{tool}'s mapping of parameters",
        **found.data,
    }
    comments: dict[Route, Comments] = dict(found.comments)
    rules: list[Data] = []
    for rule in listed:
        if isinstance(rule, ForeignRule):
            comments["rules", len(rules)] = _comment(rule, found)
            rules.append(rule_text(str(rule.name), rule.mesh_axes))
    for rule in found.computed.values():
        if rule.name == found.batch_axis and rule.name not in found.params:
            comments["rules", len(rules)] = _comment(rule, found)
            rules.append(rule_text(str(rule.name), rule.mesh_axes))
    faults += _only_computed(found)
    data["rules"] = rules
    data["policy"] = {"indivisible": "keep"}
    comments["policy",] = Comments(trailing="as JAX does, which refuses what does not divide")
    data["lints"] = {"axis-without-array": "allow", **found.lints}
    return Imported(
        data, comments, HaliaxReading(tuple(found.params.values()), tool == _CLASS), tool
    ), tuple(faults)


def _comment(rule: ForeignRule, found: LevanterMapping) -> Comments:
    why = found.reasons.get(str(rule.name), "")
    return came_from(rule.span, why) if rule.span is not None else Comments(trailing=why)


def _only_computed(found: LevanterMapping) -> list[Diagnostic]:
    """Return a finding for each axis that is laid out otherwise in what is computed."""
    faults = []
    for name, rule in found.computed.items():
        ours = found.params.get(name)
        if name == found.batch_axis or (ours is not None and ours.mesh_axes == rule.mesh_axes):
            continue
        there = rule_text(name, rule.mesh_axes)
        here = "whole" if ours is None else f"`{rule_text(name, ours.mesh_axes)}`"
        message = f"`{there}` is for what is computed; in parameters the axis is {here}"
        help = "an activation that has it: rename the axis there, and give that name the rule"
        faults.append(lost(message, rule.span, help=help))
    for name, ours in found.params.items():
        if found.is_levanter and name not in found.computed and ours.mesh_axes:
            text = rule_text(name, ours.mesh_axes)
            message = f"`{text}` is for parameters; what is computed keeps `{name}` whole"
            help = "activations with it are split here too: `constrain` them by another name"
            faults.append(lost(message, ours.span, help=help))
    return faults


def _find(source: SourceFile, options: Options) -> LevanterMapping | tuple[Diagnostic, ...]:
    values = read_named_values(source)
    if isinstance(values, tuple):
        return values
    root = values.root
    if root is not None and options.name is None:
        trainer = root.get("trainer")
        if trainer is not None:
            return levanter_mapping(trainer, options)
        if _is_mapping(root):
            return _plain(read_mapping(root))
    classes = tuple(_classes_as_used(values))
    return _choose(
        (*classes, *values.named),
        source,
        options.name,
        [node for _, node in classes],
        [axis for axis, _ in options.mesh],
    )


def _classes_as_used(values: NamedValues) -> Iterator[tuple[str, Node]]:
    """Yield classes of rules, with what the only call of one gives in place of its defaults."""
    for name, fields in values.rules:
        last = name.rpartition(".")[2]
        calls = [v for _, v in values.named if v.kind == "call" and v.last_name == last]
        own = calls[0].keywords if len(calls) == 1 and not calls[0].items else ()
        given = {key for key, _ in own}
        kept = [
            pair
            for pair in zip(fields.keys, fields.items, strict=True)
            if pair[0].text not in given
        ]
        pairs = [*kept, *((Node("text", value.span, key), value) for key, value in own)]
        keys, items = tuple(key for key, _ in pairs), tuple(value for _, value in pairs)
        yield name, group("mapping", fields.span, items, keys=keys)


def _choose(
    named: Sequence[tuple[str, Node]],
    source: SourceFile,
    name: str | None,
    classes: Sequence[Node],
    axes: Sequence[str],
) -> LevanterMapping | tuple[Diagnostic, ...]:
    fitting = [(key, value) for key, value in named if _is_mapping(value)]
    if name is not None:
        fitting = [each for each in named if each[0] == name or each[0].endswith(f".{name}")]
        if not fitting:
            return (bad(f"`{source.name}` binds no `{name}`", source.whole, help=_FORM),)
    usual = [each for each in fitting if each[0].rpartition(".")[2] in _NAMES]
    if len(fitting) > 1 and len(usual) == 1:
        fitting = usual
    if name is None and not usual and not any(fitting[:1] and fitting[0][1] is e for e in classes):
        found = likely(fitting, axes)
        if isinstance(found, Diagnostic):
            return (found,)
        fitting = list(found)
    if not fitting:
        return (no_list(source, "axis mapping", _FORM),)
    if len(fitting) > 1:
        listed = ", ".join(f"`{key}`" for key, _ in fitting[:10])
        message = f"`{source.name}` has {len(fitting)} mappings: {listed}"
        return (ambiguous(message, fitting[1][1].span, f"say which: --name {fitting[0][0]}"),)
    plain = _plain(read_mapping(fitting[0][1]))
    is_class = any(fitting[0][1] is each for each in classes)
    return replace(plain, tool=_CLASS) if is_class else plain


def _is_mapping(node: Node) -> bool:
    """Say whether a value maps names to mesh axes."""
    return (
        node.kind == "mapping"
        and bool(node.items)
        and all(key.kind == "text" for key in node.keys)
        and all(
            item.kind in ("text", "nothing")
            or (item.is_list and all(axis.kind == "text" for axis in item.items))
            for item in node.items
        )
    )


def _plain(mapping: AxisMapping | tuple[Diagnostic, ...]) -> LevanterMapping:
    if isinstance(mapping, tuple):
        return LevanterMapping({}, {}, faults=mapping)
    return LevanterMapping(mapping, {}, is_levanter=False, tool="Haliax")


def answer(reading: HaliaxReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return what the mapping gives each array; one without names is whole."""
    mapping = {rule.name: rule.mesh_axes for rule in reading.mapping}
    answers = _of_class if reading.is_class else _answer
    return tuple(answers(mapping, param, mesh) for param in params)


def _of_class(mapping: dict[str | None, tuple[str, ...]], param: Param, mesh: Mesh) -> Answer:
    names = param.logical_axes or (None,) * param.rank
    missing = next((name for name in names if name is not None and name not in mapping), None)
    if missing is not None:
        return NoAnswer(f"the class has no field `{missing}` (AttributeError)")
    return placed(tuple(mapping.get(name, ()) for name in names), param, mesh)


def _answer(mapping: dict[str | None, tuple[str, ...]], param: Param, mesh: Mesh) -> Answer:
    names = param.logical_axes or (None,) * param.rank
    known = [name for name in names if name is not None]
    twice = next((name for name in known if known.count(name) > 1), None)
    if twice is not None:
        return NoAnswer(f"`{twice}` names two dimensions, which Haliax refuses (ValueError)")
    dims: Dims = tuple(mapping.get(name, ()) if name is not None else () for name in names)
    return placed(dims, param, mesh)
