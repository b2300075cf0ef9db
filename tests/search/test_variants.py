"""What may be chosen beside the mesh: all combinations, at most so many; no other value."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.search import variants as chosen
from shardspec.search.variants import Refusal, Variant, parse_over, variants, with_counts
from tests.search.specs import spec_of

SPEC = spec_of()
VALUES = {
    "state": ("same", "zero1", "zero2"),
    "remat": ("none", "dots", "full"),
    "batch": ("32", "128", "256"),
    "dtype": ("bf16", "f32"),
    "microbatches": ("1", "2", "4"),
    "gather": ("layer", "microbatch", "step"),
    "reduce": ("microbatch", "step"),
}
#: What a spec says of each word.
STATED = {
    "state": lambda spec: spec.state.optimizer,
    "remat": lambda spec: " ".join(spec.step.remat),
    "batch": lambda spec: str({each.name: each.size for each in spec.logical_axes}["batch"]),
    "dtype": lambda spec: spec.step.dtype,
    "microbatches": lambda spec: str(spec.step.microbatches),
    "gather": lambda spec: spec.step.gather,
    "reduce": lambda spec: spec.step.reduce,
}
OVER = st.dictionaries(st.sampled_from([*VALUES]), st.booleans(), min_size=1, max_size=3)


@given(OVER, st.data())
@settings(max_examples=40)
def test_the_combinations_are_all_there_are(over: dict[str, bool], data: st.DataObject) -> None:
    words = {
        word: tuple(data.draw(st.lists(st.sampled_from(VALUES[word]), min_size=1, unique=True)))
        for word in over
    }
    found = variants(SPEC, words)
    assert isinstance(found, tuple)
    assert found[0] == Variant(SPEC)
    ways = {word: {STATED[word](SPEC), *values} for word, values in words.items()}
    made = {tuple(STATED[word](each.spec) for word in words) for each in found}
    assert len(found) == len(made) == math.prod(map(len, ways.values()))
    for each in found:
        assert all(STATED[word](each.spec) == value for word, value in each.changes)
        others = [word for word in STATED if word not in dict(each.changes)]
        assert all(STATED[word](each.spec) == STATED[word](SPEC) for word in others)


@pytest.mark.parametrize(
    "word", sorted(chosen._MAKERS.keys() - {"indivisible", "remat", "schedule"})
)
def test_a_value_that_a_word_does_not_take_is_refused_by_name(word: str) -> None:
    found = variants(SPEC, {word: ("nonsense",)})
    assert isinstance(found, Refusal)
    assert "nonsense" in found.message


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "many", "10000000"])
def test_a_count_is_a_number_above_zero(count: str) -> None:
    for found in (
        variants(SPEC, {"microbatches": ("1", count)}),
        variants(SPEC, {"batch": ("32", count)}),
        with_counts([Variant(SPEC)], ("1", count)),
    ):
        assert isinstance(found, Refusal)
        assert count in found.message


def test_what_a_spec_does_not_have_cannot_be_chosen() -> None:
    bare = replace(SPEC, state=None, logical_axes=())
    for word in ("state", "batch"):
        found = variants(bare, {word: ()})
        assert isinstance(found, Refusal)
        assert word in found.message
    assert isinstance(with_counts([Variant(SPEC)], ()), Refusal)
    assert isinstance(variants(SPEC, {"rules": ()}), Refusal)
    assert isinstance(variants(SPEC, {"rule": ()}), Refusal)
    twice = variants(SPEC, {"rules": ("preset:fsdp",), "rule": ("mlp",)})
    assert isinstance(twice, Refusal)
    assert twice.message == "`rule` and `rules` both choose rules"


@given(st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=40)
def test_counts_are_as_many_as_wanted_or_refused(specs: int, counts: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen, "MOST_VARIANTS", 40)
        found = with_counts([Variant(SPEC)] * specs, tuple(map(str, range(1, counts + 1))))
    assert isinstance(found, Refusal) == (specs * (counts + 1) > 40)
    if not isinstance(found, Refusal):
        assert len(found) == specs * (counts + 1)
        assert {dict(each.changes).get("microbatches") for each in found} == {
            None,
            *map(str, range(1, counts + 1)),
        }


WRITTEN = st.lists(st.text("ab12", min_size=1))


@given(st.dictionaries(st.sampled_from([*VALUES]), WRITTEN, min_size=1))
@settings(max_examples=40)
def test_words_are_read_as_they_are_written(over: dict[str, list[str]]) -> None:
    text = " , ".join(f"{word}={' | '.join(values)}" for word, values in over.items())
    assert parse_over(text) == {word: tuple(values) for word, values in over.items()}


@pytest.mark.parametrize("word", sorted(chosen.WORDS))
def test_a_word_is_read_alone_and_one_like_it_is_not(word: str) -> None:
    assert parse_over(word) == {word: ()}
    assert isinstance(parse_over(f"{word}x"), Refusal)
    takes_none = word in ("mesh", "order", "axes", "stages", "hardware")
    assert isinstance(parse_over(f"{word}=1"), Refusal) == takes_none
