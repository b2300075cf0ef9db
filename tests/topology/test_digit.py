from shardspec.topology.digit import Digit, covers_once, digit_offsets, joined_digits


def test_offsets_count_like_a_number() -> None:
    assert digit_offsets([Digit(1, 3, 2), Digit(0, 2, 1)], 2) == (
        (0, 0), (1, 0), (0, 2), (1, 2), (0, 4), (1, 4),
    )  # fmt: skip


def test_digits_that_leave_a_gap_do_not_cover() -> None:
    assert covers_once([Digit(0, 2, 1), Digit(0, 2, 2)], (4,))
    assert not covers_once([Digit(0, 2, 2)], (4,))
    assert not covers_once([Digit(0, 2, 1), Digit(0, 2, 1)], (4,))


def test_a_gap_keeps_digits_apart() -> None:
    apart = (Digit(0, 2, 1), Digit(0, 2, 4))
    assert joined_digits(apart[::-1]) == apart
