"""Which devices have the same values, held to eight devices that compute them."""

from __future__ import annotations

import random
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.alike import Differs, alike, differing, of_shards
from shardspec.programs.calls import Ref
from shardspec.programs.hlo import Instruction, program_of
from shardspec.programs.members import Members, Slices, members_of

SIZES = {"fsdp": 4, "tensor": 2}
DEVICES = range(8)
AXES = st.sampled_from([frozenset(each) for each in ((), ("fsdp",), ("tensor",), (*SIZES,))])
#: What each device has: numbers, one or two.
Held = list[tuple[float, ...]]
#: Devices that take part together: along an axis, in halves of one, or along both.
GROUPS = (
    ((0, 1), (2, 3), (4, 5), (6, 7)),
    ((0, 2, 4, 6), (1, 3, 5, 7)),
    ((0, 2), (4, 6), (1, 3), (5, 7)),
    (tuple(DEVICES),),
)
KINDS = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("add", "barrier", "pair", "id", "table", "permute", "swap", "mix", *KINDS)
        ),
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


def found_alike(held: Held) -> tuple[int, ...]:
    """Return for each device the first one that has the same numbers."""
    return tuple(held.index(each) for each in held)


def sent(kind: str, held: Held, groups: tuple[tuple[int, ...], ...]) -> Held:
    """Return what devices have of a collective: one number for each list of numbers."""
    made = [(0.0,)] * len(held)
    for group in groups:
        whole = tuple(held[at] for at in group)
        for place, at in enumerate(group):
            part = -1 if kind in ("all-reduce", "all-gather") else place
            made[at] = (float(hash((kind, whole, part)) % (1 << 50)),)
    return made


def looped(held: Held, body: str, rounds: int) -> Held:
    for _ in range(rounds):
        held = [(b, a) if body == "swap" else (a + b, b) for a, b in held]
    return held


class Written:
    """A program, and what each of eight devices has of its values."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lines: list[str] = []
        self.held: dict[str, Held] = {}
        self.rounds: dict[str, list[Held]] = {}
        self.numbers: list[str] = []

    def give(self, name: str, axes: frozenset[str]) -> None:
        firsts = of_shards(axes, SIZES)
        values = [float(self.chance.randrange(1 << 40)) for _ in DEVICES]
        self.add(name, f"f32[] parameter({len(self.lines)})", [(values[at],) for at in firsts])

    def add(self, name: str, text: str, value: Held) -> None:
        self.lines.append(f"%{name} = {text}")
        self.held[name] = value
        if len(value[0]) == 1:
            self.numbers.append(name)

    def step(self, name: str, step: str, first: int, second: int) -> None:
        """Add what one step makes."""
        a, b = (self.numbers[each % len(self.numbers)] for each in (first, second))
        one, other = self.held[a], self.held[b]
        if step == "add":
            weight = self.chance.uniform(1, 2)  # so that no sums of other values are equal
            both = [(x[0] + weight * y[0],) for x, y in zip(one, other, strict=True)]
            self.add(name, f"f32[] add(%{a}, %{b})", both)
        elif step == "barrier":
            self.add(name, f"f32[] opt-barrier(%{a})", one)
        elif step in ("id", "table"):
            rows = [self.chance.randrange(3) for _ in DEVICES]
            unit, scale = (self.chance.uniform(1, 2) for _ in "us")  # no sums agree by chance
            self.add(f"{name}i", "u32[] partition-id()", [((at + 0.5) * unit,) for at in DEVICES])
            if step == "table":
                listed = ", ".join(map(str, rows))
                self.add(f"{name}c", f"s32[8]{{0}} constant({{{listed}}})", [(7.0,)] * 8)
                text = f"s32[1]{{0}} dynamic-slice(%{name}c, %{name}i), dynamic_slice_sizes={{1}}"
                self.add(name, text, [(row * scale,) for row in rows])
        elif step == "permute":
            order = self.chance.sample(DEVICES, 8)
            pairs = ",".join(f"{{{source},{at}}}" for at, source in enumerate(order))
            text = f"f32[] collective-permute(%{a}), source_target_pairs={{{pairs}}}"
            self.add(name, text, [one[source] for source in order])
        elif step in KINDS:
            groups = GROUPS[second % len(GROUPS)]
            listed = ",".join(f"{{{','.join(map(str, group))}}}" for group in groups)
            text = (
                f"f32[] {step}(%{a}), channel_id=1, replica_groups={{{listed}}}, dimensions={{0}}"
            )
            self.add(name, text, sent(step, one, groups))
        else:
            self._pair(name, step, a, b)

    def _pair(self, name: str, step: str, a: str, b: str) -> None:
        both = zip(self.held[a], self.held[b], strict=True)
        pair = [(one[0], other[0]) for one, other in both]
        self.add(f"{name}t", f"{PAIR} tuple(%{a}, %{b})", pair)
        made = [pair] if step == "pair" else [looped(pair, step, rounds) for rounds in range(3)]
        how = "opt-barrier" if step == "pair" else "while"
        called = "" if step == "pair" else f", condition=%none, body=%{step}"
        self.add(f"{name}w", f"{PAIR} {how}(%{name}t){called}", made[-1])
        for at in (0, 1):
            parts = [[(each[at],) for each in value] for value in made]
            self.add(f"{name}_{at}", f"f32[] get-tuple-element(%{name}w), index={at}", parts[-1])
            self.rounds[f"{name}_{at}"] = parts


@given(AXES, AXES, STEPS, st.integers(0, 2**32))
def test_devices_that_have_the_same_value_are_found(
    one: frozenset[str], other: frozenset[str], steps: list[tuple[str, int, int]], seed: int
) -> None:
    """Never devices that have not; and all that have, but behind a loop, of which all count."""
    written = Written(seed)
    written.give("x", one)
    written.give("y", other)
    for at, step in enumerate(steps):
        written.step(f"v{at}", *step)
    text = "\n".join(f"  {line}" for line in written.lines)
    program = program_of(f"HloModule m\n{LOOPS}ENTRY %main () -> f32[] {{\n{text}\n}}\n")

    def over(each: Instruction) -> Members | None:
        return members_of(each, Slices(tuple(DEVICES), (0,)))

    found = alike(program, [of_shards(axes, SIZES) for axes in (one, other)], over, len(DEVICES))
    are_exact = not any(step in ("swap", "mix") for step, _, _ in steps)
    for name, value in written.held.items():
        if len(value[0]) != 1:
            continue
        (told,) = found[Ref("main", name)]
        for a, b in product(DEVICES, DEVICES):
            assert told[a] != told[b] or value[a] == value[b], name
        for value in written.rounds.get(name, ()):
            for a, b in product(DEVICES, DEVICES):
                assert told[a] != told[b] or value[a] == value[b], "in some round"
        if are_exact:
            assert told == found_alike(written.held[name]), name


@given(AXES)
def test_shards_differ_along_the_axes_that_split(axes: frozenset[str]) -> None:
    assert differing(of_shards(axes, SIZES), SIZES) == Differs(axes, len(axes) == len(SIZES))


def test_halves_of_an_axis_differ_along_it_and_not_everywhere() -> None:
    halves = (0, 1, 0, 1, 4, 5, 4, 5)
    assert differing(halves, SIZES) == Differs(frozenset(SIZES), False)
