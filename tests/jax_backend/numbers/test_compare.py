"""Beyond rounding or not, and by which ratio."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.jax_backend.numbers.runs import Result, difference, differences, ratio_of

VALUES = np.random.default_rng(1).standard_normal((16, 8)).astype("float32")


def noisy(values: Any, share: float) -> Any:
    random = np.random.default_rng(2)
    return (values * (1 + share * random.standard_normal(values.shape))).astype(values.dtype)


@given(st.floats(1e-7, 1e-3))
def test_what_is_as_far_as_rounding_is_no_difference(share: float) -> None:
    one, other = noisy(VALUES, share), noisy(VALUES, share)
    assert difference(VALUES, one, [other]) is None


@given(st.floats(0.01, 100).filter(lambda ratio: abs(ratio - 1) > 0.01))
def test_a_ratio_is_found(ratio: float) -> None:
    found = noisy(VALUES * np.float32(ratio), 1e-6)
    assert difference(VALUES, found, [noisy(VALUES, 1e-7)]) is not None
    assert ratio_of(VALUES, found) == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_ratio_is_of_what_is_finite_in_both(value: float) -> None:
    one, found = VALUES.copy(), 2 * VALUES
    one[0, 0], found[5, 5] = value, value
    assert ratio_of(one, found) == pytest.approx(2)


def test_one_wrong_element_is_a_difference() -> None:
    found = VALUES.copy()
    found[3, 4] += 0.1
    off, noise = difference(VALUES, found, [noisy(VALUES, 1e-7)]) or (0, 0)
    assert off > 0.01 > noise
    assert ratio_of(VALUES, found) is None


def test_integers_may_flip_as_often_as_rounding_flips_them() -> None:
    tokens = np.arange(100)
    once, often = tokens.copy(), tokens.copy()
    once[0], often[:50] = -1, -1
    assert difference(tokens, once, [once]) is None
    assert difference(tokens, often, [once]) is not None
    assert difference(tokens, once, [tokens]) is not None


def test_a_small_change_of_a_large_weight_is_a_difference_in_float64() -> None:
    before, change = VALUES.astype("float64"), 1e-7 * VALUES[::-1]
    once, twice = before + change, before + 2 * change
    assert difference(once.astype("float32"), twice.astype("float32"), []) is None
    assert difference(once, twice, [], change=1e-7) is not None
    assert difference(once, before + change * (1 + 1e-8), [], change=1e-7) is None


def test_what_is_all_rounding_in_float64_is_not_compared() -> None:
    left = 1e-17 * VALUES.astype("float64")
    assert difference(left, 1e3 * left, [noisy(left, 1e-3)]) is None
    assert difference(left, 1e3 * left, [noisy(left, 1e-12)]) is not None


def test_what_is_not_finite_must_be_so_in_both() -> None:
    gone = VALUES.copy()
    gone[0, 0] = np.nan
    assert difference(gone, gone, []) is None
    assert difference(gone, VALUES, []) is not None
    assert difference(VALUES, gone, []) is not None


def test_devices_that_disagree_are_a_difference() -> None:
    same, apart = Result(VALUES), Result(VALUES, devices_differ=True)
    program: Any = SimpleNamespace(results=["a", "b"], passed_on=())
    found = list(differences(program, [], [[same, same]], [[same, apart]], [[same, same]]))
    assert [(each.path, each.call, each.devices_differ) for each in found] == [("b", 1, True)]


DIFFERENT = st.integers(1, 8).flatmap(
    lambda size: st.tuples(
        *[st.lists(st.sampled_from((0.0, 1.0, -3.0, 8.0, np.inf)), min_size=size, max_size=size)]
        * 2
    )
)


@given(DIFFERENT, st.sampled_from(("float32", "float64", "int32")))
def test_a_difference_is_a_share_of_the_largest_or_of_the_elements(
    made: tuple[list[float], list[float]], dtype: str
) -> None:
    one, other = (np.nan_to_num(np.array(each), posinf=99) for each in made)
    if dtype != "int32":
        one, other = (np.array(each) for each in made)
    found = difference(one.astype(dtype), other.astype(dtype), [])
    if dtype == "int32":
        off = float((one != other).mean())
    elif (np.isfinite(one) != np.isfinite(other)).any():
        off = 1.0 if np.isfinite(one).any() else 0.0
    else:
        kept = np.isfinite(one)
        far = float(np.abs(one[kept] - other[kept]).max()) if kept.any() else 0.0
        largest = float(np.abs(one[kept]).max()) if kept.any() else 0.0
        off = far / largest if largest else float(far > 0)
    assert found == (pytest.approx((off, 0.0)) if off else None)


@given(st.integers(0, 4), st.integers(0, 4))
def test_arrays_of_other_sizes_differ_in_all(one: int, other: int) -> None:
    found = difference(np.zeros(one, "float32"), np.zeros(other, "float32"), [])
    assert found == (None if one == other else (1.0, 0.0))
