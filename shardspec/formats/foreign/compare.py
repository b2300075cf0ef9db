"""The proof of an import: our plan beside the other tool's answer, array by array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import IMPORT_DIFFERS, NOT_COMPARED
from shardspec.formats.foreign.imported import Answer, NoAnswer, NotRead, one_line
from shardspec.ir.grouping import collapsed, counted, described, natural, template
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.plan import Attempt, Outcome, ParamSharding, ShardingPlan
from shardspec.ir.units import binary_bytes

_NO_ANSWER = "{} cannot use these arrays with this file: there is no answer to equal"
_UNSAYABLE = "a spec keeps them whole: in JAX, make the parts arrays of their own and split those"


@dataclass(frozen=True, slots=True)
class Difference:
    """Arrays that differ alike.

    Attributes:
      reasons: what our trace says about the dimensions that differ.
    """

    paths: tuple[str, ...]
    ours: PartitionSpec
    theirs: Answer
    reasons: tuple[str, ...] = ()


def differences(plan: ShardingPlan, answers: Sequence[Answer]) -> tuple[Difference, ...]:
    """Return where the plan is not what the other tool says, arrays that differ alike together.

    Args:
      answers: one for each array of the plan, in its order.
    """
    alike: dict[tuple[object, ...], list[tuple[ParamSharding, Answer]]] = {}
    for sharding, answer in zip(plan.params, answers, strict=True):
        if answer != sharding.partition_spec and not isinstance(answer, NotRead):
            param = sharding.param
            names = (param.logical_axes, sharding.logical_axes, param.shape)
            key = (template(param.path), names, sharding.partition_spec, answer)
            alike.setdefault(key, []).append((sharding, answer))
    return tuple(_difference(group) for group in alike.values())


def _difference(group: list[tuple[ParamSharding, Answer]]) -> Difference:
    sharding, answer = group[0]
    paths = sorted((each.param.path for each, _ in group), key=natural)
    return Difference(
        tuple(paths), sharding.partition_spec, answer, tuple(_reasons(sharding, answer))
    )


def _reasons(sharding: ParamSharding, answer: Answer) -> Iterator[str]:
    """Yield why our plan has what it has, for the dimensions that differ."""
    if sharding.mismatch is not None:
        given = ", ".join(str(name) for name in sharding.mismatch)
        yield f"the names ({given}) do not fit {len(sharding.dims)} dimensions"
    if not isinstance(answer, PartitionSpec):
        return
    for index, (dim, theirs) in enumerate(zip(sharding.dims, answer.dims, strict=True)):
        if dim.mesh_axes == theirs:
            continue
        name = f"dim {index}" + (f" `{dim.logical_axis}`" if dim.logical_axis else "")
        tried = "; ".join(_tried(attempt, dim.size) for attempt in dim.attempts)
        yield f"{name}: {tried or 'no rule was tried'}"


def _tried(attempt: Attempt, size: int | None) -> str:
    rule = f"`{attempt}`"
    if attempt.outcome is Outcome.BUSY:
        return f"{rule} is busy: dim {attempt.blocked_by} has it"
    if attempt.outcome is Outcome.INDIVISIBLE:
        return f"{rule} does not fire: {size} is not divisible by {attempt.ways}"
    if attempt.outcome is Outcome.TAKEN:
        return f"{rule} fires"
    return f"{rule} names a mesh axis that is not there"


def findings(found: Sequence[Difference], tool: str) -> tuple[Diagnostic, ...]:
    """Return a finding for each group of arrays that differ, and for each reason to refuse."""
    return tuple(
        _finding(group[0], tool) if len(group) == 1 else _refused(group, tool)
        for group in together(found)
    )


def together(found: Sequence[Difference]) -> tuple[Sequence[Difference], ...]:
    """Return the groups of which each is one finding."""
    groups: dict[object, list[Difference]] = {}
    for index, each in enumerate(found):
        refused = isinstance(each.theirs, NoAnswer)
        groups.setdefault((each.theirs, each.reasons) if refused else index, []).append(each)
    return tuple(groups.values())


def _refused(group: Sequence[Difference], tool: str) -> Diagnostic:
    """Return the finding for arrays that the tool refuses for one and the same reason."""
    paths = [path for each in group for path in each.paths]
    assert isinstance(group[0].theirs, NoAnswer)
    notes = (described(paths), f"{tool}: {group[0].theirs.reason}", *group[0].reasons)
    refuses = group[0].theirs.refuses
    theirs = "refuses" if refuses else "splits them as no PartitionSpec can say"
    message = f"{counted(len(paths), 'array')}: shardspec places them, {tool} {theirs}"
    help = _NO_ANSWER.format(tool) if refuses else _UNSAYABLE
    return Diagnostic(IMPORT_DIFFERS, message, notes=notes, help=help)


def _finding(difference: Difference, tool: str) -> Diagnostic:
    paths = difference.paths
    one = collapsed(paths)
    which = f"`{one}`" if one is not None else f"`{paths[0]}` and others"
    count = f" x{len(paths)}" if len(paths) > 1 else ""
    if isinstance(difference.theirs, NoAnswer):
        refuses = difference.theirs.refuses
        theirs = "refuses" if refuses else "splits it as no PartitionSpec can say"
        message = f"{which}{count}: shardspec gives {difference.ours}, {tool} {theirs}"
        notes = (f"{tool}: {difference.theirs.reason}", *difference.reasons)
        help = _NO_ANSWER.format(tool) if refuses else _UNSAYABLE
    else:
        message = f"{which}{count}: shardspec gives {difference.ours}, {tool} {difference.theirs}"
        notes = difference.reasons
        help = "an entry of `overrides:` with `spec:` states an answer itself"
    if one is None:
        notes = (described(paths), *notes)
    return Diagnostic(IMPORT_DIFFERS, one_line(message), notes=notes, help=help)


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Arrays that nothing is known of in the other tool, for one reason."""

    paths: tuple[str, ...]
    size: int
    reason: NotRead


def not_compared(plan: ShardingPlan, answers: Sequence[Answer]) -> tuple[NotCompared, ...]:
    """Return the arrays that the other tool may split by what was not read, by reason."""
    alike: dict[NotRead, list[ParamSharding]] = {}
    for sharding, answer in zip(plan.params, answers, strict=True):
        if isinstance(answer, NotRead):
            alike.setdefault(answer, []).append(sharding)
    return tuple(
        NotCompared(
            tuple(each.param.path for each in group), sum(each.param.bytes for each in group), why
        )
        for why, group in alike.items()
    )


def not_compared_findings(groups: Sequence[NotCompared], tool: str) -> tuple[Diagnostic, ...]:
    """Return a finding for each reason why arrays are not compared."""
    return tuple(
        Diagnostic(
            NOT_COMPARED,
            f"{counted(len(each.paths), 'array')} not compared with {tool}: {each.reason.reason}",
            notes=(f"{described(each.paths)}; {binary_bytes(each.size)}",),
            help=each.reason.help,
        )
        for each in groups
    )
