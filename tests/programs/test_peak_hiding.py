"""The order in which a GPU runs kernels so that they hide collectives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.hlo import program_of
from shardspec.programs.peak_graph import graph_of
from shardspec.programs.peak_hiding import Hidden, Speeds, hidden, sends
from shardspec.programs.peak_units import Unit
from tests.programs.test_peak import BIG, DOT, entry

SPEEDS = Speeds(flops=1e15, memory=1e12, link=1e11, network=1e10, node=8)
GROUPS = "replica_groups={{0,1,2,3,4,5,6,7}}"
GATHER = f"dimensions={{0}}, {GROUPS}"
SUM = f"{GROUPS}, to_apply=%add"


def units_of(lines: str) -> list[Unit]:
    """Return the operations of a text as units, each of which writes what it makes."""
    main = graph_of(program_of(entry(lines)))
    assert main is not None
    given = set(main.arguments)
    return [Unit(node, frozenset(node.operands) - given, [*node.results]) for node in main.nodes]


def ordered(lines: str) -> tuple[list[str], dict[str, int]]:
    """Return the names of the operations in the order that hides, and where collectives start."""
    units = units_of(lines)
    found = hidden(units, SPEEDS, 8)
    name = [unit.node.instruction.name for unit in units]
    return [name[at] for at in found.order], {name[at]: to for at, to in found.starts.items()}


def test_gather_starts_before_the_kernels_that_hide_it() -> None:
    order, starts = ordered(f"""
        %p = {BIG} parameter(0)
        %w = f32[64,512]{{1,0}} parameter(1)
        %a = {BIG} dot(%p, %p), {DOT}
        %b = {BIG} dot(%a, %a), {DOT}
        %g = {BIG} all-gather(%w), {GATHER}
        ROOT %c = {BIG} dot(%b, %g), {DOT}
    """)
    assert order == ["a", "b", "g", "c"]
    assert starts == {"g": 0}


def test_product_runs_while_the_sum_of_another_is_on_its_way() -> None:
    order, starts = ordered(f"""
        %p = {BIG} parameter(0)
        %a = {BIG} dot(%p, %p), {DOT}
        %s = {BIG} all-reduce(%a), {SUM}
        %b = {BIG} dot(%p, %a), {DOT}
        %t = {BIG} all-reduce(%b), {SUM}
        ROOT %r = ({BIG}, {BIG}) tuple(%s, %t)
    """)
    assert order == ["a", "b", "s", "t"]
    assert starts == {"s": 1, "t": 3}


def test_a_device_that_hides_gathers_alone_waits_for_sums() -> None:
    """It places what the step only returns where a gather is on its way, and not before a sum."""
    lines = f"""
        %p = {BIG} parameter(0)
        %w = f32[64,512]{{1,0}} parameter(1)
        %a = {BIG} dot(%p, %p), {DOT}
        %s = {BIG} all-reduce(%a), {SUM}
        %g = {BIG} all-gather(%w), {GATHER}
        %c = {BIG} dot(%s, %g), {DOT}
        %d = {BIG} dot(%p, %c), {DOT}
        %aside = {BIG} dot(%a, %a), {DOT}
        ROOT %r = ({BIG}, {BIG}) tuple(%d, %aside)
    """
    units = units_of(lines)
    name = [unit.node.instruction.name for unit in units]
    found = hidden(units, replace(SPEEDS, hides=frozenset(("all-gather",))), 8)
    order = [name[at] for at in found.order]
    assert {name[at] for at in found.starts} == {"g"}
    assert order.index("aside") < order.index("g") < order.index("c")
    assert found.starts[name.index("g")] <= order.index("aside")


def test_one_collective_is_on_its_way_at_a_time() -> None:
    order, starts = ordered(f"""
        %v = f32[64,512]{{1,0}} parameter(0)
        %w = f32[64,512]{{1,0}} parameter(1)
        %g = {BIG} all-gather(%v), {GATHER}
        %h = {BIG} all-gather(%w), {GATHER}
        ROOT %c = {BIG} dot(%g, %h), {DOT}
    """)
    first, second = sorted(("g", "h"), key=order.index)
    assert starts[first] <= order.index(first) < starts[second] <= order.index(second)


def test_several_collectives_are_on_their_way_where_there_are_links_for_them() -> None:
    units = units_of(f"""
        %v = f32[64,512]{{1,0}} parameter(0)
        %w = f32[64,512]{{1,0}} parameter(1)
        %g = {BIG} all-gather(%v), {GATHER}
        %h = {BIG} all-gather(%w), {GATHER}
        ROOT %c = {BIG} dot(%g, %h), {DOT}
    """)
    found = hidden(units, replace(SPEEDS, at_once=2), 8)
    assert set(found.starts.values()) == {0}


def test_a_product_inside_a_kernel_takes_time() -> None:
    """Of two kernels, that which multiplies hides the gather that takes as long."""
    first = {}
    for operation in ("dot", "add"):
        units = units_of(f"""
            %p = {BIG} parameter(0)
            %w = f32[64,512]{{1,0}} parameter(1)
            %a = {BIG} {operation}(%p, %p), {DOT}
            %n = {BIG} negate(%a)
            %m = {BIG} negate(%p)
            %g = {BIG} all-gather(%w), {GATHER}
            ROOT %c = {BIG} clamp(%n, %g, %m)
        """)
        _, outer, *rest = units
        joined = Unit(outer.node, frozenset(), outer.made)
        for has_joined in (True, False):
            speeds = replace(SPEEDS, flops=1e11, link=2.3e8, has_joined=has_joined)
            first[operation, has_joined] = hidden([joined, *rest], speeds, 8).order[0]
    assert [each for each, at in first.items() if at == 1] == [("dot", True)]


CHOICES = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5))


def _drawn(choices: list[tuple[int, int, int]]) -> str:
    lines = [f"%v{at} = {BIG} parameter({at})" for at in range(6)]
    for at, (kind, one, other) in enumerate(choices, 6):
        left, right = f"%v{at - 6 + one}", f"%v{at - 6 + other}"
        operation = (
            f"all-reduce({left}), {SUM}",
            f"collective-permute({left}), source_target_pairs={{{{0,1}},{{1,0}}}}",
            f"add({left}, {right})",
            f"dot({left}, {right}), {DOT}",
        )[kind]
        lines.append(f"%v{at} = {BIG} {operation}")
    last = ", ".join(f"%v{at}" for at in range(6, len(lines)))
    types = ", ".join([BIG] * (len(lines) - 6))
    return "\n".join([*lines, f"ROOT %t = ({types}) tuple({last})"])


@given(st.lists(CHOICES, min_size=1, max_size=40))
def test_any_order_that_hides_runs(choices: list[tuple[int, int, int]]) -> None:
    """Every unit runs once, after what it needs; no two collectives are on their way at once."""
    units = units_of(_drawn(choices))
    found = hidden(units, SPEEDS, 8)
    assert sorted(found.order) == [*range(len(units))]
    place = {at: to for to, at in enumerate(found.order)}
    makers = {value: at for at, unit in enumerate(units) for value in unit.made}
    for at, unit in enumerate(units):
        begins = found.starts.get(at, place[at])
        assert begins <= place[at]
        assert all(place[makers[value]] < begins or at not in found.starts for value in unit.reads)
        assert all(place[makers[value]] < place[at] for value in unit.reads)
    _is_one_at_a_time(found, place)
    assert set(found.starts) == {at for at, unit in enumerate(units) if sends(unit, SPEEDS.hides)}


def _is_one_at_a_time(found: Hidden, place: dict[int, int]) -> None:
    spans = sorted((start, place[at]) for at, start in found.starts.items())
    for (_, end), (start, _) in pairwise(spans):
        assert end < start
