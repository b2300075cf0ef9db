"""The mesh axes along which values differ, held to eight devices that compute them."""

from __future__ import annotations

import random
import re
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.calls import Ref
from shardspec.programs.hlo import Instruction, program_of
from shardspec.programs.partitioned import varying

SIZES = {"fsdp": 4, "tensor": 2}
DEVICES = list(product(range(4), range(2)))
AXES = st.sampled_from([frozenset(each) for each in ((), ("fsdp",), ("tensor",), (*SIZES,))])
#: What each device has: a number, or a tuple of them.
Held = dict[tuple[int, int], tuple[float, ...]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "sum fsdp", "sum tensor", "barrier", "pair", "id", "swap", "mix")),
        st.integers(0, 99),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=12,
)
PAIR = "(f32[], f32[])"
#: Loops that give back their two values in turns, or the sum of both and the second.
LOOPS = "\n".join(
    f"%{name} (p: {PAIR}) -> {PAIR} {{\n  %p = {PAIR} parameter(0)\n"
    "  %a = f32[] get-tuple-element(%p), index=0\n  %b = f32[] get-tuple-element(%p), index=1\n"
    f"  %c = f32[] add(%a, %b)\n  ROOT %r = {PAIR} tuple({made})\n}}\n"
    for name, made in (("swap", "%b, %a"), ("mix", "%c, %b"))
)


def differs(held: Held) -> frozenset[str]:
    """Return the axes along which some two neighbours have other numbers."""
    found = set()
    for (one, other), axis in product(product(DEVICES, DEVICES), SIZES):
        at = [*SIZES].index(axis)
        if one[1 - at] == other[1 - at] and held[one] != held[other]:
            found.add(axis)
    return frozenset(found)


def summed(held: Held, axis: str) -> Held:
    at = [*SIZES].index(axis)
    return {
        one: (sum(held[other][0] for other in DEVICES if other[1 - at] == one[1 - at]),)
        for one in DEVICES
    }


def looped(held: Held, body: str, rounds: int) -> Held:
    for _ in range(rounds):
        held = {at: (b, a) if body == "swap" else (a + b, b) for at, (a, b) in held.items()}
    return held


@given(AXES, AXES, STEPS, st.integers(0, 2**32))
def test_a_value_differs_along_the_axes_that_devices_find(
    one: frozenset[str], other: frozenset[str], steps: list[tuple[str, int, int]], seed: int
) -> None:
    """Never along fewer; and along no more, but behind a loop, of which all rounds count."""
    chance = random.Random(seed)

    def given_over(axes: frozenset[str]) -> Held:
        seats = [tuple(at * (axis in axes) for at, axis in zip(each, SIZES, strict=True))
                 for each in DEVICES]  # fmt: skip
        values = {seat: float(chance.randrange(1 << 40)) for seat in seats}
        return {each: (values[seat],) for each, seat in zip(DEVICES, seats, strict=True)}

    held = {"x": given_over(one), "y": given_over(other)}
    lines = ["%x = f32[] parameter(0)", "%y = f32[] parameter(1)"]
    loops: dict[str, frozenset[str]] = {}

    def add(name: str, text: str, value: Held) -> None:
        lines.append(f"%{name} = {text}")
        held[name] = value

    numbers = ["x", "y"]
    for at, (step, first, second) in enumerate(steps):
        a, b = (numbers[each % len(numbers)] for each in (first, second))
        name = f"v{at}"
        if step == "add":
            both = {d: (held[a][d][0] + held[b][d][0],) for d in DEVICES}
            add(name, f"f32[] add(%{a}, %{b})", both)
        elif step.startswith("sum"):
            axis = step.split()[1]
            text = f"f32[] all-reduce(%{a}), channel_id=1, over={axis}"
            add(name, text, summed(held[a], axis))
        elif step == "barrier":
            add(name, f"f32[] opt-barrier(%{a})", held[a])
        elif step == "id":
            ids = {d: (float(d[0] * 2 + d[1] + 1),) for d in DEVICES}
            add(name, "u32[] partition-id()", ids)
        else:
            pair = {d: (held[a][d][0], held[b][d][0]) for d in DEVICES}
            add(f"{name}t", f"{PAIR} tuple(%{a}, %{b})", pair)
            if step == "pair":
                add(f"{name}w", f"{PAIR} opt-barrier(%{name}t)", pair)
                made = [pair]
            else:
                text = f"{PAIR} while(%{name}t), condition=%none, body=%{step}"
                made = [looped(pair, step, rounds) for rounds in range(3)]
                add(f"{name}w", text, made[-1])
            for index in (0, 1):
                parts = [{d: (each[d][index],) for d in DEVICES} for each in made]
                text = f"f32[] get-tuple-element(%{name}w), index={index}"
                add(f"{name}_{index}", text, parts[-1])
                if step != "pair":
                    loops[f"{name}_{index}"] = frozenset().union(*map(differs, parts))
            numbers += [f"{name}_0", f"{name}_1"]
            continue
        numbers.append(name)
    text = "\n".join(f"  {line}" for line in lines)
    program = program_of(f"HloModule m\n{LOOPS}ENTRY %main () -> f32[] {{\n{text}\n}}\n")

    def over(each: Instruction) -> frozenset[str]:
        return frozenset(re.findall(r"over=(\w+)", each.attributes))

    found = varying(program, [one, other], over, frozenset(SIZES))
    first = [*loops][:2]  # of one loop
    for name, value in held.items():
        told = found[Ref("main", name)]
        assert told >= differs(value), name
        if not loops:
            assert told == differs(value), name
        elif name in first:
            assert told == loops[name], "of a loop, what differs in some round"
