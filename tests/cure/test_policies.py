"""Policies of `jax.checkpoint` are read in code and save other names there."""

from __future__ import annotations

import pytest

from shardspec.cure.policies import policies_of, with_names

TEXT = """\
# ä, and a policy: save_only_these_names("no")
import jax
from jax.checkpoint_policies import save_only_these_names as kept
policy = jax.checkpoint_policies.save_only_these_names(
    "query", 'key',
)
other = (jax.checkpoint_policies.save_only_these_names(), "ß", save_only_these_names("a"))
"""


def test_policies_with_names_are_found_in_order() -> None:
    found = [*policies_of("model.py", TEXT)]
    assert [each.line for each in found] == [4, 7, 7]
    assert [each.names for each in found] == [("query", "key"), (), ("a",)]


def test_all_else_of_the_text_stays() -> None:
    found = [*policies_of("model.py", TEXT)]
    new = with_names(TEXT, [(found[0], ("value",)), (found[1], ("x", "y")), (found[2], ())])
    assert new == TEXT.replace("(\n    \"query\", 'key',\n)", '("value")').replace(
        "names(), ", 'names("x", "y"), '
    ).replace('names("a"))', "names())")
    assert [each.names for each in policies_of("model.py", new)] == [("value",), ("x", "y"), ()]


@pytest.mark.parametrize(
    "text",
    [
        "p = save_only_these_names(*names)",
        "p = save_only_these_names(NAME)",
        'p = save_only_these_names("a", other=1)',
        'p = save_only_these_names(  # kept\n    "a")',
        'save_only_these_names("a"',
        'p = other("a")',
    ],
)
def test_what_is_no_list_of_texts_is_left_alone(text: str) -> None:
    assert [*policies_of("model.py", text)] == []


def test_lines_are_those_of_python() -> None:
    """A form feed ends no line, and a column is one of bytes."""
    text = 'a = "é\x0c"\nb = "é", save_only_these_names("query")\n'
    (found,) = policies_of("model.py", text)
    assert text[found.start : found.end] == '"query"'
