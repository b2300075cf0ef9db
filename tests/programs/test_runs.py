"""What operations take of a step: each instant counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.captures import CALLS, COMPUTES, MOVES, Capture, Event, Steps, steps_of

S = 10**12


def rank(op: str) -> int:
    return {"a": MOVES, "w": CALLS}.get(op[:1], COMPUTES)


def steps(*events: tuple[str, str, int, int], run: str = "1", device: str = "d") -> Steps:
    """Return the steps of slices of lanes: lane, operation, seconds from and to."""
    made = [Event(device, lane, op, "m", run, a * S, b * S) for lane, op, a, b in events]
    return steps_of(Capture("x", ("h",), tuple(sorted(made, key=lambda e: e.start))), "m", rank)


def shown(found: Steps) -> dict[str, float]:
    return {op: took.shown for op, took in found.ops.items()}


def test_what_computation_hides_of_a_collective_does_not_show() -> None:
    found = steps(("1", "dot", 0, 4), ("2", "all-reduce", 2, 6))
    assert shown(found) == {"dot": 4.0, "all-reduce": 2.0}
    assert found.ops["all-reduce"].seconds == 4.0
    assert (found.seconds, found.idle) == (6.0, 0.0)


def test_a_loop_shows_what_its_body_leaves() -> None:
    found = steps(("1", "while", 0, 10), ("1", "dot", 1, 4), ("1", "all-gather", 5, 7))
    assert shown(found) == {"while": 5.0, "dot": 3.0, "all-gather": 2.0}


def test_a_loop_that_its_body_fills_shows_nothing() -> None:
    found = steps(("1", "while", 0, 2), ("1", "dot", 0, 2))
    assert found.ops["while"] == (0.0, 0.0, 1.0)


def test_a_body_on_another_thread_is_of_no_loop() -> None:
    found = steps(("1", "while", 0, 10), ("2", "dot", 1, 9))
    assert shown(found) == {"while": 2.0, "dot": 8.0}


def test_two_that_compute_at_once_share_the_time() -> None:
    found = steps(("1", "dot", 0, 4), ("2", "exp", 0, 2))
    assert shown(found) == {"dot": 3.0, "exp": 1.0}


def test_asynchronous_slices_of_one_line_may_overlap() -> None:
    found = steps(("Async XLA Ops", "a1", 0, 4), ("Async XLA Ops", "a2", 2, 6))
    assert found.ops["a1"].seconds == found.ops["a2"].seconds == 4.0
    assert sum(shown(found).values()) == 6.0


def test_the_end_of_an_operation_counts_as_what_began_it() -> None:
    rows = (
        ("1", "a-start", 0, 1),
        ("1", "dot", 1, 5),
        ("1", "a-done", 5, 7),
        ("Async XLA Ops", "a-start", 0, 7),
    )
    made = tuple(Event("d", lane, op, "m", "1", a * S, b * S) for lane, op, a, b in rows)
    found = steps_of(Capture("x", (), made), "m", rank, lambda op: op.replace("done", "start"))
    assert found.ops == {"dot": (4.0, 4.0, 1.0), "a-start": (7.0, 3.0, 1.0)}
    assert found.once["a-start"] == (7.0,)


def test_gaps_are_idle() -> None:
    assert steps(("1", "dot", 0, 1), ("1", "exp", 3, 4)).idle == 2.0


def test_steps_without_a_number_end_where_nothing_runs_for_longest() -> None:
    rows = [
        ("1", op, 10 * k + at, 10 * k + at + 1)
        for k in range(3)
        for op, at in (("loop", 0), ("first", 1), ("loop", 2))
    ]
    found = steps(*rows[1:], run="")  # the capture begins within a step
    assert found.count == 2
    assert (found.period, found.seconds) == (10.0, 3.0)


def test_a_step_that_is_captured_in_part_is_left_out() -> None:
    events = [
        Event("d", "1", op, "m", str(k), (5 * k + at) * S, (5 * k + at + 1) * S)
        for k in range(3)
        for at, op in enumerate(("dot", "exp"))
        if (k, op) != (2, "exp")
    ]
    found = steps_of(Capture("x", (), tuple(events)), "m", rank)
    assert found.count == 2
    assert found.notes == (
        "1 of 3 captured steps of a device has fewer or more operations than the others: left out",
    )


def test_what_else_the_device_does_counts_under_no_name() -> None:
    events = (
        Event("d", "1", "dot", "m", "1", 0, 4 * S),
        Event("d", "2", "copy", "", "", 5 * S, 6 * S),
        Event("d", "1", "exp", "m", "1", 6 * S, 8 * S),
    )
    found = steps_of(Capture("x", (), events), "m", rank)
    assert shown(found) == {"dot": 4.0, "exp": 2.0, "": 1.0}
    assert found.idle == 1.0


def test_the_shortest_of_the_devices_waits_for_nobody() -> None:
    events = tuple(
        Event(device, "1", "all-reduce", "m", "1", start * S, 5 * S)
        for device, start in (("a", 0), ("b", 4))
    )
    assert steps_of(Capture("x", (), events), "m", rank).once == {"all-reduce": (1.0,)}


SLICES = st.lists(
    st.tuples(
        st.sampled_from(("1", "2", "Async XLA Ops")),
        st.sampled_from(("dot", "exp", "all-reduce", "while")),
        st.integers(0, 50),
        st.integers(1, 20),
    ),
    min_size=1,
    max_size=30,
)


@given(SLICES)
def test_what_shows_sums_to_the_step(rows: list[tuple[str, str, int, int]]) -> None:
    found = steps(*((lane, op, start, start + took) for lane, op, start, took in rows))
    whole = sum(shown(found).values()) + found.idle
    assert whole == pytest.approx(found.seconds)
    assert all(took.shown <= took.seconds + 1e-9 for took in found.ops.values())
    assert all(took.seconds <= found.seconds + 1e-9 for took in found.ops.values())
