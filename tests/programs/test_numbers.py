"""What is said of numbers that differ: a verdict, how many, and each difference in a row."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.programs.numbers import Numbers, OutputDifference, numbers_data, numbers_lines

DIFFERENCES = st.builds(
    OutputDifference,
    st.sampled_from(("loss", "params/w", "params/b")),
    st.sampled_from((1, 2)),
    st.floats(1e-6, 1),
    st.floats(0, 1e-7),
    st.sampled_from((None, 1.0, 0.5, 2.0, 4.0, 3.7)),
    st.booleans(),
)
NUMBERS = st.builds(
    Numbers,
    st.just("train:step"),
    st.just("v5e-8"),
    st.sampled_from((1, 3)),
    st.just("f32"),
    st.sampled_from((1, 2)),
    st.sampled_from(((), ((("data", 2),),), ((("data", 2),), (("data", 2), ("model", 2))))),
    st.lists(DIFFERENCES, max_size=25).map(tuple),
    untried=st.sampled_from(((), (("model", "no rule"),))),
    unstable=st.sampled_from(((), ("loss",))),
    capacities=st.sampled_from(((), ("moe.py:7",))),
    written=st.integers(0, 30).map(lambda count: tuple(f"a.py:{at}" for at in range(count))),
)


@given(NUMBERS)
def test_a_step_is_the_same_only_where_all_was_compared(numbers: Numbers) -> None:
    head = numbers_lines(numbers)[0]
    is_whole = bool(numbers.meshes) and not numbers.untried and not numbers.unstable
    assert numbers.verdict == (
        "different" if numbers.differences else "same" if is_whole else "untried"
    )
    assert numbers_data(numbers)["verdict"] == numbers.verdict
    assert ("DIFFERENT" in head) == bool(numbers.differences)
    assert ("NOT COMPARED" in head) == (numbers.verdict == "untried")
    assert head.startswith("numbers train:step on v5e-8: ")
    if numbers.differences:
        paths = {each.path for each in numbers.differences}
        assert f" {len(paths)} of {numbers.outputs} output" in head
        assert ("differs" in head) == (len(paths) == 1)


@given(NUMBERS)
@settings(max_examples=60)
def test_each_difference_is_a_row_or_counted(numbers: Numbers) -> None:
    lines = numbers_lines(numbers)
    rows = [
        line.split()
        for line in itertools.dropwhile(lambda line: not line.strip().startswith("output "), lines)
    ]
    left = int(rows.pop()[1]) if rows and rows[-1][0] == "and" else 0
    assert len(rows[1:]) + left == len(numbers.differences)
    assert bool(rows) == bool(numbers.differences)
    for row, each in zip(rows[1:], numbers.differences, strict=False):
        assert row[:3] == [each.path, str(each.call), f"{each.error:.1e}"]
        assert float(row[3]) == float(f"{each.noise:.0e}")
        told = " ".join(row[4:])
        assert ("devices hold different values" in told) == each.devices_differ
        assert ("times" in told) == (each.ratio not in (None, 1.0))
        for ratio, meaning in ((2.0, "twice"), (0.5, "half"), (4.0, "summed 4 times")):
            assert (meaning in told) == (each.ratio == ratio)
        if each.ratio not in (None, 1.0):
            assert f"{each.ratio:.2f} times" in told


@given(NUMBERS)
@settings(max_examples=60)
def test_each_fact_is_a_line_and_sizes_in_code_are_named_or_counted(numbers: Numbers) -> None:
    lines = [line.split(None, 1) for line in numbers_lines(numbers) if line[2:3].strip()]
    facts = {each[0]: each[1] for each in lines if len(each) > 1}
    assert ("meshes" in facts) == bool(numbers.meshes)
    assert facts.get("untried", "") == ("model: no rule" if numbers.untried else "")
    assert ("unstable" in facts) == bool(numbers.unstable)
    assert facts.get("capacity", "").startswith("moe.py:7 ") == bool(numbers.capacities)
    named = [line for line in numbers_lines(numbers) if line.startswith("  in code")]
    assert len(named) == bool(numbers.written)
    for line in named:
        parts = line.removeprefix("  in code ").strip().split(", ")
        left = int(parts.pop().split()[0]) if parts[-1].endswith("more") else 0
        assert len(parts) + left == len(numbers.written)
        assert [*parts] == [*numbers.written[: len(parts)]]
