from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of, marked

TEXT = """\
targets: {{pod: {{mesh: {{data: 4, model: 2}}}}, laptop: {{mesh: {{data: {laptop}}}}}}}
replicate:
  - {{path: "{pattern}", because: "small"}}
rules: [vocab -> model, mlp -> data, embed -> none]
arrays:
  embedding: f32[vocab=64 embed=8]
  mlp/wi: f32[mlp=64 embed=8]
  mlp/scale: f32[embed=8]
"""


@pytest.mark.parametrize(
    ("pattern", "laptop", "count"),
    [
        ("mlp/wi", 8, 1),
        ("mlp/*", 8, 0),
        ("mlp/scale", 8, 0),
        ("embedding", 8, 0),
        ("{embedding,mlp/wi}", 1, 1),
    ],
)
def test_which(pattern: str, laptop: int, count: int) -> None:
    found = findings_of(TEXT.format(pattern=pattern, laptop=laptop), only="needless-replicate")
    assert len(found) == count


def test_what_it_says() -> None:
    (found,) = findings_of(TEXT.format(pattern="mlp/w*", laptop=8), only="needless-replicate")
    assert "`mlp/w*`" in found.message
    assert marked(found) == ['"mlp/w*"']
    assert found.notes == ("1 array, mlp/wi",)


def test_the_help_works() -> None:
    text = TEXT.format(pattern="mlp/wi", laptop=8)
    whole = text.replace("mlp -> data", "mlp -> none")
    assert findings_of(whole, only="needless-replicate") == ()


def test_one_device_holds_everything_and_says_nothing() -> None:
    text = "mesh: {data: 1}\nreplicate: [{path: k, because: x}]\narrays: {k: 'f32[a=8]'}\n"
    assert findings_of(text + "rules: [a -> data]", only="needless-replicate") == ()
