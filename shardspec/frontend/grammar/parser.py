"""Grammar -> parser: from the table that comes with the package, or worked out anew."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from shardspec import assets

if TYPE_CHECKING:
    from lark import Lark

#: Where parsing may begin, by grammar.
STARTS = {
    "axis_rule": ("axis_rule", "partition", "mesh_axes"),
    "names": ("names", "scan", "place"),
    "array_type": ("array_type", "size"),
    "mesh_axis": ("mesh_size",),
    "hardware": ("hardware",),
    "path_pattern": ("path_pattern",),
    "document": (
        *("version", "doc", "extends", "axis", "drop", "manifest", "policy", "lint", "override"),
        *("scan", "activation", "section", "machine", "target", "mesh", "mesh_entry"),
        *("rules_entry", "params_entry", "scan_entry", "arrays_entry", "activation_entry"),
        *("state", "coverage", "replicate"),
    ),
}


OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "maybe_placeholders": False,
    "propagate_positions": True,
}


@cache
def parser(grammar: str) -> Lark:
    """Return the parser for the grammar of this name."""
    from shardspec.frontend.grammar.tables import read_table

    return read_table(grammar) or build_parser(grammar)


def build_parser(grammar: str) -> Lark:
    """Return the parser, built from the text of its grammar."""
    from lark import Lark

    path = assets.grammar_path(grammar)
    starts = list(STARTS[grammar])
    return Lark.open(str(path), start=starts, **OPTIONS)


def main() -> None:
    """Write the table of every grammar anew."""
    from shardspec.frontend.grammar.tables import table_of, table_text

    for grammar in STARTS:
        text = table_text(table_of(build_parser(grammar), OPTIONS))
        assets.table_path(grammar).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
