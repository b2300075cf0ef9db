"""Both sides of a product follow from its parent by names: for any rank, order and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.ir.plan import ShardingPlan

PRIMES = (2, 3, 5, 7, 11, 13)
AXES = "abcde"


def plan_of(text: str) -> ShardingPlan:
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert faults == (), faults
    return pipeline.compile_plans(spec)[0]


class Factorization(NamedTuple):
    """A weight and its two sides: which of its dimensions each holds, in order.

    Attributes:
      read: what is summed over; `shared` is on both sides.
      joins: of each side, whether what it holds alone is one dimension.
      is_torch: whether the side that holds `read` stands behind the `@`.
      stack: where layers are stacked, in all three.
    """

    rank: int
    read: tuple[int, ...]
    shared: tuple[int, ...]
    joins: tuple[bool, bool]
    is_torch: bool
    stack: int | None

    @property
    def made(self) -> tuple[int, ...]:
        """Return the dimensions that are not read."""
        return tuple(at for at in range(self.rank) if at not in (*self.read, *self.shared))

    def sides(self) -> dict[str, list[tuple[int, ...] | None]]:
        """Return those of the weight that each dimension of a side is; None for the rank."""
        found: dict[str, list[tuple[int, ...] | None]] = {}
        for name, own, joins in (("A", self.read, self.joins[0]), ("B", self.made, self.joins[1])):
            held: list[tuple[int, ...] | None] = [own] if joins else [(at,) for at in own]
            is_left = (name == "A") != self.is_torch
            dims = [*held, None] if is_left else [None, *held]
            found[name] = [*((at,) for at in self.shared), *dims]
        return found

    def text(self, sizes: Sequence[int], rank: int) -> str:
        """Return the spec, with one mesh axis for each dimension of the weight."""

        def shape(dims: Sequence[tuple[int, ...] | None]) -> list[int]:
            found = []
            for dim in dims:
                size = rank if dim is None else 1
                for at in dim or ():
                    size *= sizes[at]
                found.append(size)
            return found if self.stack is None else [*found[: self.stack], 6, *found[self.stack :]]

        a = f"A[{' '.join(AXES[at] for at in sorted((*self.shared, *self.read)))}]"
        b = f"B[{' '.join(AXES[at] for at in sorted((*self.shared, *self.made)))}]"
        product = f"{b} @ {a}" if self.is_torch else f"{a} @ {b}"
        lines = [f"  w: f32{shape([(at,) for at in range(self.rank)])}"]
        lines += [f"  lora_{name}: f32{shape(dims)}" for name, dims in self.sides().items()]
        scan = "" if self.stack is None else f'scan: {{"**": layers@{self.stack}}}\n'
        mesh = ", ".join(f"m{at}: 2" for at in range(self.rank))
        rules = ", ".join(f"{AXES[at]} -> m{at}" for at in range(self.rank))
        return (
            f"shardspec: 1\nmesh: {{{mesh}}}\nrules: [{rules}]\n{scan}"
            f"params: {{w: {' '.join(AXES[: self.rank])}}}\n"
            f'derive: {{"lora_{{A,B}}": "from w = {product}"}}\narrays:\n' + "\n".join(lines)
        )

    def expected(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the mesh axes: those of the weight's dimension, of the first of those in one."""
        found = [(f"m{dim[0]}",) if dim else () for dim in self.sides()[name]]
        return tuple(
            found if self.stack is None else [*found[: self.stack], (), *found[self.stack :]]
        )


@st.composite
def factorizations(draw: st.DrawFn) -> Factorization:
    rank = draw(st.integers(2, 5))
    roles = draw(st.lists(st.sampled_from("rms"), min_size=rank, max_size=rank))
    chosen = draw(st.permutations(range(rank)))
    roles[chosen[0]], roles[chosen[1]] = "r", "m"
    read, shared = (tuple(at for at in range(rank) if roles[at] == role) for role in "rs")
    joins = draw(st.tuples(st.booleans(), st.booleans()))
    found = Factorization(rank, read, shared, joins, draw(st.booleans()), None)
    least = min(len(dims) for dims in found.sides().values())
    return found._replace(stack=draw(st.none() | st.integers(0, least)))


def _is_unclear(found: Factorization) -> bool:
    """Say whether the own dimensions of a side may be joined, or what is shared with the rank."""
    return len(found.shared) == 1 and any(
        joined and len(own) == 2
        for joined, own in zip(found.joins, (found.read, found.made), strict=True)
    )


@given(factorizations(), st.permutations(PRIMES))
def test_sizes_never_decide(found: Factorization, primes: list[int]) -> None:
    """sizes: all equal or all distinct, the answer is the same, and what the product says."""
    equal = [2] * found.rank
    distinct = [2 * prime for prime in primes[: found.rank]]
    for sizes, rank in ((equal, 2), (distinct, 2 * primes[-1])):
        plan = plan_of(found.text(sizes, rank))
        for name in "AB":
            side = plan[f"lora_{name}"]
            assert side.derivation is not None
            if side.derivation.fault and _is_unclear(found):
                continue
            assert side.derivation.fault == ""
            assert side.partition_spec.dims == found.expected(name)


SPEC = """\
shardspec: 1
mesh: {{data: 2, model: 4}}
rules: [embed -> data, heads -> model, low -> data]
params: {{"**/weight": {names}}}
derive: {{"**/lora_{{A,B}}": "from **/weight {product}", "**/norm": "from **/weight {dims}"}}
arrays: {{x/weight: "f32{weight}", x/lora_A: "f32{a}", x/lora_B: "f32{b}", x/norm: "f32{norm}"}}
"""


def sides(
    names: str = "heads embed",
    product: str = "[out in] = B @ A[in]",
    dims: str = "[out in] dims out",
    weight: str = "[8, 8]",
    a: str = "[8, 8]",
    b: str = "[8, 8]",
    norm: str = "[8]",
) -> list[str]:
    """Return the answer for each of the sides, and for what is as long as the outputs."""
    text = SPEC.format(names=names, product=product, dims=dims, weight=weight, a=a, b=b, norm=norm)
    plan = plan_of(text)
    found = []
    for path in ("x/lora_A", "x/lora_B", "x/norm"):
        derivation = plan[path].derivation
        assert derivation is not None
        fault = derivation.fault.partition(": ")[2] or derivation.fault
        found.append(fault or str(plan[path].partition_spec))
    return found


TORCH = ["P(None, 'data')", "P('model', None)", "P('model')"]
FUSED = {
    "names": "_ heads embed",
    "product": "[e out in] = B[e out] @ A[e in]",
    "dims": "[e out in] dims out",
    "weight": "[8, 8, 8]",
}


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        ({}, TORCH),
        # What the weight's own names say comes first: Conv1D of GPT-2 is [in, out].
        ({"names": "in:embed out:heads"}, TORCH),
        ({"names": "in:embed heads"}, TORCH),
        ({"names": "embed out:heads"}, TORCH),
        ({"names": "in:embed heads", "product": "[] = B @ A[in]", "dims": "[] dims out"}, TORCH),
        ({"product": "= B @ A[embed]"}, TORCH),
        ({"product": "= B[heads] @ A"}, TORCH),
        (
            {"product": "= B @ A[embed] rank low"},
            ["P(None, 'data')", "P('model', 'data')", TORCH[2]],
        ),
        (
            {
                "names": "heads embed _ _",
                "product": "[out in in in] = B @ A[in]",
                "weight": "[8, 8, 3, 3]",
                "a": "[8, 8, 3, 3]",
                "b": "[8, 8, 1, 1]",
                "dims": "[out in x y] dims _ out _ _",
                "norm": "[1, 8, 1, 1]",
            },
            [
                "P(None, 'data', None, None)",
                "P('model', None, None, None)",
                "P(None, 'model', None, None)",
            ],
        ),
        # Experts of PEFT, of which each has its ranks: before them in A, and behind them in B.
        (FUSED | {"a": "[64, 8]", "b": "[8, 64]"}, TORCH),
        (
            FUSED | {"names": "heads _ embed", "a": "[64, 8]", "b": "[8, 64]"},
            ["P('model', 'data')", "P(None, None)", "P(None)"],
        ),
    ],
)
def test_answers(given: dict[str, str], answers: list[str]) -> None:
    assert sides(**given) == answers


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({"product": "= B @ A[in]"}, ["none of its dimensions is called `in`"] * 2),
        ({"product": "[] = B @ A[in]"}, ["this entry names none of 2 dimensions"] * 2),
        ({"product": "[x y z] = B @ A[x]"}, ["`[x y z]` names none of 2 dimensions"] * 2),
        ({"names": "embed embed'", "product": "= B @ A[embed]"}, ["name of 2 of its"] * 2),
        ({"product": "[out in] = B[out] @ A[out]"}, ["neither side has dim 1"] * 2),
        ({"product": "[out in] = B[out in] @ A[out in]"}, ["has none of its dimensions alone"] * 2),
        ({"a": "[8, 8, 8]"}, ["so it has 2 dimensions, and not 3"]),
        ({"weight": "[8, 16]"}, ["dim 1 is `1`, so 16, and not 8"]),
    ],
)
def test_what_is_not_said_or_does_not_fit_is_refused(
    given: dict[str, str], faults: list[str]
) -> None:
    for found, fault in zip(sides(**given), faults, strict=False):
        assert fault in found


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("**/lora_a", "from **/w = a[x] @ b", "has no braces `{a,b}`"),
        ("**/lora_{a,b,c}", "from **/w = a[x] @ b", "has no braces `{a,b}`"),
    ],
)
def test_the_pattern_tells_the_sides_apart(key: str, value: str, message: str) -> None:
    _, faults = pipeline.load_text(f'derive: {{"{key}": "{value}"}}\n')
    assert message in faults[0].message


PAIR = """\
extends: {preset}
mesh: {{x: 2, y: 2, z: 2}}
rules: [embed -> x, mlp -> y, expert -> z]
params: {{"**/kernel": {names}, "*.base_layer.weight": {names}}}
arrays: {{{weight}: "f32{shapes[0]}", {a}: "f32{shapes[1]}", {b}: "f32{shapes[2]}"}}
"""
NNX = ("derive/nnx-lora", "q/base_module/kernel", "q/lora_a", "q/lora_b")
PEFT = ("derive/peft", "m.up.base_layer.weight", "m.up.lora_A.weight", "m.up.lora_B.weight")


@pytest.mark.parametrize(
    ("paths", "names", "shapes"),
    [
        (NNX, "embed mlp expert", ("abc", "ar", "r(bc)")),  # LinearGeneral, read as stacked layers
        (NNX, "embed mlp expert", ("abc", "ar", "rbc")),
        (PEFT, "expert mlp embed", ("abc", "(ra)c", "b(ra)")),  # experts, read as a convolution
        (PEFT, "expert out:mlp in:embed", ("abc", "(ra)c", "b(ra)")),
    ],
)
@pytest.mark.parametrize("is_equal", [True, False])
def test_a_side_does_not_fit_alone_by_chance(
    paths: tuple[str, ...], names: str, shapes: tuple[str, ...], is_equal: bool
) -> None:
    """pair: a side is refused where the other one is, whatever the sizes."""
    sizes = (
        dict.fromkeys("abcr", 8) if is_equal else dict(zip("abcr", (6, 10, 14, 22), strict=True))
    )
    found = []
    for shape in shapes:
        dims, product, is_joined = [], 1, False
        for each in shape:
            is_joined = (is_joined or each == "(") and each != ")"
            product *= sizes.get(each, 1)
            if not is_joined:
                dims.append(product)
                product = 1
        found.append(dims)
    preset, weight, a, b = paths
    plan = plan_of(PAIR.format(preset=preset, names=names, weight=weight, a=a, b=b, shapes=found))
    for path in (a, b):
        assert (derivation := plan[path].derivation) is not None
        assert derivation.fault
        assert plan[path].is_replicated


def test_the_ranks_of_both_sides_agree() -> None:
    fault = "the ranks are 16 and 32"
    text = SPEC.format(
        names="heads embed",
        product="[out in] = B @ A[in]",
        dims="[out in] dims out",
        weight=[8, 8],
        a=[16, 8],
        b=[8, 32],
        norm=[8],
    )
    derivation = plan_of(text)["x/lora_A"].derivation
    assert derivation is not None
    assert derivation.fault.endswith(fault)
