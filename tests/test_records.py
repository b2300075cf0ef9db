"""Records: what is written is read again, and what is no record is refused, with the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.jax_backend.xla.cache import Compiled
from shardspec.programs.memory import CompiledMemory
from shardspec.records import (
    OMITTED,
    Field,
    Of,
    RecordError,
    data_of,
    fields_of,
    is_record,
    made_of,
    picked,
    record_of,
)
from shardspec.report.cost_json import CostRecord


class Small(NamedTuple):
    size: Annotated[int, 1]
    pair: tuple[str, float]
    by_number: dict[int, bool]
    basis: Literal["exact", "floor"] = "exact"
    note: Annotated[str | None, OMITTED] = None


#: Every type that is written to a file and read again.
RECORDS: tuple[Any, ...] = (Small, CostRecord, Compiled, CompiledMemory)


def values(field: Field) -> st.SearchStrategy[Any]:
    kind = field.kind
    is_plain = is_record(kind) or get_origin(kind) is Literal
    inner = [] if is_plain else [values(each) for each in field.inner]
    found: st.SearchStrategy[Any]
    if is_record(kind):
        found = records(kind)
    elif get_origin(kind) is Literal:
        found = st.sampled_from(get_args(kind))
    elif get_origin(kind) is tuple:
        is_long = ... in get_args(kind)
        found = st.lists(inner[0], max_size=2).map(tuple) if is_long else st.tuples(*inner)
    elif get_origin(kind) in (dict, Mapping):
        found = st.dictionaries(*inner, max_size=2)
    elif kind is int:
        found = st.integers(field.least, 2**70)
    elif kind is float:
        found = st.floats(field.least, allow_infinity=False)
    else:
        found = {str: st.text(max_size=5), bool: st.booleans()}[kind]
    return st.none() | found if field.is_optional else found


def records(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{each.name: values(each) for each in fields_of(kind)})


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_round_trip(kind: Any, data: st.DataObject) -> None:
    record = data.draw(records(kind))
    assert record_of(kind, json.loads(json.dumps(data_of(record)))) == record


SMALL = {"size": 1, "pair": ["a", 2], "by_number": {"3": True}}


def test_defaults_may_be_missing_and_one_is_left_out() -> None:
    found = record_of(Small, SMALL | {"unknown": 1})
    assert found == Small(1, ("a", 2), {3: True})
    assert data_of(found) == {"size": 1, "pair": ["a", 2], "by_number": {3: True}, "basis": "exact"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"size": 0}, "`size` is out of range"),
        ({"size": 1.0}, "`size` should be integer"),
        ({"size": True}, "`size` should be integer"),
        ({"size": None}, "`size` should be integer"),
        ({"note": 1}, "`note` should be string or null"),
        ({"pair": ["a"]}, "`pair` should have 2 items"),
        ({"pair": ["a", float("nan")]}, "`pair[1]` is out of range"),
        ({"pair": {}}, "`pair` should be array"),
        ({"by_number": {"3": 1}}, "`by_number.3` should be boolean"),
        ({"basis": "none"}, "`basis` should be exact or floor"),
    ],
)
def test_what_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(RecordError, match="^" + said.replace("[", r"\[") + "$"):
        record_of(Small, SMALL | more)


def test_what_is_missing_or_no_record_is_refused() -> None:
    for data, said in (({"size": 1}, "`pair` is missing"), ([], "`it` should be object")):
        with pytest.raises(RecordError, match=said):
            record_of(Small, data)


def test_a_key_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        record_of(Small, SMALL | {"by_number": {"x": True}})


def test_keys_are_picked() -> None:
    small = Small(1, ("a", 2.0), {})
    assert picked(small, "bytes=size pair first=pair.count") | {"first": 0} == {
        "bytes": 1,
        "pair": ["a", 2.0],
        "first": 0,
    }


class Size(NamedTuple):
    number: float
    unit: str = ""


class Line(NamedTuple):
    file: str

    @classmethod
    def of(cls, place: str) -> Line | None:
        return None if place == "?" else cls(place.partition(":")[0])


class Made(NamedTuple):
    size: Size
    name: str | None
    where: Line | None
    parts: Annotated[tuple[Size, ...], Of("pieces")]
    unit: Annotated[str, Of("size.unit")]
    count: Annotated[float, Of("count", int)]
    day: str
    more: Annotated[tuple[str, ...], Of("missing.names")] = ("default",)


def test_a_record_is_made_of_the_attributes_of_a_value() -> None:
    parts = (SimpleNamespace(number=1.0, unit="B"),)
    size = Size(2.0, "GiB")
    value = SimpleNamespace(
        size=size, name="", where="a.py:3", pieces=parts, count=4.0, missing=None, day="never"
    )
    made = made_of(Made, value, day="today")
    assert made == Made(size, None, Line("a.py"), (Size(1.0, "B"),), "GiB", 4, "today")
    assert isinstance(made.count, int)
    value.where = "?"
    assert made_of(Made, value).where is None
