"""Small sizes: one for each size, and relations between sizes stay."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st

from shardspec.jax_backend.numbers import small as smalls
from shardspec.jax_backend.numbers.comparing import facts_of
from shardspec.jax_backend.numbers.small import ROOMY, TIGHT, Relations, Scale, small_sizes, smaller

SIZES = st.integers(1, 200_000)


@given(st.sets(SIZES, max_size=12), st.sets(SIZES, max_size=3), st.sampled_from([ROOMY, TIGHT]))
def test_sizes_become_smaller_and_those_kept_do_not(
    sizes: set[int], kept: set[int], scale: Scale
) -> None:
    found = smaller(sizes, Relations(), kept, scale)
    assert found.keys() <= sizes - kept
    assert all(size > scale.stays and small < size for size, small in found.items())


@given(st.integers(2, 64), st.integers(2, 256), st.sets(SIZES, max_size=6))
def test_a_product_stays_the_product(heads: int, width: int, others: set[int]) -> None:
    whole = heads * width
    relations = Relations(((whole, (heads, width)),))
    found = smaller({heads, width, whole, *others}, relations)
    small = [found.get(each, each) for each in (heads, width, whole)]
    assert math.prod(small[:2]) == small[2]


@given(st.lists(st.integers(17, 4096), min_size=2, max_size=4))
def test_a_sum_stays_the_sum(parts: list[int]) -> None:
    whole = sum(parts)
    found = smaller({*parts, whole}, Relations((), ((whole, tuple(parts)),)))
    near = any(0 < whole - each <= 4 for each in parts)
    assert near or found.get(whole, whole) == sum(found.get(each, each) for each in parts)


@given(st.integers(17, 8192))
def test_one_more_than_another_stays_one_more(length: int) -> None:
    found = smaller({length, length + 1}, Relations())
    assert found.get(length + 1, length + 1) == found.get(length, length) + 1


def test_small_units_still_divide() -> None:
    found = smaller({12, 768, 3072}, Relations())
    assert all(small % 12 == 0 for small in found.values())


def test_layers_are_known_by_their_name_unless_something_else_has_their_number() -> None:
    alone = small_sizes([("LAYERS", 80), ("HEADS", 64)], {64})
    assert (alone.of(80), alone.named(80, "LAYERS")) == (4, 4)
    shared = small_sizes([("LAYERS", 32), ("HEADS", 32)], {32})
    assert (shared.of(32), shared.named(32, "num_layers"), shared.named(32, "HEADS")) == (16, 4, 16)
    kept = small_sizes([("LAYERS", 80)], set(), Relations(), {80})
    assert (kept.of(80), kept.named(80, "LAYERS")) == (80, None)


def test_a_size_of_which_devices_have_parts_is_larger_than_what_divides_a_part() -> None:
    found = smaller({256, 65536}, split=(65536,))
    assert found[65536] % (4 * found[256]) == 0


def test_slices_side_by_side_are_a_sum_and_others_are_none() -> None:
    def parts(*bounds: tuple[int, int]) -> dict[tuple[int, tuple[int, ...]], None]:
        program = jax.make_jaxpr(lambda x: [x[:, low:high] for low, high in bounds])
        return facts_of(program(jnp.zeros((7, 20))), ()).sums

    assert list(parts((0, 12), (12, 16), (16, 20))) == [(20, (12, 4, 4))]
    assert list(parts((12, 20), (0, 12))) == [(20, (12, 8))]
    assert not parts((0, 12), (12, 16))  # a rest
    assert not parts((0, 12), (10, 20))  # twice the same
    assert not parts((0, 20))
    assert not parts((2, 12), (12, 20))


@given(st.sets(st.integers(1, 300), max_size=12))
def test_a_size_is_the_product_of_two_that_are_there_the_nearest_to_each_other(
    sizes: set[int],
) -> None:
    small = ROOMY.factor
    pairs = {
        whole: [(a, whole // a) for a in sizes if a > small and whole % a == 0 and a * a <= whole]
        for whole in sizes
    }
    wanted = {
        whole: max(pair for pair in found if pair[1] in sizes)
        for whole, found in pairs.items()
        if any(pair[1] in sizes for pair in found)
    }
    assert dict(smalls.products_among(sizes)) == wanted


@given(st.integers(1, 40), st.integers(1, 9))
def test_what_a_program_computes_is_counted_once_for_each_time_it_runs(
    size: int, times: int
) -> None:
    def once(x: jax.Array) -> jax.Array:
        return x + x

    def often(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda y, _: (y + y, None), x, None, length=times)[0]

    x = jax.ShapeDtypeStruct((size,), jnp.float32)
    assert facts_of(jax.make_jaxpr(lambda x: x)(x), [x]).elements == 0
    assert facts_of(jax.make_jaxpr(once)(x), [x]).elements == size
    assert times * size <= facts_of(jax.make_jaxpr(often)(x), [x]).elements <= (times + 1) * size


@given(st.integers(2, 20), st.integers(2, 20), st.sampled_from([ROOMY, TIGHT]))
def test_a_product_stays_the_product_where_a_factor_is_small(
    one: int, other: int, scale: Scale
) -> None:
    whole = one * other * 50
    relations = Relations(((whole, (one, other * 50)), (other * 50, (other, 50))))
    found = smaller({one, other, 50, other * 50, whole}, relations, (), scale)
    at = {each: found.get(each, each) for each in (one, other, 50, other * 50, whole)}
    assert at[whole] == at[one] * at[other * 50]
    assert at[other * 50] == at[other] * at[50]
