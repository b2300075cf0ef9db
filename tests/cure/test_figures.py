"""Which of two figures is better, and which nobody tells apart: laws, and figures of a cost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardspec
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.spec_step import stated_cost
from shardspec.cure.figures import LEAST_GAIN, Figures
from shardspec.ir.step import Unknown
from tests.search.specs import TEXT

BASE = Figures(True, 1.0, (("fsdp", 1000.0),), 1000.0, 0.5)

sizes = st.floats(0, 1e12)
figures = st.builds(
    Figures,
    st.sampled_from((True, False, None)),
    st.none() | st.floats(1e-6, 1e3) | st.floats(0.9, 1.1),
    st.lists(st.tuples(st.sampled_from(("fsdp", "tensor")), sizes), max_size=2).map(tuple),
    sizes,
    st.floats(0, 10),
)


@given(figures)
def test_nothing_is_better_than_itself(one: Figures) -> None:
    assert not one.is_better(one)
    assert not one.is_better(one, 0.0)


@given(figures, figures)
def test_of_two_one_at_most_is_better(one: Figures, other: Figures) -> None:
    assert not (one.is_better(other) and other.is_better(one))


@given(figures, figures)
def test_what_fits_is_better_than_what_does_not(one: Figures, other: Figures) -> None:
    fitting, other = one._replace(fits=one.fits is not False or None), other._replace(fits=False)
    assert fitting.is_better(other)
    assert not other.is_better(fitting)
    assert fitting.rank < other.rank


@given(figures, figures, st.floats(0, 1), st.floats(0, 1))
def test_more_is_asked_by_a_larger_share(
    one: Figures, other: Figures, share: float, more: float
) -> None:
    if one.is_better(other, max(share, more)):
        assert one.is_better(other, min(share, more))


@given(figures, figures)
def test_what_is_not_known_not_to_fit_counts_as_what_fits(one: Figures, other: Figures) -> None:
    assume(one.fits is not False)
    known, unknown = one._replace(fits=True), one._replace(fits=None)
    assert known.rank == unknown.rank
    assert known.is_better(other) == unknown.is_better(other)
    assert other.is_better(known) == other.is_better(unknown)


@pytest.mark.parametrize(
    ("seconds", "sent", "memory", "expected"),
    [
        (0.93, 1000.0, 1000.0, True),
        (0.95, 1000.0, 1000.0, False),
        (0.95, 10.0, 10.0, True),  # no slower: fewer bytes count
        (0.93, 5000.0, 5000.0, True),
        (1.02, 10.0, 10.0, False),
        (1.005, 930.0, 1000.0, True),  # the same time: bytes count
        (0.995, 950.0, 1000.0, False),
        (1.0, 930.0, 5000.0, True),
        (1.0, 1000.0, 930.0, True),  # and the same bytes: memory counts
        (1.0, 1000.0, 950.0, False),
        (None, 930.0, 1000.0, True),
        (None, 950.0, 10.0, False),
        (None, 1000.0, 930.0, True),
    ],
)
def test_a_line_earns_its_share_of_what_counts(
    seconds: float | None, sent: float, memory: float, expected: bool
) -> None:
    one = Figures(True, seconds, (("fsdp", sent),), memory)
    assert one.is_better(BASE) is expected
    assert one.is_better(BASE._replace(fits=None)) is expected


def test_a_time_that_one_alone_has_is_not_compared() -> None:
    unknown = BASE._replace(seconds=None)
    assert not BASE.is_better(unknown)
    assert not unknown.is_better(BASE)
    assert BASE.rank < unknown.rank
    assert unknown.rank[1] == math.inf


def test_the_share_is_that_which_is_asked_for() -> None:
    assert BASE._replace(seconds=0.97).is_better(BASE, 0.02)
    assert not BASE._replace(seconds=0.985).is_better(BASE, 0.02)


def test_the_rank_is_by_fit_time_bytes_and_memory_in_turn() -> None:
    ordered = [
        Figures(None, 1.0, (("a", 1.0),), 1.0),
        Figures(True, 1.0, (("a", 1.0),), 2.0),
        Figures(True, 1.0, (("a", 1.0), ("b", 1.0)), 0.0),
        Figures(True, 2.0, (), 0.0),
        Figures(True, None, (), 0.0),
        Figures(False, 0.5, (), 0.0),
    ]
    mixed = [ordered[at] for at in (3, 0, 5, 1, 4, 2)]
    assert sorted(mixed, key=lambda each: each.rank) == ordered


def test_bytes_are_those_of_all_axes() -> None:
    assert Figures(True, 1.0, (("a", 2.0), ("b", 3.0)), 0.0).bytes == 5.0


def test_a_key_is_the_same_where_nobody_sees_a_difference() -> None:
    assert BASE._replace(seconds=1.0001, memory=1000.1, compute=9.0).key == BASE.key
    assert BASE._replace(sent=(("tensor", 999.99),)).key == BASE.key
    others = [
        *(BASE._replace(fits=False), BASE._replace(fits=None), BASE._replace(seconds=1.02)),
        *(BASE._replace(seconds=None), BASE._replace(sent=(("fsdp", 1010.0),))),
        BASE._replace(memory=1020.0),
    ]
    assert len({BASE.key, *(each.key for each in others)}) == len(others) + 1


def test_a_step_that_computes_all_the_time_cannot_improve() -> None:
    assert BASE.could_improve(0.93)
    assert not BASE.could_improve(1 - LEAST_GAIN + 0.001)
    assert BASE._replace(fits=False).could_improve(1.0)
    assert BASE._replace(seconds=None).could_improve(1.0)


@pytest.fixture(scope="module")
def cost() -> Cost:
    return stated_cost(shardspec.loads(TEXT).compile(target="slice"))


def test_figures_of_a_cost(cost: Cost) -> None:
    found = Figures.of(cost)
    assert cost.step is not None
    assert cost.time is not None
    assert found.fits is cost.memory.fits
    assert found.seconds == cost.time.step_seconds
    assert found.compute == cost.time.compute_seconds
    assert found.memory == cost.memory.total.bytes
    wire = {"+".join(axes): size for axes, size in cost.step.wire_bytes.items()}
    assert dict(found.sent) == pytest.approx({axes: size for axes, size in wire.items() if size})
    assert found.bytes > 0
    assert sum(size for *_, size in found.places) == pytest.approx(found.bytes)
    assert [size for *_, size in found.places] == sorted(
        (size for *_, size in found.places), reverse=True
    )
    assert {(file, line) for file, line, _ in found.places} == {
        (each.place.file, each.place.line) for each in cost.step.collectives
    }


def test_a_time_that_is_not_counted_whole_is_unknown(cost: Cost) -> None:
    assert cost.step is not None
    unknown = Unknown("a kernel", "nothing says what it takes", ("time",), cost.step.place)
    half = cost_of(cost.plan, replace(cost.step, unknown=(unknown,)))
    assert Figures.of(half).seconds is None
    assert Figures.of(half).bytes == Figures.of(cost).bytes


def test_a_plan_alone_sends_nothing_and_takes_no_known_time(cost: Cost) -> None:
    found = Figures.of(cost_of(cost.plan, None))
    assert (found.seconds, found.sent, found.places, found.compute) == (None, (), (), 0.0)
    assert found.memory > 0


exact = st.integers(0, 1000).map(float)
known = st.builds(
    Figures,
    st.just(None),
    exact,
    st.dictionaries(st.sampled_from(("fsdp", "tensor")), exact).map(lambda d: tuple(d.items())),
    exact,
    exact,
    st.dictionaries(st.sampled_from((("a.py", 1), ("b.py", 2))), exact).map(
        lambda sizes: tuple((*place, size) for place, size in sizes.items())
    ),
)


@given(known, known, st.integers(0, 9))
@settings(max_examples=40)
def test_a_larger_step_goes_on_in_a_line(one: Figures, other: Figures, times: int) -> None:
    found = one.onward(other, times)

    def on(few: float, many: float) -> float:
        return few * (1 - times) + times * many

    assert found.fits is None
    assert found.seconds == on(one.seconds or 0, other.seconds or 0)
    assert found.memory == on(one.memory, other.memory)
    assert found.compute == on(one.compute, other.compute)
    few, many, sent = dict(one.sent), dict(other.sent), dict(found.sent)
    assert sent.keys() == few.keys() | many.keys()
    assert all(sent[key] == max(0, on(few.get(key, 0), many.get(key, 0))) for key in sent)
    few, many, sent = ({each[:2]: each[2] for each in f.places} for f in (one, other, found))
    assert sent.keys() == few.keys() | many.keys()
    assert all(sent[key] == max(0, on(few.get(key, 0), many.get(key, 0))) for key in sent)
    unknown = one._replace(seconds=None)
    assert unknown.onward(other, times).seconds is None
    assert one.onward(other._replace(seconds=None), times).seconds is None


@given(known, st.sampled_from((0.97, 0.985, 1.0, 1.005, 1.03)), st.booleans())
@settings(max_examples=40)
def test_models_are_alike_within_a_hundredth(one: Figures, ratio: float, is_time: bool) -> None:
    scaled = tuple((axis, size * ratio) for axis, size in one.sent)
    other = (
        one._replace(seconds=(one.seconds or 0) * ratio) if is_time else one._replace(sent=scaled)
    )
    is_changed = ratio != 1 and bool(one.seconds if is_time else one.bytes)
    assert one.is_like(other) == other.is_like(one) == (not is_changed or ratio == 1.005)
    assert not one._replace(seconds=None).is_like(one._replace(seconds=1.0))
