"""What a step sends, in rows: by operation, mesh axis, line of the code, rule of the spec or array.

A table answers one question. In each of them every byte stands in one row: what several mesh axes,
and so several rules, send together has a row of its own. Arrays of layers that differ in a number
alone are one, as in the table of `compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from shardspec.diagnostics.words import as_one, grouped, natural, template
from shardspec.ir.plan import Attempt, Kind
from shardspec.ir.spec import target_text
from shardspec.ir.step import Carried, Cause, CauseKind, Collective, CollectiveKind, Place

By = Literal["op", "axis", "line", "rule", "array"]
BY: tuple[By, ...] = get_args(By)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked for a mesh axis: a line of the spec, a line of the code, or nobody.

    Attributes:
      text: the rule as it is written, `heads -> tensor`; or what asked, where that is no rule.
      place: where that stands, `spec.yaml:14`, `preset:t5x/2d:9`; empty where it stands nowhere.
    """

    text: str
    place: str = ""

    def __str__(self) -> str:
        """Return `heads -> tensor spec.yaml:14`."""
        return f"{self.text} {self.place}" if self.place else self.text


#: What asked, where it is no line of the spec.
OTHERS = {
    CauseKind.ARGUMENT: "sharding of an argument",
    CauseKind.CONSTRAINT: "constraint",
    CauseKind.RESULT: "sharding of a result",
    CauseKind.WRITTEN: "written so",
    CauseKind.PROPAGATED: "chosen by XLA; no rule or constraint requires it",
    CauseKind.UNKNOWN: "unknown",
}


def asker(cause: Cause) -> Asker:
    """Return who asked for the mesh axis of a cause.

    What came by way of operations counts as asked for where it started, if a line of the spec
    placed it there.
    """
    if cause.attempt is not None:
        place = cause.span.place if cause.span is not None else ""
        return Asker(_asked(cause.attempt), place)
    text = OTHERS[cause.kind]
    if cause.array and cause.kind is not CauseKind.UNKNOWN:
        text = f"{text}: {template(cause.array)}"
    return Asker(text, str(cause.place) if cause.place.is_known else "")


def _asked(attempt: Attempt) -> str:
    if attempt.kind in {Kind.RULE, Kind.ANY}:
        return str(attempt)
    what = {Kind.STATED: "override", Kind.ZERO: "state", Kind.PARENT: "parent"}.get(
        attempt.kind, "unread rule"
    )
    return f"{what} -> {target_text(attempt.asked)}"


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """What is sent for one reason, as the question of its table has it.

    Attributes:
      name: what the row is of; empty in a table of operations, where all the rest says it.
      collectives: the heaviest first.
    """

    name: str
    collectives: tuple[Collective, ...]

    @property
    def wire_bytes(self) -> int:
        """Return what one device sends in a step."""
        return sum(each.wire_bytes for each in self.collectives)

    @property
    def count(self) -> float:
        """Return how often something is sent in a step."""
        return sum(each.count for each in self.collectives)

    @property
    def kinds(self) -> tuple[CollectiveKind, ...]:
        """Return what kinds of collectives there are, the heaviest first."""
        return tuple(dict.fromkeys(each.kind for each in self.collectives))

    @property
    def mesh_axes(self) -> tuple[tuple[str, ...], ...]:
        """Return over which mesh axes they go, the heaviest first."""
        return tuple(dict.fromkeys(each.axes for each in self.collectives))

    @property
    def places(self) -> tuple[Place, ...]:
        """Return the lines of the code, the heaviest first."""
        return tuple(dict.fromkeys(each.place for each in self.collectives))

    @property
    def carries(self) -> tuple[str, ...]:
        """Return what is carried, layers as one, the heaviest first."""
        by_layer = grouped(
            (each.carries for each in self.collectives),
            lambda each: (each.kind, _shape_of_name(each)),
        )
        return tuple(_carried_as_one(found) for found in by_layer.values())

    @property
    def askers(self) -> tuple[tuple[Asker, ...], ...]:
        """Return who asked, for the mesh axes of a collective together, the heaviest first."""
        return tuple(dict.fromkeys(askers(each) for each in self.collectives))

    @property
    def propagated_bytes(self) -> int:
        """Return how much of it goes over mesh axes that came by way of operations."""
        return sum(
            each.wire_bytes
            for each in self.collectives
            if any(cause.kind is CauseKind.PROPAGATED for cause in each.because)
        )


def askers(collective: Collective) -> tuple[Asker, ...]:
    """Return who asked for the mesh axes of a collective, each once."""
    found = tuple(dict.fromkeys(map(asker, collective.because)))
    return found or (Asker(OTHERS[CauseKind.UNKNOWN]),)


def array_of(collective: Collective) -> str:
    """Return what a table of arrays counts a collective under.

    A weight, its gradient and its optimizer state are one array; what else is carried counts by
    its own name.
    """
    carried = collective.carries
    if carried.kind in ("weight", "gradient", "state") and carried.name:
        return carried.name
    return str(carried)


def names_in(collective: Collective) -> set[str]:
    """Return the arrays that a collective carries, or that asked for it."""
    return {collective.carries.name, *(cause.array for cause in collective.because)} - {""}


def of_arrays(
    collectives: Iterable[Collective], arrays: Collection[str] | None
) -> tuple[Collective, ...]:
    """Return those that have to do with some arrays; all of them, where None are named."""
    return tuple(
        each for each in collectives if arrays is None or not names_in(each).isdisjoint(arrays)
    )


def group(collectives: Iterable[Collective], by: By = "op") -> tuple[TrafficRow, ...]:
    """Return the rows of a table, the heaviest first.

    Invariants:
      whole: the wire bytes of the rows sum to those of the collectives, and so do the counts.
    """
    heaviest_first = sorted(collectives, key=lambda each: (-each.wire_bytes, each.at))
    groups = grouped(heaviest_first, _KEYS[by])
    rows = [TrafficRow(_name(by, found), tuple(found)) for found in groups.values()]
    return tuple(sorted(rows, key=lambda row: (-row.wire_bytes, natural(row.name))))


def _operation(each: Collective) -> Hashable:
    """Return what the collectives of one row agree in: forward and backward are one, and layers."""
    carried = (each.carries.kind, _shape_of_name(each.carries))
    return each.kind, each.axes, each.place.shown, carried, frozenset(askers(each)), _forced(each)


def _forced(each: Collective) -> Hashable:
    return None if each.forced_by is None else (each.forced_by.kind, each.forced_by.place)


_KEYS: dict[By, Callable[[Collective], Hashable]] = {
    "op": _operation,
    "axis": lambda each: each.axes,
    "line": lambda each: each.place.shown,
    "rule": lambda each: frozenset(askers(each)),
    "array": lambda each: template(array_of(each)),
}


def _name(by: By, found: list[Collective]) -> str:
    first = found[0]
    match by:
        case "op":
            return ""
        case "axis":
            return "+".join(first.axes)
        case "line":
            return str(first.place)
        case "rule":
            return " + ".join(map(str, askers(first)))
        case "array":
            return as_one({array_of(each) for each in found}, " ..")


def _shape_of_name(carried: Carried) -> str:
    """Return a name with the numbers of layers left out; an einsum has none."""
    return carried.name if carried.kind == "einsum" else template(carried.name)


def _carried_as_one(found: list[Carried]) -> str:
    name = as_one({each.name for each in found}, " ..") if found[0].name else ""
    return str(Carried(found[0].kind, name))
