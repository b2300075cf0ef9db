"""Rule lists of Flax: a Python file with a list in it, or a list in JSON or YAML.

Linen and NNX read one list two ways. Linen takes the first rule whose mesh axes are free; NNX makes
a dictionary of the list, so that the last rule of a name counts, in every array alike. Where the
two differ, one has to be chosen: `--semantics linen` or `nnx`.

Written is a Python module with one list of rules for Linen: `nn.logical_axis_rules(RULES)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, SourceFile, parted
from shardspec.foreign import formats
from shardspec.foreign.formats import Dims, ForeignRule, NoAnswer, Options, ambiguous, bad, lost
from shardspec.foreign.named_values import by_name, is_python, likely, no_list, several, ticked
from shardspec.foreign.proof import proof, rules_for
from shardspec.foreign.python_text import Binding, as_mapping, read_python, read_scopes
from shardspec.foreign.values import Node, read_data
from shardspec.ir.spec import AxisRule, Mesh, Param, Params, PartitionSpec
from shardspec.language.reading import Comments

TITLES = {"linen": "Flax Linen", "nnx": "Flax NNX"}
_DEEPEST_ENTRIES = 3
_KEEP = "as Flax does; JAX refuses what does not divide"


@dataclass(frozen=True, slots=True)
class FlaxReading:
    """A rule list and who reads it.

    Attributes:
      semantics: `linen` or `nnx`.
    """

    rules: tuple[ForeignRule, ...]
    semantics: str


def read(sources: Sequence[SourceFile], options: Options) -> formats.Outcome:
    """Return the spec that says what a rule list does."""
    if len(sources) != 1:
        fault = bad(f"one file holds the list, and here are {len(sources)}", sources[1].whole)
        return None, (fault,)
    found = find_list(sources[0], options.name, [axis for axis, _ in options.mesh])
    if not isinstance(found, Binding):
        return None, found
    rules, faults = formats.read_rules(
        found.value, f"`{options.name}`" if options.name else "the list"
    )
    if faults:
        return None, faults
    if options.semantics is None:
        unclear = disagreement(rules, options.params or ())
        if unclear is not None:
            return None, (unclear,)
    document, faults = _document(rules, options.semantics or "linen", options)
    return document, (*_under(found), *faults)


def _under(found: Binding) -> Iterator[Diagnostic]:
    """Yield the finding for a list that a condition decides on."""
    if found.under is not None:
        message = "a condition decides whether this list is set; the spec has it as if it held"
        label = "where this holds"
        yield lost(
            message, found.under, label, help="import the other case by hand, if there is one"
        )


def _document(rules: Sequence[ForeignRule], semantics: str, options: Options) -> formats.Outcome:
    """Return the spec that gives the answers of one reading of the rules."""
    reading = FlaxReading(tuple(rules), semantics)
    tool = TITLES[semantics]
    kept, faults = _kept(rules, tool)
    lines = map(formats.rule_line, kept) if semantics == "linen" else _nnx_lines(kept, options)
    data, comments = formats.rules_document(lines, _KEEP, is_linen=semantics == "linen")
    data["doc"] = f"Rules as {tool} reads them"
    comments["lints",] = Comments(trailing=formats.MANY_MODELS)
    is_linen = semantics == "linen"
    return formats.Imported(data, comments, reading, tool, leaves_whole=is_linen), faults


def answer(reading: FlaxReading, params: Params, mesh: Mesh) -> tuple[formats.Answer, ...]:
    """Return what Flax gives each array; one without names is whole."""
    axes = formats.linen_axes if reading.semantics == "linen" else formats.nnx_axes
    return tuple(
        formats.placed(axes(each.logical_axes or (), reading.rules), each, mesh) for each in params
    )


def find_list(
    source: SourceFile, name: str | None, axes: Sequence[str] = ()
) -> Binding | tuple[Diagnostic, ...]:
    """Return the list of a file that is meant: the one that is named, or the one there is.

    In Python, lists at the top of the module come first; without any, those in functions and
    classes are looked at, and the entries of mappings, such as a `ConfigDict`.
    """
    if not is_python(source):
        found = read_data(source)
        if not isinstance(found, Node):
            return found
        if found.kind != "mapping":
            return Binding("", found, found.span)
        listed = [Binding(key.text, value, key.span) for key, value in found.pairs]
        return _choose(listed, name, source, [each for each in listed if _is_rules(each.value)])
    bindings = read_scopes(source)
    if isinstance(bindings, Diagnostic):
        return (bindings,)
    opened = [each._replace(value=_as_list(each.value)) for each in _with_entries(bindings)]
    top = read_python(source)
    own = set() if isinstance(top, Diagnostic) else {each.name for each in top}
    at_top = [each for each in opened if each.name in own and _is_rules(each.value)]
    if at_top or name is not None:
        return _choose(opened, name, source, at_top)
    inside = {each.name: each for each in opened if _are_names(each.value)}
    kept = likely([(each.name, each.value) for each in inside.values()], axes)
    if isinstance(kept, Diagnostic):
        return (kept,)
    return _choose(opened, name, source, [inside[key] for key, _ in kept])


def _with_entries(bindings: Iterable[Binding], depth: int = 0) -> Iterator[Binding]:
    """Yield bindings, and the entries of mappings among them, by dotted names."""
    for each in bindings:
        yield each
        value = as_mapping(each.value)
        if value.kind == "mapping" and depth < _DEEPEST_ENTRIES:
            yield from _with_entries(
                (
                    Binding(f"{each.name}.{key.text}", item, key.span, each.under)
                    for key, item in value.pairs
                    if key.kind == "text"
                ),
                depth + 1,
            )


def _choose(
    known: Sequence[Binding], name: str | None, source: SourceFile, lists: Sequence[Binding]
) -> Binding | tuple[Diagnostic, ...]:
    names = [each.name for each in lists]
    if name is not None:
        help = f"lists of rules here: {ticked(names)}" if names else None
        found = by_name(((each.name, each) for each in known), name, source, help)
        return (found,) if isinstance(found, Diagnostic) else found
    if len({each.value for each in lists}) == 1:
        return lists[0]
    if lists:
        return (several(source, names, "lists of rules", lists[1].span),)
    form = "a list of pairs: RULES = [('embed', 'data'), ('heads', None)]"
    return (no_list(source, "list of rules that is written out", form),)


def _as_list(node: Node) -> Node:
    """Return the list in `tuple([...])`, `list(...)`, `freeze(...)`: calls that keep the items."""
    while node.kind == "call" and len(node.items) == 1 and node.last_name in ("tuple", "list"):
        node = node.items[0]
    return node


def _is_rules(node: Node) -> bool:
    """Say whether a value looks like a list of rules: pairs, or what should be pairs."""
    return (
        node.is_list
        and bool(node.items)
        and all(
            item.is_list and len(item.items) >= 2 and item.items[0].kind in ("text", "nothing")
            for item in node.items
        )
    )


def _are_names(node: Node) -> bool:
    """Say whether a value is pairs of a name and mesh axes: no regexes, no sizes."""
    return _is_rules(node) and all(
        len(item.items) == 2
        and (item.items[0].kind == "nothing" or formats.is_name(item.items[0].text))
        and _may_be_axes(item.items[1])
        for item in node.items
    )


def _may_be_axes(node: Node) -> bool:
    if node.is_list:
        return all(item.kind == "text" for item in node.items)
    return node.kind in ("nothing", "name") or (node.kind == "text" and formats.is_name(node.text))


def disagreement(rules: Sequence[ForeignRule], params: Params) -> Diagnostic | None:
    """Return the finding for rules that Linen and NNX read to different answers."""
    seen: dict[str | None, ForeignRule] = {}
    for rule in rules:
        first = seen.setdefault(rule.name, rule)
        if (first.mesh_axes, first.is_free) != (rule.mesh_axes, rule.is_free):
            others = f"Linen takes `{_text(first)}` where it can, NNX always `{_text(rule)}`"
            return ambiguous(
                f"`{rule.name}` has several rules: {others}",
                rule.span,
                _CHOOSE,
                "NNX takes this one" if rules[-1] is rule else "",
            )
    for param in params:
        names = param.logical_axes or ()
        linen, nnx = formats.linen_axes(names, rules), formats.nnx_axes(names, rules)
        if linen != nnx:
            return _disagreement_on(param, rules, linen, nnx)
    return None


_CHOOSE = "say who reads the list: --semantics linen or --semantics nnx"


def _disagreement_on(
    param: Param, rules: Sequence[ForeignRule], linen: Dims | NoAnswer, nnx: Dims | NoAnswer
) -> Diagnostic:
    """Return the finding for an array, at a rule that makes the readings differ on it."""
    names = param.logical_axes or ()
    at = next((rule for rule in reversed(rules) if _is_guilty(rule, names, linen, nnx)), None)
    shown = " ".join(name or "_" for name in names)
    message = f"`{param.path}` ({shown}): Linen gives {_shown(linen)}, NNX {_shown(nnx)}"
    return ambiguous(message, at.span if at else None, _CHOOSE)


def _is_guilty(
    rule: ForeignRule, names: Sequence[str | None], linen: Dims | NoAnswer, nnx: Dims | NoAnswer
) -> bool:
    if rule.name not in names:
        return False
    if isinstance(linen, NoAnswer) or isinstance(nnx, NoAnswer):
        return True
    dim = list(names).index(rule.name)
    return linen[dim] != nnx[dim]


def _shown(dims: Dims | NoAnswer) -> str:
    return dims.reason if isinstance(dims, NoAnswer) else str(PartitionSpec(dims))


def _text(rule: ForeignRule) -> str:
    return "UNCONSTRAINED" if rule.is_free else formats.rule_text(str(rule.name), rule.mesh_axes)


def _kept(
    rules: Sequence[ForeignRule], tool: str
) -> tuple[tuple[ForeignRule, ...], tuple[Diagnostic, ...]]:
    kept, faults = parted(formats.writable(rules, tool))
    free = (
        lost(
            f"`{rule.name}` is UNCONSTRAINED, which leaves it to the compiler; a spec decides",
            rule.span,
            help="it stands as `none`; give it mesh axes, or drop the rule",
        )
        for rule in kept
        if rule.is_free
    )
    return kept, (*faults, *free)


def _nnx_lines(rules: Sequence[ForeignRule], options: Options) -> Iterator[formats.RuleLine]:
    """Yield the last rule of each name; and rules for names that NNX takes for mesh axes."""
    last = {rule.name: rule for rule in rules}
    counts = Counter(rule.name for rule in rules)
    for rule in last.values():
        beaten = [
            formats.place(each.span) for each in rules if each.name == rule.name and each.span
        ]
        more = f"the last of {counts[rule.name]}, after {beaten[-2]}" if len(beaten) > 1 else ""
        yield formats.rule_line(rule, more)
    asked = {name for param in options.params or () for name in param.logical_axes or ()}
    for axis, _ in options.mesh:
        if axis in asked and axis not in last:
            why = "no rule: NNX takes the name for a mesh axis"
            yield formats.rule_text(axis, (axis,)), Comments(trailing=why)


_TOOL = "a rule list of Flax"


def write(request: formats.Request) -> formats.Written:
    """Return the rules of a spec in their flat order."""
    reduced = [f"# Reduced to {request.target_title}."] if request.is_resolved else []
    about = "The first rule of a name whose mesh axes are free wins. NNX reads a list otherwise."
    body = (*reduced, "RULES = (", *rule_lines(rules_for(request)), ")")
    text = formats.python_module(request, "Logical axis rules for Flax Linen", [about], body)
    found = [*formats.losses(request, _TOOL), *formats.unproved(request, _TOOL)]
    if not request.is_resolved:
        found += formats.absent(request, _TOOL)
    return text, (*found, *proof(request, text, "flax", Options(name="RULES", semantics="linen")))


def rule_lines(rules: Iterable[AxisRule]) -> Iterator[str]:
    """Return the entries of a list of rules, each with where it came from."""
    return (f"    {rule_literal(rule)},{formats.origin(rule.span)}" for rule in rules)


def rule_literal(rule: AxisRule) -> str:
    """Return a rule as Python and gin spell it.

    >>> rule_literal(AxisRule("batch", ("replica", "data")))
    '("batch", ("replica", "data"))'
    """
    return f"({quoted(rule.logical_axis)}, {axes_literal(rule.mesh_axes)})"


def quoted(name: str) -> str:
    """Return a name as a literal of Python; arrays may bring names that no spec could spell."""
    is_plain = name.isprintable() and name.isascii() and not set(name) & set('"\\')
    return f'"{name}"' if is_plain else ascii(name)


def axes_literal(mesh_axes: tuple[str, ...]) -> str:
    """Return mesh axes as a PartitionSpec takes them: `None`, `"data"`, `("replica", "data")`."""
    if not mesh_axes:
        return "None"
    names = ", ".join(f'"{axis}"' for axis in mesh_axes)
    return names if len(mesh_axes) == 1 else f"({names})"
