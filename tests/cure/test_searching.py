"""Searches over steps that are tables: planted lines are found, and each of an answer counts."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.cure.figures import LEAST_GAIN, Figures
from shardspec.cure.lines import Layout, Line, Site
from shardspec.cure.searching import Found, further, searched
from tests.cure.worlds import BASE, COLUMNS, EXPERTS, LAYOUTS, ROWS, World, line, named, site

SITES = tuple(site(number, weight=-number) for number in range(1, 9))


def found(world: World, sites: tuple[Site, ...] = SITES, most: int = 100) -> Found:
    made = searched(sites, world.price, most)
    assert made is not None
    return made


def singles_of(made: Found) -> list[tuple[Line, Figures]]:
    return [(trial[0], figures) for trial, figures in made.tried if len(trial) == 1]


def best(world: World, sites: tuple[Site, ...] = SITES) -> frozenset[object]:
    answers = found(world, sites).answers
    return frozenset(named(answers[0][0])) if answers else frozenset()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("at", [1, 5, 8])
def test_one_line(at: int, layout: Layout) -> None:
    world = World([([line(at, layout)], 0.5)])
    made = found(world)
    ((trial, figures),) = made.answers
    assert named(trial) == {line(at, layout)}
    assert figures == world.figures(trial)
    assert (made.base, made.sites, made.layouts) == (world.base, 8, 24)
    assert made.together == world.figures(())._replace(
        seconds=100.0 if layout != ROWS else 50.0,
        sent=(("fsdp", 1e6 if layout != ROWS else 5e5),),
    )


def test_each_line_is_tried_alone() -> None:
    world = World([([line(3, COLUMNS)], 0.5), ([line(2)], 0.9)])
    singles = singles_of(found(world))
    assert all(figures == world.figures((one,)) for one, figures in singles)
    assert {one.site.at for one, _ in singles} == {one.at for one in SITES}


def test_of_lines_that_add_up_all_that_earn_their_place() -> None:
    world = World([([line(1)], 0.6), ([line(4, COLUMNS)], 0.7), ([line(6)], 0.9)])
    assert best(world) == {line(1), line(4, COLUMNS), line(6)}


@pytest.mark.parametrize(("factor", "is_kept"), [(0.95, False), (0.93, True)])
def test_lines_that_earn_less_than_6_percent_are_left_out(factor: float, is_kept: bool) -> None:
    world = World([([line(1)], 0.5), ([line(2)], factor)])
    assert best(world) == {line(1), *([line(2)] if is_kept else ())}


def test_nothing_is_proposed_where_nothing_earns_6_percent() -> None:
    rules = [([line(at)], 0.95) for at in range(1, 2)]
    assert found(World(rules)).answers == ()
    assert found(World([])).answers == ()
    assert found(World([([line(at)], 1.5) for at in range(1, 9)])).answers == ()


def test_many_lines_of_which_each_earns_too_little_are_no_answer() -> None:
    world = World([([line(at)], 0.95) for at in range(1, 9)])
    for trial, figures in found(world).answers:
        assert len(trial) == 1
        assert figures.is_better(world.base)


@pytest.mark.parametrize("pair", [(1, 2), (3, 8)])
def test_two_lines_of_which_neither_helps_alone(pair: tuple[int, int]) -> None:
    world = World([([line(at)], 1.1) for at in pair] + [(list(map(line, pair)), 0.3)])
    assert best(world) == set(map(line, pair))


def test_three_lines_of_which_two_do_nothing_among_many() -> None:
    sites = tuple(site(number) for number in range(1, 41))
    wanted = [line(7), line(19), line(33)]
    assert best(World([(wanted, 0.4)]), sites) == set(wanted)
    little = [([line(at)], 0.9995) for at in range(1, 41)]
    assert best(World([(wanted, 0.4), *little]), sites) == set(wanted)


def test_a_line_that_harms_all_at_once_does_not_hide_another() -> None:
    world = World([([line(2)], 3.0), ([line(5)], 0.6)])
    made = found(world)
    assert [named(trial) for trial, _ in made.answers] == [{line(5)}]
    assert made.together is not None
    assert made.together.seconds == pytest.approx(180.0)


def test_a_value_is_moved_and_another_moved_back() -> None:
    moved = [line(300, ROWS, EXPERTS), line(380, EXPERTS, ROWS)]
    own = (ROWS, EXPERTS)
    sites = tuple(site(20 * number, own, shape=(64, 128, 512)) for number in range(1, 21))
    sent = (("model.py", 301, 2.0), ("model.py", 381, 1.0), ("other.py", 60, 5.0))
    world = World([(moved, 0.4)], BASE._replace(places=sent))
    assert best(world, sites) == set(moved)


def test_values_beside_indices_that_are_nearer_are_moved_too() -> None:
    moved = [line(2, ROWS, EXPERTS), line(60, EXPERTS, ROWS)]
    own, near = (ROWS, EXPERTS), (("model.py", 31, 5.0),)
    indices = [site(number, own, shape=(64, 128, 4)) for number in range(25, 38)]
    sites = (site(2, own, shape=(64, 128, 512)), *indices, site(60, own, shape=(64, 128, 512)))
    better = [([line(29, ROWS, EXPERTS), line(33, EXPERTS, ROWS)], 0.8)]
    world = World([(moved, 0.4), *better], BASE._replace(places=near))
    assert {*moved} <= best(world, sites)


def test_a_move_beside_a_line() -> None:
    world = World([([line(1)], 0.5), ([line(1), line(4, ROWS, EXPERTS)], 0.5)])
    sites = tuple(site(at, (ROWS, EXPERTS), shape=(64, 128, 512)) for at in range(1, 5))
    assert best(world, sites) == {line(1), line(4, ROWS, EXPERTS)}


def test_only_the_same_mesh_axes_are_moved() -> None:
    world = World([])
    found(world, tuple(site(number, (ROWS, COLUMNS)) for number in range(1, 4)))
    assert not any(len(layouts) > 1 for each in world.asked for _, layouts in each)


def test_only_a_value_of_the_same_shape_is_moved_back() -> None:
    world = World([])
    shapes = ((64, 128, 512), (64, 128, 256), (64, 128, 512), (64, 128, 128))
    own = (ROWS, EXPERTS)
    found(world, tuple(site(at, own, shape=shape) for at, shape in enumerate(shapes, 1)))
    moved = {tuple(sorted(at for at, own in each if len(own) > 1)) for each in world.asked}
    alone = {(at,) for at in range(1, 5)}
    assert moved == {(), *alone, (1, 3)}
    world = World([])
    found(world, tuple(site(at, own, shape=shapes[at % 2]) for at in range(1, 6)))
    moved = {tuple(sorted(at for at, own in each if len(own) > 1)) for each in world.asked}
    assert moved == {(), *alone, (5,), (1, 3), (1, 5), (2, 4), (3, 5)}


def test_beside_a_line_that_earns_much_others_are_tried_and_no_longer_alone() -> None:
    sites = tuple(site(at, weight=100.0 - at) for at in range(1, 61))
    rules = [([line(3)], 0.5), ([line(3), line(7)], 1.5), ([line(3), line(50, EXPERTS)], 0.5)]
    world = World(rules)
    world.base = world.base._replace(places=(("model.py", 50, 1.0),))
    assert best(world, sites) == {line(3), line(50, EXPERTS)}
    assert frozenset((line(3),)) in world.asked
    assert frozenset((line(40),)) not in world.asked


def test_where_a_likely_line_does_as_much_as_all_at_once_fewer_are_tried_alone() -> None:
    """Each trial of an unrolled model takes seconds."""
    sites = tuple(site(at, weight=100.0 - at) for at in range(40))
    world = World([([line(3)], 0.1)])
    assert best(world, sites) == {line(3)}
    alone = {at for trial in world.asked if len(trial) == 1 for at, layouts in trial}
    assert alone == {*range(8)}


def test_what_has_the_lines_of_an_answer_and_is_worse_is_not_taken_apart() -> None:
    sites = tuple(site(number, weight=number) for number in range(1, 41))
    worse = [([line(40), line(at)], 1.1 + at / 100) for at in range(1, 17)]
    world = World([([line(40)], 0.3), *worse])
    assert best(world, sites) == {line(40)}
    together = [at for at in range(1, 17) if world.asked[frozenset((line(40), line(at)))]]
    assert together, "others are tried beside the best"
    assert not any(world.asked[frozenset((line(at),))] for at in together)


def test_where_little_is_left_to_find_moves_that_earn_nothing_get_no_others_beside() -> None:
    sites = tuple(site(number, weight=-number, shape=(64, 128, 512)) for number in range(1, 9))
    worse = [([line(at, ROWS, EXPERTS)], 1 + at / 50) for at in range(1, 9)]
    world = World([([line(1)], 0.3), *worse])
    assert best(world, sites) == {line(1)}
    moving = [trial for trial in world.asked if any(len(layouts) > 1 for _, layouts in trial)]
    assert 0 < len(moving) <= 16


def test_where_all_lines_at_once_change_nothing_none_of_them_is_tried_alone() -> None:
    world = World([([line(3, EXPERTS)], 0.5)])
    assert best(world) == {line(3, EXPERTS)}
    assert frozenset((line(2),)) not in world.asked


def test_the_move_of_one_axis_that_is_sent_goes_before_those_of_all() -> None:
    both = Layout("batch _ embed", (("data", "fsdp"), (), ()))
    one = Layout("groups expert embed", (("data",), ("fsdp",), ()))
    others = tuple(Layout(f"_ {at} _", ((), ("data", "fsdp"), ())) for at in range(4))
    world = World([])
    own = both, *others, one
    found(world, (site(1, own), site(2, own)))
    moves = [own for each in world.asked for _, own in each if len(own) > 1]
    assert set(moves[:4]) == {(both, one), (one, both)}


@pytest.mark.parametrize(("natural", "expected"), [(0.505, ROWS), (0.55, EXPERTS)])
def test_of_layouts_that_are_as_good_the_most_natural(natural: float, expected: Layout) -> None:
    world = World([([line(3)], natural), ([line(3, EXPERTS)], 0.5)])
    assert best(world) == {line(3, expected)}


def test_of_values_that_do_the_same_the_one_that_is_less_to_write() -> None:
    sites = (
        site(1, weight=9, effort=2),
        site(2, weight=8, effort=1),
        site(3, weight=7, effort=0),
        site(4, weight=6, effort=0),
    )
    alike = [([line(at)], 0.5) for at in (1, 2, 3)] + [([line(4)], 0.6)]
    others = [([line(1), line(at)], 2.0) for at in (2, 3, 4)]
    others += [([line(2), line(3)], 2.0), ([line(2), line(4)], 2.0), ([line(3), line(4)], 2.0)]
    assert best(World([*alike, *others]), sites) == {line(3)}
    assert best(World([alike[0], alike[1], *others]), sites) == {line(2)}


def test_another_layout_that_does_the_same_may_be_less_to_write() -> None:
    sites = (
        site(1, (ROWS,), weight=9, effort=1),
        site(2, (COLUMNS, ROWS), weight=8),
        site(3, (COLUMNS,), weight=7),
    )
    world = World([([line(1)], 0.5), ([line(2, COLUMNS)], 0.5)])
    world.rules = [*world.rules, ([line(1), line(2, COLUMNS)], 2.0)]
    assert best(world, sites) == {line(2, COLUMNS)}


def test_of_values_that_are_as_much_to_write_the_one_of_more_weight() -> None:
    sites = (site(1, weight=1, effort=1), site(2, weight=2, effort=1))
    rules = [([line(1)], 0.5), ([line(2)], 0.5), ([line(1), line(2)], 3.0)]
    assert best(World(rules), sites) == {line(2)}


def test_of_values_that_differ_the_better_one_whatever_it_is_to_write() -> None:
    sites = (site(1, weight=1, effort=2), site(2, weight=2))
    clash = ([line(1), line(2)], 3.0)
    world = World([([line(1)], 0.5), ([line(2)], 0.6), clash])
    assert best(world, sites) == {line(1)}


def test_no_value_is_constrained_twice_where_that_is_less_to_write() -> None:
    sites = (site(1, (ROWS, COLUMNS)), site(2, (ROWS,), effort=1))
    world = World([([line(1)], 0.6), ([line(2)], 0.6), ([line(1, COLUMNS)], 0.3)])
    assert best(world, sites) == {line(1, COLUMNS), line(2)}


def test_a_line_that_earns_its_place_beside_less_natural_layouts_alone_is_left_out() -> None:
    sites = (site(1, (ROWS, COLUMNS)), site(2, (ROWS,)))
    beside = [line(1, COLUMNS), line(2)]
    world = World([([line(1)], 0.09), (beside, 0.3), ([line(2)], 0.95)])
    assert [named(trial) for trial, _ in found(world, sites).answers] == [{line(1)}]


def test_where_the_first_answers_are_refuted_the_next_ones_share_less_with_them() -> None:
    """The model likes the first line, alone and beside others; a compiler does not."""
    world = World(
        [
            ([line(1)], 0.1),
            *(([line(1), line(at)], 0.9) for at in (2, 3, 4)),
            ([line(5)], 0.5),
            ([line(6, COLUMNS)], 0.6),
        ]
    )
    first = found(world)
    assert all(line(1) in named(trial) for trial, _ in first.answers)
    asked = len(world.asked)
    second = further(first, world.price, first.answers)
    assert second.answers
    assert {line(5), line(6, COLUMNS)} in [named(trial) for trial, _ in second.answers]
    assert not {trial for trial, _ in first.answers} & {trial for trial, _ in second.answers}
    assert len(world.asked) - asked < 24
    third = further(second, world.price, (*first.answers, *second.answers))
    earlier = {figures.key for _, figures in (*first.answers, *second.answers)}
    assert not earlier & {figures.key for _, figures in third.answers}


def test_where_nothing_else_earns_there_are_no_next_answers() -> None:
    world = World([([line(1)], 0.5)])
    first = found(world)
    assert further(first, world.price, first.answers).answers == ()


def test_a_step_that_cannot_be_priced_is_not_searched() -> None:
    assert searched(SITES, lambda trials: [None for _ in trials], 100) is None


def test_a_step_without_values() -> None:
    made = searched((), World([]).price, 100)
    assert made is not None
    assert (made.answers, singles_of(made), made.sites) == ((), [], 0)


def test_a_step_that_only_computes_is_left_at_once() -> None:
    world = World([], Figures(True, 1.0, (("fsdp", 1e6),), 1e9, 0.99))
    assert found(world).answers == ()
    assert all(len(each) in (0, 1, len(SITES)) for each in world.asked)
    assert len(world.asked) <= 2 + len(SITES)


@pytest.mark.parametrize("most", [1, 3, 8, 11])
def test_so_many_lines_are_tried_alone(most: int) -> None:
    world = World([([line(1)], 0.9), ([line(2)], 0.9)])
    made = found(world, most=most)
    singles = singles_of(made)[:most]
    assert max(one.site.weight for one, _ in singles) == SITES[0].weight
    assert {one.site.at for one, _ in singles} == {one.at for one in SITES[:most]}


@pytest.mark.parametrize("known", [*range(2, 40, 3)])
def test_what_was_not_priced_is_in_no_answer(known: int) -> None:
    world = World([([line(1)], 0.6), ([line(4, COLUMNS)], 0.7)], known=known)
    made = found(world)
    for trial, figures in made.answers:
        assert named(trial) in world.asked
        assert figures == world.figures(trial)
    assert all(named((one,)) in world.asked for one, _ in singles_of(made))
    assert len(world.asked) <= known


def test_a_step_that_does_not_fit_gets_the_lines_by_which_it_does() -> None:
    world = World([])

    def price(trials: object) -> list[Figures | None]:
        made = world.price(trials)  # type: ignore[arg-type]
        return [
            each and each._replace(fits=line(5) in named(trial))
            for each, trial in zip(made, trials, strict=True)  # type: ignore[call-overload]
        ]

    made = searched(SITES, price, 100)
    assert made is not None
    assert [named(trial) for trial, _ in made.answers] == [{line(5)}]


# random tables


@st.composite
def worlds(draw: st.DrawFn) -> tuple[tuple[Site, ...], World]:
    count = draw(st.integers(1, 5))
    sites = tuple(_site(draw, at) for at in range(1, count + 1))
    lines = [line(at, layout) for at, one in enumerate(sites, 1) for layout in one.layouts]
    rule = st.tuples(
        st.lists(st.sampled_from(lines), min_size=1, max_size=3),
        st.sampled_from((0.3, 0.6, 0.85, 0.93, 0.95, 0.985, 1.0, 1.05, 1.4)),
    )
    fits = draw(st.sampled_from((True, None, False)))
    seconds = draw(st.sampled_from((100.0, None)))
    base = Figures(fits, seconds, (("fsdp", 1e6),), 1e9, draw(st.sampled_from((1.0, 60.0))))
    return sites, World(draw(st.lists(rule, max_size=6)), base)


def _site(draw: st.DrawFn, at: int) -> Site:
    count = draw(st.integers(1, 3))  # values of the same shape have the same layouts
    shape = draw(st.sampled_from(((), (64, 128 * count, 512))))
    weight, effort = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    return site(at, LAYOUTS[:count], weight=weight, effort=effort, shape=shape)


@given(worlds())
def test_each_line_of_each_answer_earns_its_place(case: tuple[tuple[Site, ...], World]) -> None:
    sites, world = case
    answers = found(world, sites).answers
    for trial, figures in answers:
        assert trial
        assert len({one.site for one in trial}) == len(trial)
        assert figures == world.figures(trial)
        assert figures.is_better(world.base)
        for rest in combinations(trial, len(trial) - 1):
            assert figures.is_better(world.figures(rest), LEAST_GAIN), rest
    assert [figures.rank for _, figures in answers] == sorted(each.rank for _, each in answers)


@given(worlds())
@settings(max_examples=50)
def test_no_single_line_is_much_better_than_the_answer(
    case: tuple[tuple[Site, ...], World],
) -> None:
    sites, world = case
    made = found(world, sites)
    for one, figures in singles_of(made):
        if made.answers:
            assert not figures.is_better(made.answers[0][1]), one
        else:
            assert not figures.is_better(world.base), one


@given(worlds())
@settings(max_examples=30)
def test_the_same_search_finds_the_same(case: tuple[tuple[Site, ...], World]) -> None:
    sites, world = case
    assert found(world, sites) == found(World(world.rules, world.base), sites)
