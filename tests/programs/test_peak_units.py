"""Units that are joined: all that can be at once, in an order in which all can run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.hlo import Instruction
from shardspec.programs.peak_graph import Body, Node, Value
from shardspec.programs.peak_units import Unit, _joined, needs_of

#: Which of the values before it each unit reads, as bits; and which set it is of, 0 for none.
UNITS = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 4)), min_size=1, max_size=9)


def is_in_order(units: list[Unit]) -> bool:
    """Return whether each unit comes behind what it reads."""
    makers = {value: at for at, unit in enumerate(units) for value in unit.made}
    return all(makers.get(value, -1) <= at for at, unit in enumerate(units) for value in unit.reads)


def has_circle(units: list[Unit], groups: list[frozenset[int]]) -> bool:
    """Return whether units that are one, by these groups, need each other in a circle."""
    home = {at: number for number, group in enumerate(groups) for at in group}
    left = {number: set() for number in range(len(groups))}
    for at, needs in enumerate(needs_of(units)):
        left[home[at]] |= {home[other] for other in needs} - {home[at]}
    while ready := [number for number, needs in left.items() if not needs]:
        for number in ready:
            del left[number]
        for needs in left.values():
            needs.difference_update(ready)
    return bool(left)


@given(UNITS)
def test_sets_are_joined_unless_that_makes_a_circle(rows: list[tuple[int, int]]) -> None:
    body = Body("main", None, 0)
    none = Instruction("none", "f32[]", "none", (), "", "")
    values = [Value("f32", (1,), 4, body) for _ in rows]
    units = [
        Unit(
            Node("none", none, body, []),
            frozenset(value for bit, value in enumerate(values[:at]) if reads >> bit & 1),
            [values[at]],
        )
        for at, (reads, _) in enumerate(rows)
    ]
    sets = [[at for at, row in enumerate(rows) if row[1] == number] for number in (1, 2, 3, 4)]
    sets = [each for each in sets if each]
    found = _joined(units, sets)
    assert is_in_order(found)
    at_of = {value: at for at, value in enumerate(values)}
    groups = [frozenset(at_of[value] for value in unit.made) for unit in found]
    assert sorted(at for group in groups for at in group) == [*range(len(rows))]
    for unit, group in zip(found, groups, strict=True):
        assert unit.reads == frozenset().union(*(units[at].reads for at in group))
        assert len(group) == 1 or sorted(group) in sets
    for each in sets:
        if frozenset(each) not in groups:
            others = [group for group in groups if not group & {*each}]
            assert has_circle(units, [*others, frozenset(each)])
