"""Parts of the model of memory, each against a count of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.diagnostics.words import by_key
from shardspec.programs import peak_graph
from shardspec.programs.hlo import Instruction, program_of
from shardspec.programs.peak import Device, peak_of
from shardspec.programs.peak_again import _MOVED, Rates
from shardspec.programs.peak_graph import Body, Node, Value, every_node, graph_of
from shardspec.programs.peak_units import (
    Unit,
    deep_order,
    joined_makers,
    list_order,
    needs_of,
    post_order,
)
from tests.programs.test_peak import BIG, DOT, MIB, entry, looped

#: Which two of the values before it each of some products reads.
READS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25)


def products(reads: list[tuple[int, int]]) -> str:
    """Return a program of products of 1 MiB each, all of whose last six values are read."""
    lines = [f"%v{at} = {BIG} parameter({at})" for at in range(6)]
    for at, (one, other) in enumerate(reads, 6):
        lines.append(f"%v{at} = {BIG} dot(%v{at - 6 + one}, %v{at - 6 + other}), {DOT}")
    last = ", ".join(f"%v{at}" for at in range(len(lines) - 2, len(lines)))
    return entry("\n".join(lines) + f"\nROOT %t = ({BIG}, {BIG}) tuple({last})")


def units_of(reads: list[tuple[int, int]], sizes: Iterable[int]) -> tuple[list[Value], list[Unit]]:
    """Return values of some bytes, and units each of which makes one from two before it."""
    body = Body("main", None, 0)
    none = Instruction("none", "f32[]", "none", (), "", "")
    node = Node("none", none, body, [])
    values = [Value("f32", (size,), size, body) for size in sizes]
    return values, [
        Unit(node, frozenset({values[at - 6 + one], values[at - 6 + other]}), [values[at]])
        for at, (one, other) in enumerate(reads, 6)
    ]


@given(READS, st.sampled_from((1, 2, 3, 5, 64)))
@settings(max_examples=60)
def test_the_fast_memory_holds_no_more_than_it_has(
    reads: list[tuple[int, int]], capacity: int
) -> None:
    program = program_of(products(reads))
    slow, fast = (peak_of(program, Device("tpu", size)) for size in (0, capacity * MIB))
    left = {each.instruction.name for each in fast.values if each.instruction}
    gone = [each for each in slow.values if each.instruction and each.instruction.name not in left]
    assert all(each.bytes <= capacity * MIB // 2 for each in gone)
    assert all(each.why != "is a result" for each in gone)
    for tick in range(slow.end + 1):
        alive = sum(each.bytes for each in gone if each.born <= tick <= each.dies)
        assert alive <= capacity * MIB
    assert fast.bytes - fast.gap_bytes <= slow.bytes - slow.gap_bytes


@given(READS)
@settings(max_examples=60)
def test_a_list_scheduler_takes_what_frees_most(reads: list[tuple[int, int]]) -> None:
    """Held to a slow one, which looks at all that is ready each time."""
    values, units = units_of(reads, range(1, len(reads) + 7))
    held = frozenset(values[::5])
    order = list_order(units, held, lambda value: value.bytes)
    needs = needs_of(units)
    done: list[int] = []
    while len(done) < len(units):
        ready = [at for at in range(len(units)) if at not in done and {*needs[at]} <= {*done}]
        made = {value for unit in units for value in unit.made}
        left = [unit for at, unit in enumerate(units) if at not in done]

        def gain(at: int, left: list[Unit] = left, made: set[Value] = made) -> int:
            freed = [
                value.bytes
                for value in units[at].reads
                if value in made - held and sum(value in unit.reads for unit in left) == 1
            ]
            return sum(freed) - sum(value.bytes for value in units[at].made)

        done.append(max(ready, key=lambda at: (gain(at), -at)))
    assert order == done


@given(READS, st.lists(st.integers(1, 9), min_size=31, max_size=31))
@settings(max_examples=60)
def test_orders_go_deep_and_begin_with_what_most_bytes_are_made_for(
    reads: list[tuple[int, int]], sizes: list[int]
) -> None:
    """Of two that nothing else reads, the one comes first that more bytes lead to."""
    values, units = units_of(reads, sizes[: 6 + len(reads)])
    node, body = units[0].node, units[0].node.body
    needs, outs = needs_of(units), [frozenset({values[-1]})]
    for order in (post_order(units, outs), deep_order(units, outs, lambda each: each.bytes)):
        place = {at: number for number, at in enumerate(order)}
        assert sorted(order) == list(range(len(units)))
        assert all(place[other] < place[at] for at, each in enumerate(needs) for other in each)
    weighed = [values[at].bytes for at in (6, 7)] if len(reads) > 1 else [0, 0]
    if len(reads) > 1 and not needs[0] and not needs[1] and weighed[0] != weighed[1]:
        last = Value("f32", (), 1, body)
        pair = [*units[:2], Unit(node, frozenset({values[6], values[7]}), [last], 0)]
        found = deep_order(pair, [frozenset({last})], lambda each: each.bytes)
        assert found == ([0, 1, 2] if weighed[0] > weighed[1] else [1, 0, 2])


@given(READS.filter(lambda reads: len(reads) > 5), st.data())
@settings(max_examples=200)
def test_units_are_joined_in_turn_unless_they_would_need_each_other(
    reads: list[tuple[int, int]], data: st.DataObject
) -> None:
    values, units = units_of(reads, range(1, len(reads) + 7))
    order = data.draw(st.permutations(range(len(units))))
    pairs = sorted(sorted(order[at : at + 2]) for at in range(0, len(order) - 1, 2))
    one = list(range(len(units)))
    for pair in pairs:
        tried = [pair[0] if at == pair[1] else first for at, first in enumerate(one)]
        needs: dict[int, set[int]] = {first: set() for first in tried}
        for at, own in enumerate(needs_of(units)):
            needs[tried[at]].update(tried[other] for other in own if tried[other] != tried[at])
        with suppress(CycleError):
            TopologicalSorter(needs).prepare()
            one = tried
    found = joined_makers(units, [(values[a + 6], values[b + 6]) for a, b in pairs])
    joined = sorted(sorted(values.index(each) - 6 for each in unit.made) for unit in found)
    assert joined == sorted(by_key((first, at) for at, first in enumerate(one)).values())
    needed = [{*each} for each in needs_of(found)]
    assert all(other < at for at, each in enumerate(needed) for other in each), "all can run"


KINDS = ("add", "multiply", "subtract", "maximum", "minimum")


@pytest.mark.parametrize("readers", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_gpu_keeps_a_value_from_where_reading_it_is_faster(readers: int, dtype: str) -> None:
    """All readers but one compute it anew; each reads it, and the first writes it besides."""
    wide = f"{dtype}[512,512]{{1,0}}"
    lines = [f"%p = {wide} parameter(0)", f"%a = {wide} tanh(%p)"]
    lines += [f"%r{at} = {wide} {kind}(%a, %p)" for at, kind in enumerate(KINDS[:readers])]
    outs = ", ".join(f"%r{at}" for at in range(readers))
    small = wide.replace("512,512", "8,512")
    shapes = ", ".join([small] * readers)
    lines += [f"%o{at} = {wide} dot(%r{at}, %r{at}), {DOT}" for at in range(readers)]
    cut = "slice={[0:8], [0:512]}"
    lines += [f"%s{at} = {small} slice(%o{at}), {cut}" for at in range(readers)]
    lines.append(f"ROOT %t = ({shapes}) tuple({outs.replace('r', 's')})")
    program = program_of(entry("\n".join(lines)))
    cost, size = 48, 4 if dtype == "f32" else 2
    balance = (readers - 1) * cost / (_MOVED * readers * size)

    def kept(per_byte: float) -> bool:
        rates = Rates(per_byte, {"tanh": cost}, is_narrow=False)
        values = peak_of(program, Device("gpu", rates=rates)).values
        return any(each.instruction and each.instruction.name == "a" for each in values)

    assert kept(balance * 0.99)
    assert not kept(balance * 1.01)


BRANCHES = f"""\
%one (p: f32[512,512]) -> f32[512,512] {{
  %p = {BIG} parameter(0)
  ROOT %x = {BIG} dot(%p, %p), {DOT}
}}
%other (q: f32[512,512]) -> f32[512,512] {{
  %q = {BIG} parameter(0)
  ROOT %y = {BIG} add(%q, %q)
}}
"""


@pytest.mark.parametrize("given_", ["%i, %v, %w", "%i, %v", "%i"])
def test_a_body_is_one_deeper_than_what_runs_it(given_: str) -> None:
    """Of a conditional too, also where it does not give each of its branches an operand."""
    choice = f"conditional({given_}), branch_computations={{%one, %other}}"
    lines = f"""
        %i = s32[] parameter(0)
        %v = {BIG} parameter(1)
        %w = {BIG} parameter(2)
        ROOT %c = {BIG} {choice}
    """
    bodies = [graph_of(program_of(entry(lines, before=BRANCHES)))]
    bodies.append(graph_of(program_of(looped("%n = f32[512,512]{1,0} add(%c, %wr)"))))
    for main in bodies:
        assert main is not None
        waiting, seen = [main], 0
        while waiting:
            body = waiting.pop()
            for inner in itertools.chain.from_iterable(node.bodies for node in body.nodes):
                assert inner.depth == body.depth + 1
                assert inner.node is not None
                waiting.append(inner)
                seen += 1
        assert seen == (given_.count(",") if main is bodies[0] else 1)


CALLED = """HloModule m, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%inner (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %s = f32[8]{0} sine(%p)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %c = f32[8]{0} cosine(%x)
  ROOT %r = f32[8]{0} call(%c), to_apply=%inner
}
"""


@pytest.mark.parametrize(("most", "last"), [(4, "sine"), (3, "call")])
def test_calls_are_written_out_up_to_a_number_of_instructions(
    most: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_graph, "_MOST", most)
    body = graph_of(program_of(CALLED))
    assert body is not None
    assert [each.operation for each in every_node(body)] == ["cosine", last]
