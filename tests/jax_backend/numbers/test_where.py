"""How values of devices stand for that of one, and where the first wrong one is."""

from __future__ import annotations

import numpy as np
import pytest

from shardspec.ir.step import Place
from shardspec.jax_backend.numbers.rerun import End, Mark, Watched
from shardspec.jax_backend.numbers.where import _state, first_difference

ONE = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
PART = ONE * 0.25


@pytest.mark.parametrize(
    ("many", "state"),
    [
        (np.stack([ONE, ONE]), "same"),
        (np.stack([ONE[:2], ONE[2:]]), "split"),
        (np.stack([ONE[:, :3], ONE[:, 3:]]), "split"),
        (np.stack([PART, ONE - PART]), "sum"),
        (np.stack([2 * PART, 2 * ONE - 2 * PART]), "mean"),
        (np.stack([ONE, ONE - 1]), "largest"),
        (np.stack([2 * ONE, 2 * ONE]), "larger"),
        (np.stack([2 * ONE[:2], 2 * ONE[2:]]), "larger"),
        (np.stack([ONE[2:], ONE[:2]]), "wrong"),
        (np.stack([ONE, 2 * ONE]), "wrong"),
    ],
)
def test_how_two_devices_stand_for_one(many: np.ndarray, state: str) -> None:
    assert _state(ONE[None], many)[0] == state


def test_parts_of_an_exchange_stand_for_one_device() -> None:
    """What an all-to-all gives has the experts of one device and the tokens of all."""
    one = ONE.reshape(1, 4, 6)  # [devices, experts, tokens]
    sent = np.stack([ONE[:2].reshape(2, 2, 3), ONE[2:].reshape(2, 2, 3)]).swapaxes(1, 2)
    assert _state(one[None], sent)[0] == "split"
    gathered = np.stack([np.stack([ONE[:, :3], ONE[:, 3:]])] * 2)
    assert _state(ONE[None, None], gathered)[0] == "same"
    assert _state(ONE[None, None], gathered[:, ::-1])[0] == "wrong"


def test_a_masked_score_says_nothing_of_the_size_of_others() -> None:
    masked = ONE.copy()
    masked[:, 0] = np.finfo("float32").min
    other = masked.copy()
    other[:, 1] += 1
    assert _state(masked[None], np.stack([masked, masked]))[0] == "same"
    assert _state(masked[None], np.stack([other, other]))[0] == "wrong"


def mark(primitive: str, line: int, *sources: int) -> Mark:
    return Mark(primitive, Place("step.py", line), ("devices",), sources)


def test_a_part_used_as_whole_is_named_with_the_line_that_made_it() -> None:
    marks = [mark("dot_general", 3), mark("mul", 4, 0), mark("exp", 5, 1)]
    one = Watched(marks, [ONE[None], 2 * ONE[None], np.exp(2 * ONE)[None]], [(2,)], [])
    parts = np.stack([PART, ONE - PART])
    many = Watched(marks, [parts, 2 * parts, np.exp(2 * parts)], [(2,)], [])
    found = first_difference(one, many, ["tensor"], [0])
    assert found is not None
    assert (found.place.line, found.operation) == (5, "exp")
    assert found.what == "uses a partial sum over `tensor` (of step.py:3) as if it were complete"


def test_a_part_that_is_returned_as_whole_is_found_at_the_end() -> None:
    marks = [mark("dot_general", 3)]
    parts = np.stack([PART, ONE - PART])
    end = End((0,), frozenset(), Place("step.py", 9))
    one, many = (Watched(marks, [each], [(0,)], [end]) for each in (ONE[None], parts))
    found = first_difference(one, many, ["data"], [0])
    assert found is not None
    assert found.what == "is a partial sum over `data`, and `shard_map` returns it as complete"


def test_an_output_that_differs_by_little_is_gone_back_from() -> None:
    """A wrong update of a parameter is small beside it."""
    marks = [mark("dot_general", 2), mark("psum", 3, 0), mark("sub", 4, 1)]
    one = Watched(marks, [ONE[None], ONE[None], (1e6 + ONE)[None]], [(2,)], [])
    half = np.stack([ONE * 0.5, ONE * 1.5])
    twice = np.stack([2 * ONE, 2 * ONE])
    many = Watched(marks, [half, twice, 1e6 + twice], [(2,)], [])
    found = first_difference(one, many, ["data"], [0])
    assert found is not None
    assert (found.place.line, found.operation) == (3, "psum")
    assert found.what.startswith("sums over `data` what is to be averaged")


def test_what_has_a_reason_comes_before_what_only_differs() -> None:
    marks = [mark("gather", 2), mark("reduce_sum", 3), mark("sub", 4, 0, 1)]
    odd, parts = np.stack([ONE + 1, ONE - 2]), np.stack([PART, ONE - PART])
    one = Watched(marks, [ONE[None], ONE[None], (ONE * 3)[None]], [(0,), (2,)], [])
    many = Watched(marks, [odd, parts, parts * 3 + 1], [(0,), (2,)], [])
    marks[2] = mark("sub", 4, 1)
    found = first_difference(one, many, ["tensor"], [0, 1])
    assert found is not None
    assert found.place.line == 4
    alone = first_difference(one, many, ["tensor"], [0])
    assert alone is not None
    assert (alone.place.line, alone.what[:27]) == (2, "is the first value that dif")


def test_what_comes_right_again_is_passed_over() -> None:
    marks = [mark("exp", 2), mark("add", 3, 0), mark("sin", 4, 1), mark("cos", 5, 2)]
    odd = np.stack([ONE + 1, ONE - 2])
    one = Watched(marks, [ONE[None]] * 4, [(3,)], [])
    same = np.stack([ONE, ONE])
    found = first_difference(one, Watched(marks, [odd, same, same, odd], [(3,)], []), ["data"], [0])
    assert found is not None
    assert found.place.line == 5


def test_an_error_that_looks_like_rounding_beside_a_large_value_is_gone_back_from() -> None:
    marks = [mark("div", 2), mark("add", 3, 0), mark("sub", 4, 1)]
    odd, large = np.stack([ONE, ONE + 1e-4]), np.stack([20 + ONE, 20 + ONE + 1e-4])
    one = Watched(marks, [ONE[None], 20 + ONE[None], ONE[None]], [(2,)], [])
    found = first_difference(one, Watched(marks, [odd, large, odd], [(2,)], []), ["data"], [0])
    assert found is not None
    assert found.place.line == 2


def test_the_first_iteration_that_is_wrong_decides() -> None:
    """What one iteration makes wrong is wrong in all that follow, from their first line on."""
    wraps = ("iterations",)
    carry, out = (
        Mark(name, Place("step.py", line), wraps, sources)
        for name, line, sources in (("carry", 1, (1,)), ("sin", 2, (0,)))
    )
    wrong = ONE.copy()
    wrong[1:] += 1
    one = Watched([carry, out], [ONE, ONE], [(1,)], [])
    many = Watched([carry, out], [wrong, ONE + 1], [(1,)], [])
    found = first_difference(one, many, ["data"], [0])
    assert found is not None
    assert found.place.line == 2


@pytest.mark.parametrize("primitive", ["cumsum", "iota"])
def test_the_order_on_one_device_is_no_fault_before_an_exchange(primitive: str) -> None:
    """A device counts its own tokens; that they reach another expert shows at the exchange."""
    marks = [mark(primitive, 2), mark("mul", 3, 0), mark("all_to_all", 4, 1), mark("sin", 5, 2)]
    odd = np.stack([ONE + 1, ONE - 2])
    one = Watched(marks, [ONE[None]] * 4, [(3,)], [])
    found = first_difference(one, Watched(marks, [odd] * 4, [(3,)], []), ["expert"], [0])
    assert found is not None
    assert (found.place.line, found.operation) == (4, "all_to_all")
    assert found.what == "is the first exchange over `expert` that gives other values"


def test_a_ring_is_named_by_what_it_sends() -> None:
    """In a ring each device has parts of the answer, in right rings too."""
    wraps = ("devices", "iterations")
    marks = [
        Mark(name, Place("step.py", line), wraps, sources)
        for name, line, sources in (("exp", 2, ()), ("ppermute", 3, (0,)), ("add", 4, (0, 1)))
    ]
    own, other = np.stack([[ONE], [ONE]])[:1], np.stack([[ONE + 1], [ONE - 2]])
    one, many = (Watched(marks, [each] * 3, [(2,)], []) for each in (own, other))
    found = first_difference(one, many, ["context"], [0])
    assert found is not None
    assert (found.place.line, found.what[:28]) == (3, "is in a ring over `context` ")


def test_a_ring_is_named_whose_first_iteration_is_right_until_it_sends() -> None:
    """What a ring sends the wrong way is wrong in the second iteration, and is no source before."""
    wraps = ("devices", "iterations")
    index = frozenset((Place("step.py", 1),))
    marks = [mark("iota", 1)] + [
        Mark(name, Place("step.py", line), wraps, sources, index if name == "exp" else frozenset())
        for name, line, sources in (("carry", 2, (3,)), ("exp", 3, (0, 1)), ("ppermute", 4, (1,)))
    ]
    own, same = np.stack([[ONE]]), np.stack([[ONE], [ONE]])
    count, odd = np.arange(4), np.stack([[ONE + 1], [ONE - 2]])
    one = Watched(marks, [count[None], own, own, own], [(2,)], [])
    counts = np.stack([count[:2], count[:2]])
    many = Watched(marks, [counts, same, odd, odd], [(2,)], [])
    found = first_difference(one, many, ["context"], [0])
    assert found is not None
    assert (found.place.line, found.what[:28]) == (4, "is in a ring over `context` ")


def test_the_form_of_what_devices_exchange_is_named() -> None:
    marks = [mark("all_to_all", 2), mark("reshape", 3, 0), mark("sin", 4, 1)]
    same, odd = np.stack([ONE, ONE]), np.stack([ONE[::-1], ONE[::-1]])
    one = Watched(marks, [ONE[None]] * 3, [(2,)], [])
    found = first_difference(one, Watched(marks, [same, odd, odd], [(2,)], []), ["expert"], [0])
    assert found is not None
    told = "orders what devices along `expert` have exchanged differently from one device"
    assert (found.place.line, found.what) == (3, told)


@pytest.mark.parametrize(("primitive", "line"), [("div", 3), ("psum", 2)])
def test_gradients_of_a_local_mean_are_larger_and_no_fault(primitive: str, line: int) -> None:
    """Only an exchange that makes them so is one: it adds up what is complete."""
    marks = [mark(primitive, 2), mark("psum", 3, 0), mark("sin", 4, 1)]
    larger, odd = np.stack([2 * ONE[:2], 2 * ONE[2:]]), np.stack([ONE + 1, ONE + 1])
    one = Watched(marks, [ONE[None]] * 3, [(2,)], [])
    found = first_difference(one, Watched(marks, [larger, odd, odd], [(2,)], []), ["data"], [0])
    assert found is not None
    assert found.place.line == line


def test_a_value_by_the_index_of_a_device_names_the_line_of_the_index() -> None:
    marks = [Mark("div", Place("step.py", 3), ("devices",), (), frozenset((Place("step.py", 2),)))]
    one = Watched(marks, [ONE[None]], [(0,)], [])
    found = first_difference(
        one, Watched(marks, [np.stack([ONE, ONE + 1])], [(0,)], []), ["a"], [0]
    )
    assert found is not None
    assert found.what.endswith(", by the index of a device at step.py:2")


def test_choices_in_a_pipeline_are_compared_as_numbers() -> None:
    wraps = ("devices", "iterations")
    sent = Mark("ppermute", Place("step.py", 1), wraps, ())
    chosen = Mark("lt", Place("step.py", 2), wraps, (0,))
    ones, twos = np.ones((1, 2, 4), bool), np.zeros((2, 3, 4), bool)
    one = Watched([sent, chosen], [np.ones((1, 2, 4)), ones], [(1,)], [])
    many = Watched([sent, chosen], [np.ones((2, 3, 4)), twos], [(1,)], [])
    found = first_difference(one, many, ["stage"], [0])
    assert found is not None
    assert (found.place.line, "in a pipeline" in found.what) == (2, True)
