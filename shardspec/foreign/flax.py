"""Rule lists of Flax: a Python file with a list in it, or a list in JSON or YAML.

Linen and NNX read one list two ways. Linen takes the first rule whose mesh axes are free; NNX makes
a dictionary of the list, so that the last rule of a name counts, in every array alike. Where the
two differ, one has to be chosen: `--semantics linen` or `nnx`.

Written is a Python module with one list of rules for Linen: `nn.logical_axis_rules(RULES)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, parted
from shardspec.foreign import formats, python_text
from shardspec.foreign.formats import Dims, ForeignRule, NoAnswer, Options, ambiguous, bad, lost
from shardspec.foreign.proof import proof, rules_for
from shardspec.foreign.python_text import Binding, by_name, likely, no_list, several, ticked
from shardspec.foreign.values import Node
from shardspec.ir.spec import AxisRule, Mesh, Params, PartitionSpec
from shardspec.language.reading import Comments

TITLES = {"linen": "Flax Linen", "nnx": "Flax NNX"}
_DEEPEST_ENTRIES = 3
_KEEP = "as Flax does; JAX refuses what does not divide"


class FlaxReading(NamedTuple):
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
    what = f"`{options.name}`" if options.name else "the list"
    rules, faults = formats.read_rules(found.value, what)
    if faults:
        return None, faults
    if options.semantics is None:
        unclear = disagreement(rules, options.params or ())
        if unclear is not None:
            return None, (unclear,)
    document, faults = _document(rules, options.semantics or "linen", options)
    if found.under is not None:
        message = "a condition decides whether this list is set; the spec has it as if it held"
        help = "import the other case by hand, if there is one"
        faults = (lost(message, found.under, "where this holds", help), *faults)
    return document, faults


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
    values = python_text.read_named_values(source)
    if isinstance(values, tuple):
        return values
    root, listed = values.root, values.bindings
    if root is not None and root.kind != "mapping":
        return Binding("", root, root.span)
    if root is not None:
        return _choose(listed, name, source, [each for each in listed if _is_rules(each.value)])
    opened = [each._replace(value=_as_list(each.value)) for each in _with_entries(listed)]
    top = python_text.read_python(source)
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
        value = python_text.as_mapping(each.value)
        if value.kind == "mapping" and depth < _DEEPEST_ENTRIES:
            for key, item in (pair for pair in value.pairs if pair[0].kind == "text"):
                inner = Binding(f"{each.name}.{key.text}", item, key.span, each.under)
                yield from _with_entries([inner], depth + 1)


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
    lists = [item.items for item in node.items if item.is_list and len(item.items) >= 2]
    is_full = node.is_list and 0 < len(node.items) == len(lists)
    return is_full and all(items[0].kind in ("text", "nothing") for items in lists)


def _are_names(node: Node) -> bool:
    """Say whether a value is pairs of a name and mesh axes: no regexes, no sizes."""
    if not _is_rules(node) or any(len(item.items) != 2 for item in node.items):
        return False
    keys, values = zip(*(item.items for item in node.items), strict=True)
    are_keys = all(key.kind == "nothing" or formats.is_name(key.text) for key in keys)
    return are_keys and all(map(_may_be_axes, values))


def _may_be_axes(node: Node) -> bool:
    if node.kind == "text":
        return formats.is_name(node.text)
    return node.kind == "name" or node.names is not None


def disagreement(rules: Sequence[ForeignRule], params: Params) -> Diagnostic | None:
    """Return the finding for rules that Linen and NNX read to different answers."""
    seen: dict[str | None, ForeignRule] = {}
    for rule in rules:
        first = seen.setdefault(rule.name, rule)
        if (first.mesh_axes, first.is_free) != (rule.mesh_axes, rule.is_free):
            others = f"Linen takes `{_text(first)}` where it can, NNX always `{_text(rule)}`"
            label = "NNX takes this one" if rules[-1] is rule else ""
            message = f"`{rule.name}` has several rules: {others}"
            return ambiguous(message, rule.span, _CHOOSE, label)
    for param in params:
        names = param.logical_axes or ()
        linen, nnx = formats.linen_axes(names, rules), formats.nnx_axes(names, rules)
        if linen == nnx:
            continue
        # It points at a rule that makes the readings differ on this array.
        guilty: set[str | None] = set(names)
        if not isinstance(linen, NoAnswer) and not isinstance(nnx, NoAnswer):
            both = zip(names, linen, nnx, strict=True)
            guilty = {name for name, ours, theirs in both if ours != theirs}
        at = next((rule for rule in reversed(rules) if rule.name in guilty), None)
        shown = " ".join(name or "_" for name in names)
        message = f"`{param.path}` ({shown}): Linen gives {_shown(linen)}, NNX {_shown(nnx)}"
        return ambiguous(message, at.span if at else None, _CHOOSE)
    return None


_CHOOSE = "say who reads the list: --semantics linen or --semantics nnx"


def _shown(dims: Dims | NoAnswer) -> str:
    return dims.reason if isinstance(dims, NoAnswer) else str(PartitionSpec(dims))


def _text(rule: ForeignRule) -> str:
    return "UNCONSTRAINED" if rule.is_free else formats.rule_text(str(rule.name), rule.mesh_axes)


def _kept(
    rules: Sequence[ForeignRule], tool: str
) -> tuple[tuple[ForeignRule, ...], tuple[Diagnostic, ...]]:
    kept, faults = parted(formats.writable(rules, tool))
    help = "it stands as `none`; give it mesh axes, or drop the rule"
    for rule in (each for each in kept if each.is_free):
        why = "is UNCONSTRAINED, which leaves it to the compiler; a spec decides"
        faults += (lost(f"`{rule.name}` {why}", rule.span, help=help),)
    return kept, faults


def _nnx_lines(rules: Sequence[ForeignRule], options: Options) -> Iterator[formats.RuleLine]:
    """Yield the last rule of each name; and rules for names that NNX takes for mesh axes."""
    last = {rule.name: rule for rule in rules}
    counts = Counter(rule.name for rule in rules)
    for rule in last.values():
        spans = [each.span for each in rules if each.name == rule.name]
        beaten = [formats.place(span) for span in spans if span]
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


def tuple_literal(texts: Iterable[str]) -> str:
    """Return a tuple of literals."""
    items = tuple(texts)
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def axes_literal(mesh_axes: tuple[str, ...]) -> str:
    """Return mesh axes as a PartitionSpec takes them: `None`, `"data"`, `("replica", "data")`."""
    if not mesh_axes:
        return "None"
    names = ", ".join(f'"{axis}"' for axis in mesh_axes)
    return names if len(mesh_axes) == 1 else f"({names})"
