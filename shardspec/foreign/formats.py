"""What a format of another tool is: what its reader gives back, what its writer is asked for.

Every format is one module with some of three functions:

    read(sources, options) -> (Imported | None, diagnostics)
    answer(reading, params, mesh) -> one `Answer` per array
    write(request) -> (text | None, diagnostics)

`read` makes a spec of the files; `answer` computes what the other tool itself would give each
array, by that tool's own semantics and not by way of our resolver. The two together are the proof
of an import. Files are parsed, never run.

Many tools have Flax's list, pairs of logical axis and mesh axes. `linen_axes` and `nnx_axes` are
the two readings of it, written down from what Flax does;
they share nothing with our own resolver, which they are the witnesses of.
Source: flax 0.12.8, `flax.linen.spmd.logical_to_mesh_axes`, `flax.core.spmd.apply_rules`.

A format of rules (Flax, T5X, MaxText) says how arrays that are not made yet are placed; a format of
answers (regexes, a Python module) says where the arrays of one plan lie. What a format cannot say
is left out and said. Where it would give an array another layout than the plan does, that is an
error.

`losses` is what a spec says that another tool's file has no place for. `by_name` is a plan as a
dictionary from logical axis to mesh axes, where it is one: NNX and Haliax know no contest: a name
has the same mesh axes in every array. A plan in which contests are decided array by array is no
dictionary; the names that differ are found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from os.path import basename
from typing import Any, NamedTuple, cast

from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span, codes, parted, point
from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.words import by_key, counted, is_slip
from shardspec.foreign.values import Node
from shardspec.ir import spec as ir
from shardspec.ir.plan import Origin, ShardingPlan
from shardspec.ir.spec import Hardware, PartitionSpec, Spec, Target
from shardspec.language.formatting import formatted
from shardspec.language.reading import Comments, Data, Route
from shardspec.language.sections import SECTIONS
from shardspec.language.writing import IMPORTED
from shardspec.language.yaml_text.printer import print_yaml
from shardspec.naming.patterns import patterns_for
from shardspec.pipeline import load_text


def machine_named(hardware: str) -> Hardware | tuple[Diagnostic, ...]:
    """Return the machine of `tpu v4 4x4x8`, or why there is none such.

    >>> str(machine_named("8 cpu"))
    '8 cpu'
    """
    text = print_yaml({"hardware": hardware, "mesh": {"data": "rest"}})
    spec, faults = load_text(text, "--hardware")
    found = spec.targets[0].hardware if spec and spec.targets else None
    return faults if found is None else found


def target_asked(options: Options) -> Target | tuple[Diagnostic, ...] | None:
    """Return the target of `--mesh` and `--hardware`, or why there is none; None where none is."""
    if not options.mesh and options.hardware is None:
        return None
    mesh: Data = _mesh(None, options) if options.mesh else {"data": "rest"}
    machine = {} if options.hardware is None else {"hardware": options.hardware}
    spec, faults = load_text(print_yaml({**machine, "mesh": mesh}), "the command line")
    return spec.targets[0] if spec is not None and spec.targets and not faults else faults


def machine_asked(options: Options) -> Hardware | None:
    """Return the machine of `--hardware`; None where none is said."""
    found = None if options.hardware is None else machine_named(options.hardware)
    return found if isinstance(found, Hardware) else None


_NAME = re.compile(r"(?!(?:none|_)$)[^\W\d]\w*(?:[-.]\w+)*")


class Options(NamedTuple):
    """What the command line says beside the files; a format says which of these it takes.

    Attributes:
      name: which of several lists, or which gin scope, is meant.
      names: all that are meant, where a format takes several; the first of them is `name`.
      semantics: whose reading: `linen` or `nnx`.
      merge: how MaxText's files are joined: `maxtext` or `in-place`.
      match: how a regex is meant: `search` or `fullmatch`.
      separator: what joins the parts of a path in the other tool.
      strict: whether the other tool refuses arrays that nothing matches.
      include: folders where included files are looked for.
      mesh: axis and size as the language spells it; beats the mesh of the files.
      hardware: beats that of the files.
      params: the arrays of `--against`; None without it.
    """

    name: str | None = None
    names: tuple[str, ...] = ()
    semantics: str | None = None
    merge: str | None = None
    match: str | None = None
    separator: str | None = None
    strict: bool | None = None
    include: tuple[str, ...] = ()
    mesh: tuple[tuple[str, str], ...] = ()
    hardware: str | None = None
    params: ir.Params | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A document made of foreign rules.

    Attributes:
      data: the document as plain data.
      comments: by route of the entry; where each line came from.
      reading: the rules as the other tool reads them, frozen, for `answer`.
      tool: whose reading it is, as messages call it: `Flax Linen`.
      of_phases: the readings that the phases of the document are held against, by name.
      leaves_whole: whether the tool replicates a logical axis that no rule is for.
    """

    data: Mapping[str, Data]
    comments: Mapping[Route, Comments] = field(default_factory=dict)
    reading: Any = None
    tool: str = ""
    of_phases: Mapping[str, Any] = field(default_factory=dict)
    leaves_whole: bool = False


class NoAnswer(NamedTuple):
    """Why the other tool has no layout for an array: it raises, or leaves it to the compiler.

    Attributes:
      refuses: whether it raises; False where it has a layout that no PartitionSpec can say.
      help: what to change in its file.
    """

    reason: str
    refuses: bool = True
    help: str = ""


class NotRead(NamedTuple):
    """Why nothing is known of what the other tool does to an array.

    Attributes:
      what: what was not read, as far as it has a name.
      reason: why, as a sentence.
      help: how it would be read.
    """

    what: str
    reason: str
    help: str


Answer = PartitionSpec | NoAnswer | NotRead
Outcome = tuple[Imported | None, tuple[Diagnostic, ...]]


def bad(message: str, span: Span | None, label: str = "", help: str | None = None) -> Diagnostic:
    """Return the finding for a file that its own tool would not read."""
    return point(codes.BAD_FOREIGN_FILE, one_line(message), span, label, help=help)


def lost(message: str, span: Span | None, label: str = "", help: str | None = None) -> Diagnostic:
    """Return the finding for what cannot be carried over."""
    return point(codes.NOT_CARRIED_OVER, one_line(message), span, label, help=help)


#: The way out where the lines of a step cannot be told from a configuration.
TRACE_INSTEAD = "trace the code instead: `shardspec search SPEC --step MODULE:FUNCTION`"


def no_step(why: str) -> Diagnostic:
    """Return the finding for a program that has no `step:`."""
    return lost(f"no `step:` is written: {why}", None, help=TRACE_INSTEAD)


def ambiguous(message: str, span: Span | None, help: str, label: str = "") -> Diagnostic:
    """Return the finding for a file with two readings; `help` says how to choose one."""
    return point(codes.AMBIGUOUS_READING, one_line(message), span, label, help=help)


def one_line(message: str) -> str:
    """Return a message that quotes foreign text as one line."""
    return " ".join(message.splitlines())


def came_from(span: Span, more: str = "") -> Comments:
    """Return the comment that says where an entry came from: `# from my.gin:12`.

    Args:
      more: what else there is to say, in the words of a file that may hold anything.
    """
    return Comments(trailing=f"from {place(span)}{f': {printable(more)}' if more else ''}")


def place(span: Span) -> str:
    """Return `my.gin:12`."""
    return f"{printable(basename(span.source.name))}:{span.line}"


def is_name(text: str) -> bool:
    """Say whether the language can spell an axis so.

    >>> is_name("embed"), is_name("joined-kv"), is_name("none"), is_name("a b")
    (True, True, False, False)
    """
    return _NAME.fullmatch(text) is not None


def rule_text(logical_axis: str, mesh_axes: tuple[str, ...]) -> str:
    """Return `embed -> (data, model)`."""
    return f"{logical_axis} -> {ir.target_text(mesh_axes)}"


def placed(dims: Dims | NoAnswer | NotRead, param: ir.Param, mesh: ir.Mesh) -> Answer:
    """Return what JAX makes of a PartitionSpec for an array: itself at full rank, or a refusal.

    Sizes that do not divide are no refusal here: our plan keeps the same partition, and a check
    of the spec reports it.
    """
    if isinstance(dims, NoAnswer | NotRead):
        return dims
    partition = PartitionSpec(dims)
    if len(dims) > param.rank:
        reason = f"{partition} has {len(dims)} entries for {param.rank} dimensions"
        return NoAnswer(reason, help=f"write {param.rank} in the file")
    used = partition.mesh_axes
    unknown = next((axis for axis in used if axis not in mesh.sizes), None)
    if unknown is not None:
        axes = ", ".join(mesh.names)
        reason = f"`{unknown}` of {partition} is not found in the mesh ({axes})"
        return NoAnswer(reason, help=f"add `{unknown}` to --mesh, or change the file")
    twice = next((axis for axis in used if used.count(axis) > 1), None)
    if twice is not None:
        reason = f"{partition} has `{twice}` twice (DuplicateSpecError)"
        help = f"in the file, write another mesh axis, or None, for one dimension with `{twice}`"
        return NoAnswer(reason, help=help)
    return PartitionSpec(dims + ((),) * (param.rank - len(dims)))


class MeshPart(NamedTuple):
    """The mesh of foreign files: sections of a document, with their comments and findings."""

    data: Mapping[str, Data] = {}
    comments: Mapping[Route, Comments] = {}
    faults: tuple[Diagnostic, ...] = ()


NO_MESH = MeshPart()
SAY_MACHINE = (
    "say the machine, --hardware 'tpu v4 4x4x4', or the mesh itself, --mesh 'data=8 model=8'"
)


def mesh_part(found: MeshPart | Diagnostic) -> MeshPart:
    """Return a mesh, or what is said in place of one."""
    return MeshPart(faults=(found,)) if isinstance(found, Diagnostic) else found


def across_slices(inside: int, slices: int) -> Data:
    """Return the size of a mesh axis of so many devices inside each of some slices."""
    return f"{slices} @ dcn" if slices > 1 and inside == 1 else inside * slices


MeshAxes = tuple[str, ...]
Dims = tuple[MeshAxes, ...]

_FORM = 'a rule is a pair: ("embed", "data"), ("embed", ("data", "model")) or ("embed", None)'


@dataclass(frozen=True, slots=True)
class ForeignRule:
    """One rule of a list.

    Attributes:
      name: the logical axis; None for a rule whose key is None, which never fires.
      is_free: whether its value is UNCONSTRAINED: the compiler chooses.
    """

    name: str | None
    mesh_axes: MeshAxes
    is_free: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)


def read_rules(node: Node, what: str) -> tuple[tuple[ForeignRule, ...], tuple[Diagnostic, ...]]:
    """Return the rules of a list, and what in it is no rule.

    Args:
      what: what the list is called, for messages: "`RULES`".
    """
    if not node.is_list:
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return (), (bad(f"{what} is no list of rules: {why}", node.span, help=_FORM),)
    return parted(map(_rule, node.items))


def _rule(node: Node) -> ForeignRule | Diagnostic:
    if node.kind == "unreadable":
        return bad(f"a rule cannot be read: {node.text}", node.span, help=_FORM)
    if not node.is_list or len(node.items) != 2:
        return bad(f"a rule is a pair, and this is {node.described()}", node.span, help=_FORM)
    key, value = node.items
    if key.kind not in ("text", "nothing"):
        message = f"a rule starts with a logical axis, and this is {key.described()}"
        return bad(message, key.span, help=_FORM)
    name = key.text if key.kind == "text" else None
    if value.kind == "name" and value.last_name in ("UNCONSTRAINED", "_UNCONSTRAINED_PARTITION"):
        return ForeignRule(name, (), True, node.span)
    axes = _mesh_axes(value)
    return axes if isinstance(axes, Diagnostic) else ForeignRule(name, axes, span=node.span)


def _mesh_axes(value: Node) -> MeshAxes | Diagnostic:
    """Return the mesh axes of a rule's right side; an empty text is none, as in JAX."""
    names = value.names
    if names is not None and (all(names) or value.kind == "text"):
        return tuple(filter(None, names))
    wrong = next((item for item in value.items if item.kind != "text"), value)
    why = f": {wrong.text}" if wrong.kind == "name" else ""
    message = f"a mesh axis is a name, and this is {wrong.described()}{why}"
    return bad(message, wrong.span, help=_FORM)


def writable(rules: Iterable[ForeignRule], tool: str) -> Iterator[ForeignRule | Diagnostic]:
    """Yield the rules that the language can say, and why each other one is left out."""
    for rule in rules:
        reason = _unwritable(rule)
        yield rule if reason is None else lost(f"{reason} in {tool}", rule.span, help=_WAY_OUT)


_WAY_OUT = "the rule is left out; rename the axis over there first if arrays have it"


def _unwritable(rule: ForeignRule) -> str | None:
    if rule.name is None:
        return "a rule for None is no rule for any name, and never fires"
    if not is_name(rule.name):
        return f"`{rule.name}` is a logical axis that cannot be a name in a spec, though it is"
    strange = next((axis for axis in rule.mesh_axes if not is_name(axis)), None)
    if strange is not None:
        return f"`{strange}` is a mesh axis that cannot be a name in a spec, though it is"
    if len(set(rule.mesh_axes)) < len(rule.mesh_axes):
        text = rule_text(rule.name, rule.mesh_axes)
        return f"`{text}` has a mesh axis twice, which JAX refuses later, though it is a rule"
    return None


MANY_MODELS = "a list may serve activations and other models too"
AS_JAX = "as JAX does, which refuses what does not divide"

RuleLine = tuple[str, Comments]


def rule_line(rule: ForeignRule, more: str = "") -> RuleLine:
    """Return a rule as a spec spells it, with the comment that says where it came from."""
    comment = Comments(trailing=more) if rule.span is None else came_from(rule.span, more)
    return rule_text(str(rule.name), rule.mesh_axes), comment


def rules_document(
    lines: Iterable[RuleLine], keeps: str, part: MeshPart = NO_MESH, *, is_linen: bool = False
) -> tuple[dict[str, Data], dict[Route, Comments]]:
    """Return a document of rules, with what all lists of rules have in common.

    Args:
      keeps: who gives an array a partition that does not divide it.
      part: the mesh that comes with the rules.
      is_linen: whether nothing but Linen reads the rules.
    """
    found = tuple(lines)
    comments: dict[Route, Comments] = {**part.comments, ("policy",): Comments(trailing=keeps)}
    comments |= {("rules", index): comment for index, (_, comment) in enumerate(found)}
    data: dict[str, Data] = {**part.data, "rules": [text for text, _ in found]}
    data["policy"] = {"indivisible": "keep"}
    data["lints"] = lints_of_rules(found, is_linen=is_linen)
    return data, comments


def lints_of_rules(lines: Iterable[RuleLine], *, is_linen: bool) -> dict[str, Data]:
    """Return the levels for a list of rules, which may serve other models and have fallbacks."""
    names = [text.partition(" -> ")[0] for text, _ in lines]
    has_fallbacks = is_linen and len(set(names)) < len(names)
    allowed = ("axis-without-array", *(("nnx-differs",) if has_fallbacks else ()))
    return dict.fromkeys(allowed, "allow")


def linen_axes(names: Sequence[str | None], rules: Sequence[ForeignRule]) -> Dims | NoAnswer:
    """Return what Linen gives an array: the first rule of a name whose mesh axes are all free.

    Invariants:
      same: equal to `flax.linen.logical_to_mesh_axes`, or both refuse.
    """
    counts = Counter(name for name in names if name is not None)
    twice = tuple(name for name, count in counts.items() if count > 1)
    if twice:
        listed = ", ".join(map(repr, twice))
        reason = f"dimensions ({listed}) occur more than once in array names (ValueError)"
        return NoAnswer(reason, help="give each dimension of the array a name of its own")
    found: dict[str, ForeignRule] = {}
    used: set[str] = set()
    for rule in rules:
        name = rule.name
        if name is None or name not in counts or name in found:
            continue
        if used.isdisjoint(rule.mesh_axes):
            found[name] = rule
            used.update(rule.mesh_axes)
    chosen = [found.get(name) if name is not None else None for name in names]
    return _dims(chosen)


def nnx_axes(names: Sequence[str | None], rules: Sequence[ForeignRule]) -> Dims | NoAnswer:
    """Return what NNX gives an array: the last rule of each name, or the name as a mesh axis.

    Invariants:
      same: equal to `nnx.get_partition_spec` under the same rules.
    """
    last = {rule.name: rule for rule in rules}
    chosen = [
        None if name is None else last.get(name) or ForeignRule(name, (name,)) for name in names
    ]
    return _dims(chosen)


def _dims(chosen: Sequence[ForeignRule | None]) -> Dims | NoAnswer:
    for index in (index for index, rule in enumerate(chosen) if rule and rule.is_free):
        reason = f"UNCONSTRAINED leaves dim {index} to the compiler"
        return NoAnswer(reason, help="in the file, write a mesh axis or None for it")
    return tuple(rule.mesh_axes if rule else () for rule in chosen)


def spec_text(
    imported: Imported, options: Options, sources: Sequence[SourceFile], name: str
) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """Return the text of the spec, or None and why it would not load.

    Args:
      name: what messages call the spec.

    Invariants:
      loads: reading the text gives a spec without faults.
      stable: `shardspec fmt` leaves the text as it is.
    """
    data = _with_machine(imported.data, options)
    comments = _with_header(imported.comments, data, sources)
    text, faults = formatted(SourceFile(name, print_yaml(data, comments)), "yaml")
    if text is None:
        return None, faults
    spec, faults = load_text(text, name)
    return (None, faults) if spec is None or faults else (text, ())


def unruled(imported: Imported, plan: ShardingPlan) -> tuple[str, ...]:
    """Return the logical axes of arrays that no rule is for, where that is no mistake.

    It is one where an axis is spelt much like that of a rule which nothing has, or where large
    arrays are whole for want of a rule: these stay findings.
    """
    if not imported.leaves_whole:
        return ()
    ruled = {rule.logical_axis for rule in plan.spec.axis_rules}
    ruled |= {axis.name for axis in plan.spec.logical_axes}
    pairs = ((name, each) for each in plan.arrays for name in dict.fromkeys(each.logical_axes))
    arrays = by_key((n, each) for n, each in pairs if n and n not in ruled and is_name(n))
    unused = ruled - {name for each in plan.arrays for name in each.logical_axes if name}
    held = sum(each.per_device_bytes for each in plan.arrays)
    return tuple(
        name
        for name, some in arrays.items()
        if not any(is_slip(name, other) for other in unused)
        and not is_large(sum(each.param.bytes for each in some if each.is_replicated), held)
    )


def with_whole(imported: Imported, names: Iterable[str]) -> Imported:
    """Return a document with rules that say what the tool does without one."""
    rules = [*cast(list[Data], imported.data.get("rules", []))]
    comments = dict(imported.comments)
    why = f"arrays have it, and no rule: {imported.tool} leaves it whole"
    for name in names:
        line, comment = rule_line(ForeignRule(name, ()), why)
        comments["rules", len(rules)] = comment
        rules.append(line)
    return replace(imported, data={**imported.data, "rules": rules}, comments=comments)


def without_step(imported: Imported) -> Imported:
    """Return a document that states no step, and no activations but those of the tool's files."""
    data = {key: value for key, value in imported.data.items() if key != "step"}
    values = cast(dict[str, Data], data.pop("activations", {}))
    said = {
        name: dims for name, dims in values.items() if ("activations", name) in imported.comments
    }
    if said:
        data["activations"] = said
    comments = {at: each for at, each in imported.comments.items() if at[0] != "step"}
    return replace(imported, data=data, comments=comments)


def with_named(imported: Imported, options: Options, whose: str) -> tuple[Imported, Options]:
    """Return a document that names arrays whose names are in a collection beside them.

    A step that takes the arrays alone, as one of T5X does, then has their names, too. The arrays
    are without them in the options that come back: the document has to name them.

    Args:
      whose: what the arrays are called, for a comment.
    """
    wanted = {
        each.path: each.logical_axes or () for each in options.params or () if _is_apart(each)
    }
    if not wanted or "params" in imported.data:
        return imported, options
    params = options.params or ()
    found = patterns_for(wanted, [each.path for each in params if each.path not in wanted])
    lines: dict[str, Data] = {
        group.pattern: " ".join(name or "_" for name in names) for group, names in found
    }
    why = Comments(trailing=printable(f"as the names beside the arrays of {whose} say"))
    bare = (replace(each, logical_axes=None) if each.path in wanted else each for each in params)
    named = replace(
        imported,
        data={**imported.data, "params": lines},
        comments={**imported.comments, ("params",): why},
    )
    return named, options._replace(params=tuple(bare))


def _is_apart(param: ir.Param) -> bool:
    """Say whether an array has names beside it that a spec can spell."""
    names = [name for name in param.logical_axes or () if name is not None]
    is_plain = len(set(names)) == len(names) and all(map(is_name, names))
    return param.is_named_beside and param.rank > 0 and bool(names) and is_plain


def _with_machine(data: Mapping[str, Data], options: Options) -> dict[str, Data]:
    """Return the data with the mesh and hardware that were asked for, sections in order."""
    whole: dict[str, Data] = {"shardspec": 1, **data}
    if options.mesh:
        whole.pop("targets", None)
        if options.hardware is None:
            whole.pop("hardware", None)
        whole["mesh"] = _mesh(whole.get("mesh"), options)
    if options.hardware is not None and "mesh" in whole:
        whole["hardware"] = options.hardware
    known = {key: rank for rank, key in enumerate(SECTIONS)}
    return dict(sorted(whole.items(), key=lambda entry: known.get(entry[0], len(known))))


def _mesh(own: Data, options: Options) -> Data:
    """Return the sizes that were asked for, in the mesh of the files where that has the axes."""
    asked: dict[str, Data] = {axis: _size(text) for axis, text in options.mesh}
    return {**own, **asked} if isinstance(own, dict) and own.keys() >= asked.keys() else asked


def _size(text: str) -> Data:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else text


def _with_header(
    comments: Mapping[Route, Comments], data: Mapping[str, Data], sources: Sequence[SourceFile]
) -> dict[Route, Comments]:
    """Return the comments with a first line that names the files."""
    named = ", ".join(dict.fromkeys(printable(source.name) for source in sources))
    first: Route = (next(iter(data)),)
    own = comments.get(first, Comments())
    head = Comments((f"{IMPORTED}{named}", *own.before), own.trailing, own.after)
    return {first: head, **{route: each for route, each in comments.items() if route != first}}


Written = tuple[str | None, tuple[Diagnostic, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be written.

    Attributes:
      plan: of one target; without arrays where the spec lists none.
      is_resolved: whether rules are reduced to the target's mesh and the arrays of the plan.
      axis: the one mesh axis that a format with room for one is about.
    """

    plan: ShardingPlan
    is_resolved: bool = False
    axis: str | None = None

    @property
    def spec(self) -> Spec:
        """Return the spec of the plan."""
        return self.plan.spec

    @property
    def title(self) -> str:
        """Return what the text is made of: `spec.yaml, target pod: mesh data=4 model=2`."""
        return f"{source_name(self.spec)}, {self.target_title}"

    @property
    def target_title(self) -> str:
        """Return `target pod: mesh data=4 model=2 on tpu v5e 2x4`."""
        target = self.plan.target
        hardware = "" if target.hardware is None else f" on {target.hardware.title}"
        return f"target {target.name}: mesh {target.mesh}{hardware}"


def source_name(spec: Spec) -> str:
    """Return the name of the spec's file without its folder, in one line of plain text."""
    name = spec.source.name.replace("\\", "/").rpartition("/")[2]
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in name).replace('"', "?")


def origin(span: Span | None) -> str:
    """Return a trailing comment for a line of Python or YAML: `  # spec.yaml:12`."""
    if span is None:
        return ""
    source = span.source
    text = f"{source.name}:{span.line}" if source.is_preset else place(span)
    return f"  # {text}" if text.isprintable() and text.isascii() else ""


def python_module(request: Request, title: str, about: Iterable[str], body: Iterable[str]) -> str:
    """Return the text of a Python module: what it is in its docstring, then its lines."""
    first = f'"""{title}, exported by shardspec from {source_name(request.spec)}.'
    return "\n".join((first, "", *about, '"""', "", *body)) + "\n"


#: Sections that a format may have a place for.
PARAMS, OVERRIDES, ACTIVATIONS, AXIS_TYPES = "params", "overrides", "activations", "axis types"
DERIVE, MEMORY = "derive", "memory"
#: What a format says that lays out arrays by their paths.
BY_PATH = (PARAMS, OVERRIDES, DERIVE)


def losses(request: Request, tool: str, *holds: str) -> Iterator[Diagnostic]:
    """Yield a finding for each entry that is left out.

    Units, `indivisible: next` and fallbacks are no entries here: where they change the answer of
    an array, the proof finds that array. They are found here only where there are no arrays.

    Args:
      tool: what has no place, for messages: "a rule list of Flax".
      holds: the sections that it has a place for.
    """
    for section, find in (
        *((PARAMS, _params), (OVERRIDES, _overrides), (DERIVE, _derived)),
        *((ACTIVATIONS, _activations), (AXIS_TYPES, _axis_types), (MEMORY, _memory)),
        ("state", _state),
    ):
        if section not in holds:
            yield from find(request, tool)


def order_by_hand(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding where the spec orders devices itself, of a tool that makes the mesh."""
    target = request.plan.target
    stated = next((axis for axis in target.mesh.axes if axis.over), None)
    is_ring = request.spec.policy.order == "ring" and target.mesh.device_count > 1
    if stated is not None or target.devices or is_ring:
        of = "`order: ring`" if is_ring else f"the order of target {target.name}"
        message = f"{tool} orders devices itself: {of} stays here"
        help = "`Resolver(spec).mesh` has it, and so has `shardspec export python`"
        yield lost(message, stated.span if stated else target.span, help=help)


def _memory(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding where arrays, or their state, lie in the memory of a host."""
    apart = [each for each in request.plan.arrays if each.memory_kind is not None]
    entries = [each for each in request.spec.memory if each.memory != "device"]
    entry = apart[0].placed if apart else entries[0] if entries else None
    if entry is not None:
        many = f" of {counted(len(apart), 'array')}" if apart else ""
        message = f"{tool} has no memory kinds: the `{entry.memory}`{many} stays here"
        help = "`NamedSharding(..., memory_kind=...)` says it in code; `Resolver` does so itself"
        yield lost(message, entry.span, help=help)


def absent(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding for each rule with a mesh axis that the target lacks."""
    for rule in request.spec.axis_rules:
        gone = [axis for axis in rule.mesh_axes if axis not in request.plan.mesh.sizes]
        if gone:
            target = request.plan.target.name
            message = f"`{rule}`: the mesh of {target} has no `{gone[0]}`, and {tool} keeps it"
            help = "JAX refuses it where it fires; --resolved writes the rules of this target"
            yield lost(message, rule.span, help=help)


def unproved(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding for each axis whose sizes matter, where no array tells if they do."""
    if request.plan.arrays:
        return
    policy = request.spec.policy
    if policy.whole_below is not None:
        message = f"{tool} has no `whole_below`: it splits small arrays, too"
        help = "with arrays (--arrays) the export shows which of them"
        yield lost(message, policy.whole_below_span, help=help)
    for axis in request.spec.logical_axes:
        how, what = f"is split in units of {axis.unit}", "units"
        if axis.parts is not None:
            how, what = "is never cut across its parts", "parts"
        if axis.parts is not None or axis.unit > 1:
            message = f"`{axis.name}` {how}, and {tool} has no {what}"
            help = "with arrays (--arrays) the export shows whether any array is cut otherwise"
            yield lost(message, axis.span, help=help)


def _params(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding for the rules for `*`, and one for all entries of `params:` in use."""
    count = sum(sharding.dims.is_of_any for sharding in request.plan.arrays)
    for rule in request.spec.any_rules[:1]:
        many = f": {counted(count, 'array')}" if count else ""
        message = f"{tool} has no rules for arrays without names, as `{rule}` is{many}"
        yield lost(message, rule.span, help="the model has to name their dimensions itself")
    entries = request.spec.path_rules
    named = sum(sharding.origin is Origin.PARAMS for sharding in request.plan.arrays)
    if entries and (named or not request.plan.arrays):
        many = f" of {counted(named, 'array')}" if named else ""
        message = f"{tool} has no paths: the names{many} that `params:` gives stay here"
        help = "the model has to name these dimensions itself"
        yield lost(message, entries[0].span, help=help)


def _overrides(request: Request, tool: str) -> Iterator[Diagnostic]:
    matches = (each.matched for each in request.plan.arrays)
    matched = Counter(each for each in matches if isinstance(each, ir.Override))
    for override in request.spec.overrides:
        count = matched[override]
        if request.plan.arrays and not count:
            continue
        arrays = f": {counted(count, 'array')}" if count else ""
        message = f"{tool} has no overrides, and `{override.pattern.text}` is one{arrays}"
        what = "this layout" if override.logical_axes is None else "these names"
        yield lost(message, override.span, help=f"the model has to give the arrays {what} itself")


def _derived(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding for each entry of `derive:` that lays an array out."""
    count = Counter(each.matched for each in request.plan.arrays if each.derivation is not None)
    for rule in request.spec.derives:
        if count[rule] or not request.plan.arrays:
            arrays = f": {counted(count[rule], 'array')}" if count[rule] else ""
            message = f"{tool} lays no array out from another, as `{rule.pattern}` is{arrays}"
            help = "give them the partitions that `shardspec export` writes by path, or a plan has"
            yield lost(message, rule.span, help=help)


def _activations(request: Request, tool: str) -> Iterator[Diagnostic]:
    found = request.spec.activations
    if found:
        names = counted(len(found), "named activation")
        message = f"{tool} does not hold the {names} of the spec"
        help = "code that constrains them has to name their dimensions itself"
        yield lost(message, found[0].span, help=help)


def _axis_types(request: Request, tool: str) -> Iterator[Diagnostic]:
    for axis in request.plan.mesh.axes:
        if axis.axis_type != "auto":
            message = f"`{axis.name}` is an {axis.axis_type} mesh axis, and {tool} makes no mesh"
            help = f"say so where the mesh is made: AxisType.{axis.axis_type.capitalize()}"
            yield lost(message, axis.span, help=help)


def _state(request: Request, tool: str) -> Iterator[Diagnostic]:
    state = request.spec.state
    if state is not None and state.optimizer != "same":
        message = f"{tool} cannot say `optimizer: {state.optimizer}`: state lies as its array"
        yield lost(message, state.span, help="`Resolver.state_shardings` lays state out")


def by_name(request: Request, tool: str) -> tuple[Mapping[str, MeshAxes], tuple[Diagnostic, ...]]:
    """Return the mesh axes of each name, in the order of the rules, and the names that have none.

    Names that no array has take what a rule would give them alone.
    """
    seen: dict[str, Counter[MeshAxes]] = {}
    for sharding in request.plan.arrays:
        for dim in sharding.dims:
            if dim.logical_axis is not None:
                seen.setdefault(dim.logical_axis, Counter())[dim.mesh_axes] += 1
    alone = _alone(request)
    mapping: dict[str, MeshAxes] = {}
    faults = []
    for name in dict.fromkeys((*alone, *seen)):
        answers = seen.get(name, Counter({alone.get(name, ()): 1}))
        if len(answers) > 1:
            faults.append(_several(name, answers, request, tool))
        mapping[name] = answers.most_common(1)[0][0]
    return mapping, tuple(faults)


def _alone(request: Request) -> dict[str, MeshAxes]:
    """Return what the first rule of each name gives on the target."""
    here = request.plan.mesh.sizes
    found: dict[str, MeshAxes] = {}
    for rule in request.spec.axis_rules:
        present = tuple(axis for axis in rule.mesh_axes if axis in here)
        if present or rule.is_none:
            found.setdefault(rule.logical_axis, present)
    return found


def _several(name: str, answers: Counter[MeshAxes], request: Request, tool: str) -> Diagnostic:
    shown = " and ".join(f"{PartitionSpec((axes,))} {count}x" for axes, count in answers.items())
    message = f"`{name}` is {shown}, and {tool} gives a name one answer"
    rule = next((r for r in request.spec.axis_rules if r.logical_axis == name), None)
    labels = () if rule is None or rule.span is None else (Label(rule.span),)
    help = "two names for the two kinds of dimension, or a format that holds rules (flax) or paths"
    return Diagnostic(codes.CANNOT_HOLD, message, labels, help=help)


# Every foreign format that rules are read from and written to, in two hand-written tuples.


class Format(NamedTuple):
    """A format of another tool.

    Attributes:
      module: in `shardspec.foreign`; it has `read(sources, options)` and
        `answer(reading, params, mesh)`.
      title: what it reads, for help.
      options: the fields of `Options` that it takes besides mesh, hardware and params.
      runs_code: whether it is no file but a function, which is imported and called.
      has_settings: whether `key=value` is a setting, as on the command line of the tool.
    """

    name: str
    module: str
    title: str
    options: tuple[str, ...] = ()
    runs_code: bool = False
    has_settings: bool = False


_REGEX = ("name", "match", "separator", "strict")

FORMATS: tuple[Format, ...] = (
    Format("t5x-gin", "t5x", "gin files of T5X", ("name", "include")),
    Format("flax", "flax", "a rule list of Flax, in Python or JSON", ("name", "semantics")),
    Format("nnx", "nnx", "a rule list of Flax, as NNX reads it", ("name",)),
    Format(
        "maxtext",
        "maxtext",
        "MaxText's base.yml, model and custom mesh files",
        ("merge", "include"),
        has_settings=True,
    ),
    Format("regex", "regex", "a list of (regex, PartitionSpec)", _REGEX),
    Format("haliax", "haliax", "a mapping of Haliax, a config of Levanter", ("name",)),
    Format("hf-tp-plan", "hf", "tensor-parallel plans of Hugging Face", ("name", "names")),
    Format("dtensor", "dtensor", "plans of PyTorch's parallelize_module"),
    Format("keras", "keras", "a LayoutMap of Keras", ("name", "match")),
    Format("layout", "layout", "a running tree, PACKAGE.MODULE:FUNCTION", (), True),
)


def format_named(name: str) -> Format | None:
    """Return the format of this name."""
    return next((each for each in FORMATS if each.name == name), None)


class Export(NamedTuple):
    """A format to write.

    Attributes:
      module: in `shardspec.foreign`; it has `write(request)`.
      title: what it writes, for help.
      needs_arrays: whether it says where arrays lie, and not how any are placed.
      options: the fields of `Request` that it takes besides the plan.
    """

    name: str
    module: str
    title: str
    needs_arrays: bool = True
    options: tuple[str, ...] = ()


EXPORTS: tuple[Export, ...] = (
    Export("flax", "flax", "a rule list for Flax Linen", False, ("resolved",)),
    Export("nnx", "nnx", "a rule list for Flax NNX"),
    Export("t5x-gin", "t5x", "gin for T5X's partitioner", False),
    Export("maxtext", "maxtext", "mesh and rules for MaxText", False),
    Export("haliax", "haliax", "an axis mapping for Haliax"),
    Export("regex", "regex", "a list of (regex, PartitionSpec) in Python"),
    Export("keras", "keras", "the entries of a Keras LayoutMap"),
    Export("hf-tp-plan", "hf", "a tp_plan for Hugging Face", True, ("axis",)),
    Export("python", "python_plan", "a Python module of literal NamedShardings"),
    Export("json", "json_plan", "the plan as JSON"),
)


def export_named(name: str) -> Export:
    """Return the format of this name; KeyError where there is none."""
    return {each.name: each for each in EXPORTS}[name]


def module_of(entry: Format | Export) -> Any:
    """Return the module that reads or writes a format."""
    return import_module(f"shardspec.foreign.{entry.module}")
