"""Where a cursor stands, against the reader of YAML: at the end of every key and every value."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec.lsp.completion import ITEM, place_at
from tests.lsp.texts import SPEC, snapshot_of

EXAMPLES = sorted((Path(__file__).parents[2] / "specs/examples").glob("*.yaml"))
#: Forms that the examples do not have.
ODD = """\
shardspec: 1
"axes": {'embed': 64, "mlp" : 256}
mesh:
    data: 2
    model: 4   # four
rules:
- embed -> data
-   rule: "mlp -> model"
    at: end
params: {"**/wi": 'embed mlp', '**/b': [embed, mlp]}
overrides: [{path: a/b, axes: "embed"}, {path: 'it''s', axes: _}]
phases:
  decode:
    rules: ["mlp -> none", embed -> none]
arrays:
  "a/wi": bf16[64, 256]
  layers_{0,1}/b#2: 'f32[64]'
"""
TEXTS = {"spec": SPEC, "odd": ODD} | {path.stem: path.read_text("utf-8") for path in EXAMPLES}


def _shown(route: tuple[str | int, ...]) -> tuple[str, ...]:
    return tuple(ITEM if isinstance(each, int) else each for each in route)


@pytest.mark.parametrize("name", TEXTS)
def test_a_cursor_stands_where_the_reader_reads(tmp_path: Path, name: str) -> None:
    text = TEXTS[name]
    reading = snapshot_of(tmp_path, "spec.yaml", text).reading
    assert reading is not None
    places = reading.source_map
    above = {route[:-1] for route in (*places.values, *places.keys)}
    seen = 0
    for route, value in places.values.items():
        if route in above or not value.span.text:
            continue
        end = value.span.end - (value.span.text[-1] in "\"'")
        found = place_at(text, end, is_dsl=False)
        assert (found.route, found.is_key) == (_shown(route), False), value.span.text
        assert value.span.text.strip("\"'").endswith(found.written.lstrip("\"'")), found
        seen += 1
    for route, key in places.keys.items():
        found = place_at(text, key.span.end - (key.span.text[-1] in "\"'"), is_dsl=False)
        assert found.route == _shown(route[:-1]), key.span.text
        assert found.is_key or found.route[-1] == ITEM  # the first word of an item may be either
        assert found.written.lstrip("\"'") == key.span.text.strip("\"'")
        seen += 1
    assert seen > 10
