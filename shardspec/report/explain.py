"""Why one array is laid out as it is, and why not otherwise: its trace, read aloud.

For people it is columns, for programs one tab-separated line per attempt, stable across versions.
Advice is tried before it is given: the rule goes into the list, and the array is resolved anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardspec.analysis.coverage import allowing
from shardspec.diagnostics import Span
from shardspec.diagnostics.lines import Tones, columns
from shardspec.diagnostics.words import binary_bytes, counted, did_you_mean
from shardspec.ir.plan import (
    ActivationSharding,
    Attempt,
    Derivation,
    Dims,
    DimSharding,
    Entry,
    Kind,
    LeftOut,
    Outcome,
    ParamSharding,
    Sharding,
    ShardingPlan,
)
from shardspec.ir.spec import AxisRule, Override, axis_of, override_text, target_text
from shardspec.resolve.resolver import array_resolver


def explain(sharding: ParamSharding, plan: ShardingPlan) -> Iterator[str]:
    """Yield the lines of the explanation: the answer, where names came from, every rule tried."""
    yield sharding.answer_text
    yield ""
    yield from _told(sharding, plan)


def explain_activation(
    sharding: ActivationSharding, plan: ShardingPlan, name: str = ""
) -> Iterator[str]:
    """Yield the lines of the explanation of a named activation; `?` is a size no axis states.

    Args:
      name: that was asked about, where a pattern serves it.
    """
    activation = sharding.activation
    by = f", by the pattern {activation.name}" if name not in ("", activation.name) else ""
    memory = f" in {activation.memory}" if activation.memory else ""
    yield f"activation {name or activation.name}{by}   ->   {sharding.partition_spec}{memory}"
    yield ""
    yield from _told(sharding, plan)


def _told(sharding: Sharding, plan: ShardingPlan) -> Iterator[str]:
    """Yield what is known of the whole, a line each, and the table of the dimensions."""
    yield from (f"{label:<8}{text}".rstrip() for label, text in facts(sharding, plan))
    if sharding.dims:
        yield "dims"
        tones = _dim_tones(sharding)
        yield from columns(dim_rows(sharding, plan), right=(0, 2), tones=tones)


def facts(sharding: Sharding, plan: ShardingPlan) -> Iterator[tuple[str, str]]:
    """Yield what is said of an array or activation as a whole: `names`, `scan`, `sums`, and it."""
    if isinstance(sharding, ActivationSharding):
        activation = sharding.activation
        names = " ".join(name or "_" for name in activation.logical_axes)
        if activation.partition is not None:
            names = f"spec {override_text(activation.partition, activation.sums)}"
        yield "names", f"{names}     {_place(activation.span)}"
        if activation.at is not None:
            yield "at", activation.at.text
    else:
        yield "names", _names(sharding, plan)
        if (meant := allowing(plan.spec, sharding.param.path)) is not None:
            split = "" if sharding.is_replicated else ", though rules split it"
            place = f'{_place(meant.span)}  replicate "{meant.pattern}"'
            yield "whole", f"meant to be{split}, because {meant.because}     {place}"
        if sharding.param.padding:
            yield "padded", _padding_text(sharding)
        if (scan := sharding.scan) is not None:
            stacked = ", ".join(f"{name}@{position}" for name, position in scan.axes)
            yield "scan", f'{stacked}     {_place(scan.span)}  scan "{scan.pattern}"'
        if sharding.placed is not None:
            yield "memory", memory_line(sharding).removeprefix("memory").strip()
        if (entry := sharding.training) is not None:
            place = _place(entry.pattern.span)
            yield "train", f'{entry.training}     {place}  training "{entry.pattern}"'
        if not sharding.dims:
            yield "dims", "none: a scalar is replicated"
    sums = sharding.sums
    for kind, axes in zip(sums._fields, sums, strict=True):
        if axes and sharding.dims:
            yield "sums", f"{kind} over {', '.join(axes)}: {_SUMS[kind]}"


def _padding_text(sharding: ParamSharding) -> str:
    """Return `vocab 51865 -> 51872: +2.19 KiB per device, 17.5 KiB in all`."""
    param = sharding.param
    grown = [
        f"{dim.logical_axis or f'dim {at}'} {true} -> {size}"
        for at, (dim, true, size) in enumerate(
            zip(sharding.dims, param.true_shape, param.shape, strict=True)
        )
        if size != true
    ]
    total = sharding.padding_bytes
    here = binary_bytes(-(-total // sharding.shard_count))
    return f"{', '.join(grown)}: +{here} per device, {binary_bytes(total)} in all"


def memory_line(sharding: ParamSharding) -> str:
    """Return in which memory an array lies, and which entry says so."""
    entry = sharding.placed
    assert entry is not None, "some entry says it"
    section = "override" if isinstance(entry, Override) else "memory"
    return f'memory  {entry.memory}     {_place(entry.pattern.span)}  {section} "{entry.pattern}"'


def dim_rows(sharding: Sharding, plan: ShardingPlan) -> list[Row]:
    """Return a row for each rule tried: dim, name, size, mesh axes, outcome, place."""
    dims = enumerate(sharding.dims)
    return [row for index, dim in dims for row in _rows(index, dim, sharding, plan)]


def _dim_tones(sharding: Sharding) -> Iterator[Tones]:
    """Yield for each of `dim_rows` what stands out: the rules that place the dimension."""
    for dim in sharding.dims:
        if not dim.attempts:
            yield {4: "whole"}
        for attempt in dim.attempts:
            places = attempt.outcome in (Outcome.TAKEN, Outcome.ADDED)
            yield {4: "split" if attempt.ways > 1 else "whole"} if places else {}
            yield from ({} for _ in attempt.left_out)


def _names(sharding: ParamSharding, plan: ShardingPlan) -> str:
    matched = sharding.matched
    if matched is None or sharding.mismatch is not None:
        return sharding.names_text
    return f"{sharding.names_text}    ({counted(plan.served(matched), 'array')})"


Row = tuple[str, str, str, str, str, str]

#: What JAX means by a kind of sum.
_SUMS = {
    "unreduced": "each part holds a partial sum",
    "reduced": "whole on each part; its gradient comes unreduced",
}


def _rows(index: int, dim: DimSharding, sharding: Sharding, plan: ShardingPlan) -> Iterator[Row]:
    """Yield the rows of one dimension, which the first of them names."""
    size = "?" if dim.size is None else str(dim.size)
    head = (str(index), dim.logical_axis or "_", size)
    if not dim.attempts:
        yield (*head, "", f"replicated: {_without_rule(index, dim, sharding)}", "")
        return
    for attempt in dim.attempts:
        said = outcome_text(attempt, dim, sharding, plan)
        asked = target_text(attempt.mesh_axes)
        if attempt.in_part:
            asked = target_text(attempt.asked, in_part=True)
        yield (*head, asked, said, _short(attempt.span, plan))
        head = ("", "", "")
        for each in attempt.left_out:
            why = _why_left_out(each, dim, sharding, plan)
            yield (*head, f"  {each.mesh_axis}", why, "")
    if dim.taken is None:
        is_other = sharding.dims.is_of_any and sharding.dims.not_split_by_any is None
        why = _without_rule(index, dim, sharding) if is_other else "no rule is left"
        yield ("", "", "", "", f"replicated: {why}", "")


def _why_left_out(each: LeftOut, dim: DimSharding, sharding: Sharding, plan: ShardingPlan) -> str:
    """Return why a rule goes without a mesh axis."""
    match each.outcome:
        case Outcome.BUSY:
            assert each.blocked_by is not None
            other = sharding.dims[each.blocked_by]
            first = other.taken.span if other.taken and other.taken.kind is Kind.RULE else None
            comes_first = f", {_place(first)} comes first" if first else ""
            name = other.logical_axis or "_"
            return f"left out: dim {each.blocked_by} ({name}) has it{comes_first}"
        case Outcome.INDIVISIBLE:
            return (
                f"left out: {dim.size} is not divisible by {each.ways} with it{_units(dim, plan)}"
            )
    return f"left out: not on this target, which has {', '.join(plan.mesh.names)}"


def _without_rule(index: int, dim: DimSharding, sharding: Sharding) -> str:
    if isinstance(sharding, ParamSharding) and sharding.derivation is not None:
        return _underived(index, dim, sharding.derivation)
    if dim.logical_axis is not None:
        return f"no rule for `{dim.logical_axis}`"
    if sharding.dims.is_of_any:
        return "`*` splits one dimension, the largest that divides"
    if isinstance(sharding, ParamSharding) and (sharding.matched is None or sharding.mismatch):
        return "no name"
    return "the dimension has no name"


def _underived(index: int, dim: DimSharding, derivation: Derivation) -> str:
    """Return why a dimension has no mesh axes of a parent."""
    if derivation.fault or derivation.parent is None:
        return "no parent to follow"
    if not derivation.reading:
        return "one element"
    of_parent = derivation.reading[index]
    if isinstance(of_parent, str):
        return f"no rule for `{of_parent}`"
    if of_parent is None:
        return "no dimension of the parent"
    return f"dim {of_parent.place} of the parent is replicated" if dim.size != 1 else "size 1"


def outcome_text(attempt: Attempt, dim: DimSharding, sharding: Sharding, plan: ShardingPlan) -> str:
    """Return how one attempt ended, with its numbers."""
    match attempt.outcome:
        case Outcome.TAKEN:
            if attempt.kind is Kind.PARENT:
                return f"{_taken(attempt, dim, plan)}, as dim {attempt.position} of the parent"
            if not attempt.mesh_axes and attempt.kind is Kind.STATED:
                whose = "override" if isinstance(sharding, ParamSharding) else "activation"
                return f"TAKEN   replicated, as the spec of the {whose} says"
            if attempt.kind is Kind.SMALL:
                return f"TAKEN   whole: {_smallness(sharding)}"
            return _taken(attempt, dim, plan)
        case Outcome.ADDED:
            return f"ADDED   {attempt.ways} ways, by ZeRO"
        case Outcome.BUSY:
            return _busy(attempt, sharding)
        case Outcome.INDIVISIBLE:
            return _indivisible(attempt, dim, sharding, plan)
        case Outcome.ABSENT:
            return f"not on this target, which has {', '.join(plan.mesh.names)}"
        case Outcome.UNKNOWN:
            return "UNKNOWN: no target has this mesh axis  <- SHD201"


def _smallness(sharding: Sharding) -> str:
    """Return how many bytes an array has that the policy keeps whole."""
    assert isinstance(sharding, ParamSharding)
    return f"{binary_bytes(sharding.param.bytes)} is less than `whole_below`"


def _taken(attempt: Attempt, dim: DimSharding, plan: ShardingPlan) -> str:
    if not attempt.mesh_axes:
        return "TAKEN   replicated, as the rule says"
    mesh = plan.mesh
    wanted = () if attempt.in_part else mesh.in_parts(attempt.asked)
    dropped = [axis for axis in wanted if axis not in mesh.sizes]
    gone = f"   ({', '.join(dropped)} is not on this target)" if dropped else ""
    wholes = [name for name, _ in mesh.wholes if name in attempt.asked]
    gone += f"   (`{'`, `'.join(wholes)}`, in its parts)" if wholes else ""
    if dim.size is None:
        return f"TAKEN   {attempt.ways} ways{gone}"
    if attempt.ways == 1:
        return f"TAKEN   {dim.size} / 1 shards nothing: the mesh axis has size 1{gone}"
    if dim.size % attempt.ways:
        return f"TAKEN   {dim.size} / {attempt.ways} is uneven; JAX will refuse  <- SHD301{gone}"
    text = f"TAKEN   {dim.size} / {attempt.ways} = {dim.size // attempt.ways}"
    if dim.is_even:
        units = dim.size // attempt.ways // dim.unit
        return f"{text}{f' = {units} x {_grain(dim, plan)}' if dim.unit > 1 else ''}{gone}"
    cut = _cut_text(dim, attempt.ways, plan).replace("would cut", "cuts")
    return f"{text} {cut}{gone}"


def _busy(attempt: Attempt, sharding: Sharding) -> str:
    if attempt.blocked_by is None:
        return "never fires: it names a mesh axis twice"
    other = sharding.dims[attempt.blocked_by]
    winner = other.taken
    name = other.logical_axis or "_"
    comes_first = ""
    if winner is not None and winner.span is not None and winner.kind is Kind.RULE:
        comes_first = f", {_place(winner.span)} comes first"
    shared = [axis for axis in attempt.mesh_axes if axis in other.mesh_axes]
    which = f" {', '.join(shared)}" if len(attempt.mesh_axes) > 1 else " it"
    return f"busy: dim {attempt.blocked_by} ({name}) has{which}{comes_first}"


def _indivisible(attempt: Attempt, dim: DimSharding, sharding: Sharding, plan: ShardingPlan) -> str:
    product = " x ".join(str(plan.mesh.sizes[axis]) for axis in attempt.mesh_axes)
    by = f"{product} = {attempt.ways}" if len(attempt.mesh_axes) > 1 else product
    is_elsewhere = sharding.dims.is_of_any and dim is not sharding.dims.not_split_by_any
    # `check` reports the first refusal alone, and only where no rule takes the dimension
    is_first = dim.taken is None and dim.first_of(Outcome.INDIVISIBLE) is attempt
    reported = not is_elsewhere and is_first
    if dim.size is not None and dim.size % attempt.ways == 0:
        cut, _, code = _cut_text(dim, attempt.ways, plan).partition("  ")
        told = f"  {code}" if reported else ""
        return f"{dim.size} / {attempt.ways} = {dim.size // attempt.ways} {cut}{told}"
    return f"{dim.size} is not divisible by {by}{'  <- SHD301' if reported else ''}"


def _cut_text(dim: DimSharding, ways: int, plan: ShardingPlan) -> str:
    """Return what so many shards would cut, and the finding that says so."""
    if dim.cuts_parts(ways):
        return "would cut across parts  <- SHD313"
    return f"would cut a {_grain(dim, plan).replace(' ', ' of ', 1)}  <- SHD312"


def _units(dim: DimSharding, plan: ShardingPlan) -> str:
    return f" in {_grain(dim, plan).replace(' ', 's of ', 1)}" if dim.unit > 1 else ""


def _grain(dim: DimSharding, plan: ShardingPlan) -> str:
    """Return `unit 128`; `group 768 (q 512, k 128, v 128)` where parts are interleaved."""
    axis = next(
        (a for a in plan.spec.logical_axes if a.name == axis_of(dim.logical_axis or "")), None
    )
    if axis is None or axis.parts is None or axis.grain == "unit":
        return f"unit {dim.unit}"
    return f"group {dim.unit} ({axis.parts.group_text})"


def _place(span: Span | None) -> str:
    return span.place if span else ""


def _short(span: Span | None, plan: ShardingPlan) -> str:
    """Return `:33` for a line of the spec itself, else the file as well."""
    if span is None:
        return ""
    return f":{span.line}" if span.source == plan.spec.source else _place(span)


def why_not(
    sharding: Sharding,
    index: int,
    wanted: tuple[str, ...],
    plan: ShardingPlan,
    title: str | None = None,
) -> Iterator[str]:
    """Yield what keeps dimension `index` off the mesh axes `wanted`, and what would help.

    Args:
      title: what to call the array; None for its path, or for the name of an activation.
    """
    asked = _Question(sharding, index, wanted, plan)
    dim, name = asked.dim, target_text(wanted)
    size = "" if dim.size is None else f"={dim.size}"
    head = f"{title or _name(sharding)}   dim {index} ({dim.logical_axis or '_'}{size})"
    if dim.mesh_axes == wanted and (wanted or dim.taken is not None):
        yield f"{head} is on {name}"
        return
    if not wanted and not dim.mesh_axes:
        yield f"{head} is replicated: no rule took it"
        return
    yield f"{head} is on {target_text(dim.mesh_axes)}, not on {name}"
    absent = [axis for axis in wanted if axis not in plan.mesh.sizes]
    if absent:
        yield from _absent(absent, plan)
    elif len(set(wanted)) < len(wanted):
        yield f"  an {_kind(sharding)} uses a mesh axis at most once"
    elif isinstance(sharding, ParamSharding) and sharding.is_stated:
        yield from _stated(asked, sharding.matched)
    elif sharding.dims.is_kept_whole:
        attempt = dim.attempts[0]
        said = outcome_text(attempt, dim, sharding, plan).partition(": ")[2]
        yield f"  {said}{_in_brackets(attempt.span)}: no rule is asked"
    elif isinstance(sharding, ParamSharding) and sharding.derivation is not None:
        yield from _derived(asked, sharding.derivation)
    elif sharding.dims.is_of_any:
        yield f"  {_without_rule(index, dim, sharding)}"
        yield "  help: name the dimensions, by an entry of `params` that matches the path"
    elif dim.logical_axis is None:
        yield from _unnamed(sharding)
    else:
        yield from _refused(asked)


class _Question(NamedTuple):
    """Why a dimension is not on some mesh axes."""

    sharding: Sharding
    at: int
    wanted: tuple[str, ...]
    plan: ShardingPlan

    @property
    def dim(self) -> DimSharding:
        """Return the dimension."""
        return self.sharding.dims[self.at]

    @property
    def blockers(self) -> list[int]:
        """Return the other dimensions that have one of the mesh axes."""
        dims = enumerate(self.sharding.dims)
        others = ((at, dim.mesh_axes) for at, dim in dims if at != self.at)
        return [at for at, axes in others if set(self.wanted) & set(axes)]

    @property
    def rule(self) -> AxisRule | None:
        """Return the rule that says just this, wherever it stands."""
        said = (self.dim.logical_axis, self.wanted)
        rules = self.plan.spec.axis_rules
        return next((r for r in rules if (r.logical_axis, r.mesh_axes) == said), None)

    def ended(self, attempt: Attempt) -> str:
        """Return how an attempt on the dimension ended."""
        return outcome_text(attempt, self.dim, self.sharding, self.plan)


def _name(sharding: Sharding) -> str:
    return sharding.param.path if isinstance(sharding, ParamSharding) else sharding.activation.name


def _kind(sharding: Sharding) -> str:
    return "array" if isinstance(sharding, ParamSharding) else "activation"


def _absent(absent: list[str], plan: ShardingPlan) -> Iterator[str]:
    """Yield which mesh axes there are, and where the others are."""
    for axis in absent:
        yield f"  target {plan.target.name} has no mesh axis `{axis}`; it has {plan.mesh}"
        having = [target.name for target in plan.spec.targets if axis in target.mesh.names]
        if having:
            plural = "s have" if len(having) > 1 else " has"
            yield f"  target{plural} it: {', '.join(having)}"
        else:
            hint = did_you_mean(axis, plan.spec.mesh_axis_names)
            yield f"  no target has it{f'; {hint}' if hint else ''}"


def _stated(asked: _Question, matched: Entry | None) -> Iterator[str]:
    """Yield what the override states; rules are not asked."""
    attempt = next(iter(asked.dim.attempts), None)
    place = _in_brackets(matched.span) if matched is not None else ""
    if attempt is None:
        yield f"  the spec of the override{place} has another number of dimensions"
        return
    stated = target_text(attempt.asked)
    yield f"  the spec of the override{place} says `{stated}` here, and no rule is asked"
    if attempt.outcome is not Outcome.TAKEN:
        yield f"  {asked.ended(attempt)}"
    if attempt.asked != asked.wanted:
        yield from (f"  {_in_use(asked, other)}" for other in asked.blockers)
        if not asked.blockers:
            yield from _not_divisible(asked)


def _derived(asked: _Question, derivation: Derivation) -> Iterator[str]:
    """Yield what a derived array takes from its parent; that is what rules are about."""
    if derivation.parent is None:
        yield "  the array derives from one that is not there  <- SHD241"
        return
    yield from (f"  {asked.ended(attempt)}" for attempt in asked.dim.attempts)
    if not asked.dim.attempts:
        yield f"  {_underived(asked.at, asked.dim, derivation)}"
    yield f"  help: it lies as {derivation.parent.path}: explain that one, or write an override"


def _unnamed(sharding: Sharding) -> Iterator[str]:
    if isinstance(sharding, ActivationSharding):
        yield "  the dimension has no name, so no rule is asked"
        place = _in_brackets(sharding.activation.span)
        yield f"  help: name it in the activation `{sharding.activation.name}`{place}"
        return
    if sharding.mismatch is not None:
        names = f"{len(sharding.mismatch)} names for {sharding.param.rank} dimensions"
        yield f"  the array has {names}, so it counts as unnamed and no rule is asked"
        return
    yield "  the dimension has no name, so no rule is asked"
    if sharding.matched is not None:
        entry = sharding.matched
        yield f"  help: name it in `{entry.pattern}`{_in_brackets(entry.span)}"
    elif sharding.param.logical_axes is None:
        yield "  help: add an entry to `params` that matches the path"


def _refused(asked: _Question) -> Iterator[str]:
    """Yield each reason once, then the advice that was found to work."""
    attempts = asked.dim.attempts
    tried = next((a for a in attempts if asked.wanted in (a.mesh_axes, a.asked)), None)
    if tried is not None:
        yield f"  `{tried}`{_in_brackets(tried.span)}: {asked.ended(tried)}"
    else:
        yield from _not_tried(asked)
    for other in asked.blockers:
        if tried is None or tried.blocked_by != other:
            yield f"  {_in_use(asked, other)}"
    if tried is None or tried.outcome is not Outcome.INDIVISIBLE:
        yield from _not_divisible(asked)
    yield from _advice(asked)


def _not_tried(asked: _Question) -> Iterator[str]:
    dim, later = asked.dim, asked.rule
    if later is None:
        yield f"  no rule says `{dim.logical_axis} -> {target_text(asked.wanted)}`"
    elif dim.taken is not None:
        first = f"`{dim.taken}`{_in_brackets(dim.taken.span)} comes first"
        yield f"  {first}, before `{later}`{_in_brackets(later.span)}"


def _in_use(asked: _Question, other: int) -> str:
    member = asked.sharding.dims[other]
    shared = ", ".join(axis for axis in asked.wanted if axis in member.mesh_axes)
    name = member.logical_axis or "_"
    by = ""
    if member.rule is not None and member.taken is not None:
        by = f", by `{member.taken}`{_in_brackets(member.taken.span)}"
    return f"`{shared}` is in use by dim {other} ({name}) of the same {_kind(asked.sharding)}{by}"


def _not_divisible(asked: _Question) -> Iterator[str]:
    dim, plan, ways = asked.dim, asked.plan, asked.plan.mesh.ways(asked.wanted)
    if not dim.fits(ways):
        if dim.cuts_parts(ways):
            yield f"  {ways} shards of {dim.size} {_cut_text(dim, ways, plan).partition('  ')[0]}"
        else:
            yield f"  {dim.size} is not divisible by {ways}{_units(dim, plan)}"


def _advice(asked: _Question) -> Iterator[str]:
    """Yield where the rule would have to stand, and what the array would then be."""
    (sharding, index, wanted, plan), dim, blockers = asked, asked.dim, asked.blockers
    if not dim.fits(plan.mesh.ways(wanted)):
        return
    rule = AxisRule(dim.logical_axis or "", wanted)
    anchor = _anchor(sharding, (index, *blockers), plan)
    found = _with_rule(sharding, rule, anchor, plan)
    if found[index].mesh_axes != wanted:
        if any(sharding.dims[other].logical_axis == dim.logical_axis for other in blockers):
            yield f"  of two dimensions called `{dim.logical_axis}` the first is served first"
        return
    if anchor is None:
        yield f"  help: add the rule `{rule}`"
    else:
        verb = "move" if asked.rule is not None else "put"
        yield f"  help: {verb} `{rule}` before `{anchor}`{_in_brackets(anchor.span)}"
    lost = [
        f"dim {other} ({member.logical_axis or '_'}) is then on {target_text(after.mesh_axes)}"
        for other, (member, after) in enumerate(zip(sharding.dims, found, strict=True))
        if other != index and member.mesh_axes != after.mesh_axes
    ]
    yield f"    {'; '.join([*lost, _answer(sharding, found)])}"


def _anchor(sharding: Sharding, dims: tuple[int, ...], plan: ShardingPlan) -> AxisRule | None:
    """Return the first of the rules that placed these dimensions."""
    winners = [taken.rule for at in dims if (taken := sharding.dims[at].taken) is not None]
    return next((r for r in plan.spec.axis_rules if any(r is w for w in winners)), None)


def _with_rule(
    sharding: Sharding, rule: AxisRule, anchor: AxisRule | None, plan: ShardingPlan
) -> Dims:
    """Return the dimensions as they would be with `rule` before `anchor`, or after all rules."""
    rules = list(plan.spec.axis_rules)
    rules.insert(len(rules) if anchor is None else rules.index(anchor), rule)
    resolver = array_resolver(replace(plan.spec, axis_rules=tuple(rules)), plan.target)
    return resolver.dims(tuple(dim.size for dim in sharding.dims), sharding.logical_axes)


def _answer(before: Sharding, dims: Dims) -> str:
    """Return what the array or the activation would be, an array with its bytes."""
    if isinstance(before, ActivationSharding):
        return f"the activation would be {replace(before, dims=dims).partition_spec}"
    after = replace(before, dims=dims)
    now, then = before.per_device_bytes, after.per_device_bytes
    size = f"the array would be {after.partition_spec} and take {binary_bytes(then)} per device"
    if now == then:
        return f"{size}, as now"
    change = "more" if then > now else "less"
    return f"{size}, {binary_bytes(abs(then - now))} {change}"


def _in_brackets(span: Span | None) -> str:
    return f" ({span.place})" if span else ""


def porcelain(sharding: ParamSharding) -> Iterator[str]:
    """Yield lines of: path, dim, size, logical axis, mesh axes, outcome, blocked by, place.

    A dimension without attempts has one line whose outcome is `none`. Empty fields are `-`.
    """
    for index, dim in enumerate(sharding.dims):
        head = (sharding.param.path, str(index), str(dim.size), dim.logical_axis or "-")
        if not dim.attempts:
            yield "\t".join((*head, "-", "none", "-", "-"))
        for attempt in dim.attempts:
            span = attempt.span
            blocked = "-" if attempt.blocked_by is None else str(attempt.blocked_by)
            place = str(span) if span else "-"
            asked = target_text(attempt.mesh_axes).replace(" ", "")
            for each in attempt.left_out:
                by = "-" if each.blocked_by is None else str(each.blocked_by)
                yield "\t".join((*head, each.mesh_axis, f"left-out-{each.outcome}", by, place))
            yield "\t".join((*head, asked, str(attempt.outcome), blocked, place))
