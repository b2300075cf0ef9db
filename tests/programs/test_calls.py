"""How often loops go round, and who calls whom."""

from __future__ import annotations

import re

import pytest

from shardspec.programs.calls import calls_of
from shardspec.programs.hlo import program_of

LOOP = """\
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %c = s32[] copy(%i)
  %by = s32[] constant({step})
  %next = s32[] add(%c, %by)
  %x = f32[4] get-tuple-element(%p), index=1
  ROOT %t = (s32[], f32[4]) tuple(%next, %x)
}}

%compared (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}}

%condition (q: (s32[], f32[4])) -> pred[] {{
  %q = (s32[], f32[4]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = s32[] {limit}
  ROOT %r = pred[] {test}
}}

ENTRY %main (x: f32[4], n: s32[]) -> f32[4] {{
  %x = f32[4] parameter(0)
  %n = s32[] parameter(1)
  %start = s32[] constant({start})
  %init = (s32[], f32[4]) tuple(%start, %x)
  ROOT %loop = (s32[], f32[4]) while(%init), condition=%condition, body=%body{known}
}}
"""
PLAIN = {
    "step": "1",
    "limit": "constant(12)",
    "start": "0",
    "known": "",
    "test": "compare(%j, %limit), direction=LT",
}


def rounds(**changes: str) -> tuple[int, int]:
    calls = calls_of(program_of(LOOP.format(**PLAIN | changes)))
    assert calls is not None
    return calls.times.get("body", 0), len(calls.endless)


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, (12, 0)),
        ({"step": "2"}, (6, 0)),
        ({"step": "5"}, (3, 0)),
        ({"start": "4"}, (8, 0)),
        ({"start": "-3"}, (15, 0)),
        ({"start": "12"}, (0, 0)),
        ({"test": "fusion(%j, %limit), kind=kLoop, calls=%compared"}, (12, 0)),
        ({"test": "compare(%j, %limit), direction=NE"}, (1, 1)),
        ({"step": "0"}, (1, 1)),
        ({"limit": "get-tuple-element(%q), index=1"}, (1, 1)),
        ({"known": ', backend_config={"known_trip_count":{"n":"7"}}'}, (7, 0)),
    ],
)
def test_rounds(changes: dict[str, str], answer: tuple[int, int]) -> None:
    assert rounds(**changes) == answer


def short(text: str) -> str:
    """Return a program as XLA of jaxlib 0.12 prints it: `%p#0` for element 0 of `%p`."""
    for name, whole, index in re.findall(
        r"  %(\w+) = .*get-tuple-element\(%(\w+)\), index=(\d)", text
    ):
        text = re.sub(rf"  %{name} = .*\n", "", text)
        text = re.sub(rf"%{name}\b", f"%{whole}#{index}", text)
    return text


@pytest.mark.parametrize("step", ["1", "5"])
def test_elements_of_tuples_may_be_written_short(step: str) -> None:
    text = LOOP.format(**PLAIN | {"step": step})
    assert "%p#0" in short(text)
    assert "get-tuple-element" not in short(text)
    one, two = (calls_of(program_of(each)) for each in (text, short(text)))
    assert one is not None
    assert two is not None
    assert one.times == two.times
    assert one.endless == two.endless == ()


def test_rounds_multiply() -> None:
    text = LOOP.format(**PLAIN).replace(
        "%c = s32[] copy(%i)", "%c = s32[] copy(%i)\n  %u = s32[] fusion(%c), calls=%inner"
    )
    inner = "%inner (a: s32[]) -> s32[] {\n  ROOT %a = s32[] parameter(0)\n}\n"
    calls = calls_of(program_of(inner + text))
    assert calls is not None
    assert calls.times["inner"] == 12
    assert calls.sites["inner"].ref.name == "u"
    assert calls.within("body") == {"body", "inner"}


def test_a_circle_is_no_program() -> None:
    text = "%a (p: s32[]) -> s32[] {\n  ROOT %r = s32[] call(), to_apply=%a\n}\n"
    assert calls_of(program_of(text + "ENTRY %m () -> s32[] {\n}\n")) is None
