from __future__ import annotations

from shardspec.lints.evidence.arrays import largest


def test_the_rest_is_one_line() -> None:
    lines = largest(
        (f"{letter}{i}", size) for size, letter in enumerate("abcdefgh") for i in (1, 2)
    )
    assert lines[0] == "14 B  h{1,2} x2"
    assert len(lines) == 6
    assert lines[-1] == "6 B  6 other arrays"


def test_lines_that_say_nothing_are_left_out() -> None:
    assert largest([("a", 100), ("b", 1)], least=2) == ("100 B  a",)


def test_paths_that_are_no_glob_show_the_first() -> None:
    assert largest([("a1/b2", 1), ("a2/b1", 1)]) == ("2 B  a1/b2 and 1 alike",)
    assert largest((f"l{i}", 1) for i in range(1000)) == ("1000 B  l0 and 999 alike",)
