from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.language.regex import python_regex
from shardspec.lints.evidence.entries import least_widened, single_digits, widened
from tests import strategies


@pytest.mark.parametrize(
    ("regex", "wide"),
    [
        (r"layer_\d/k", r"layer_\d+/k"),
        (r"layer_[0-9]/k", r"layer_[0-9]+/k"),
        (r"layer_[\d]", r"layer_[\d]+"),
        (r"layer_(\d)/wi_\d", r"layer_(\d+)/wi_\d+"),
        (r"(\d|x)/k", r"(\d+|x)/k"),
        (r"layer_\d+", None),
        (r"layer_\d*", None),
        (r"layer_\d?", None),
        (r"layer_\d{2}", None),
        (r"layer_\d\d", None),
        (r"layer_\d[0-9]?", None),
        (r"layer_\d(\d)?", None),
        (r"layer_\d(?:\d)?", None),
        (r"layer_1\d", None),
        (r"layer_1?\d", None),
        (r"layer_[12]?\d", None),
        (r"layer_[1-9]\d", None),
        (r"layer_[1-9]", None),
        (r"layer_\\d", None),
        (r"layer_[\d_]", None),
        (r"layer_[]\d]", None),
        ("", None),
        ("\\", None),
        ("[", None),
    ],
)
def test_places(regex: str, wide: str | None) -> None:
    ends = single_digits(regex)
    assert (widened(regex, ends) if ends else None) == wide


digits = (r"\d", "[0-9]", r"(\d)", r"(?:a|\d)", r"_\d/")
pieces = st.lists(st.sampled_from((*digits, "a", "/", "1", "x?", r"\d+", "(?i:B)")), max_size=6)


@given(st.one_of(pieces.map("".join), pieces.map("".join), strategies.regexes))
def test_a_wider_regex_matches_more(regex: str) -> None:
    ends = single_digits(regex)
    assume(ends and "(?x" not in regex)
    narrow, wide = python_regex(regex), python_regex(widened(regex, ends))
    for path in ("0", "a1", "a/b_2/k", "12"):
        assert not narrow.fullmatch(path) or wide.fullmatch(path)


@given(st.lists(st.sampled_from(["/", "a", r"_\d", r"_[0-9]"]), max_size=6).map("".join), st.data())
def test_no_place_is_widened_without_need(regex: str, data: st.DataObject) -> None:
    ends = single_digits(regex)
    wide = re.compile(widened(regex, ends))
    paths = data.draw(st.lists(st.from_regex(wide, fullmatch=True), max_size=3))
    least = least_widened(regex, ends, paths)
    assert all(re.fullmatch(least, path) for path in paths)
    plus = [place.start() for place in re.finditer(r"(?<=[\]d])\+", least)]
    for place in plus:
        narrower = least[:place] + least[place + 1 :]
        assert not all(re.fullmatch(narrower, path) for path in paths)
