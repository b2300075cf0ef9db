"""Grammar -> parser: from the table that comes with the package, or worked out anew.

To work a table out takes 15 to 300 ms a grammar, and most runs need five of the seven; to read one
takes about a millisecond. Lark's own way to keep a parser is a pickle, which whoever can write the
file can make run anything; a table holds names, numbers and lists, as JSON. The files are part of
the package, `python -m shardspec.language.grammar.parser` writes them, and a test holds them to the
grammars. States are numbered as they are met from the starts, so that the same grammar gives the
same text on every run and under every lark that can read it.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "derived": ("derived",),
    "mesh_axis": ("mesh_size",),
    "hardware": ("hardware",),
    "path_pattern": ("path_pattern",),
    "step": ("step_line",),
    "document": (
        *("version", "doc", "extends", "let", "axis", "drop", "manifest", "policy", "lint"),
        *("override", "scan", "activation", "section", "machine", "target", "mesh"),
        *("mesh_entry", "phase", "device_list", "rules_entry", "params_entry"),
        *("scan_entry", "arrays_entry", "activation_entry", "derive_entry", "state"),
        *("coverage", "replicate", "step_entry", "memory_entry", "training_entry"),
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
    return read_table(grammar) or build_parser(grammar)


def build_parser(grammar: str) -> Lark:
    """Return the parser, built from the text of its grammar."""
    from lark import Lark

    path = assets.grammar_path(grammar)
    starts = list(STARTS[grammar])
    return Lark.open(str(path), start=starts, **OPTIONS)


def main() -> None:
    """Write the table of every grammar anew."""
    for grammar in STARTS:
        text = table_text(table_of(build_parser(grammar), OPTIONS))
        assets.table_path(grammar).write_text(text, encoding="utf-8")


#: `terminals` and `rules` as lark describes them, `tokens` by name, and for each of the `states`
#: pairs of a token and a state to go to, or, below zero, a rule to reduce by (-1 is the first).
Table = dict[str, Any]

#: Versions of lark whose parsers are made of these parts.
KNOWN_LARKS = ("1.2.", "1.3.")


def read_table(grammar: str) -> Lark | None:
    """Return the parser kept for a grammar; None where there is none for this lark."""
    import json

    import lark

    path = assets.table_path(grammar)
    if not lark.__version__.startswith(KNOWN_LARKS) or not path.is_file():
        return None
    return parser_of(json.loads(path.read_text(encoding="utf-8")))


def parser_of(table: Table) -> Lark:
    """Return the parser that a table describes."""
    from lark import Lark

    terminals, rules = table["terminals"], table["rules"]
    memo = dict(enumerate([*terminals, *rules]))
    rule_at = [{"@": len(terminals) + index} for index in range(len(rules))]
    states = {
        state: {token: (0, to) if to >= 0 else (1, rule_at[-1 - to]) for token, to in actions}
        for state, actions in enumerate(table["states"])
    }
    starts = list(table["starts"])
    lexer = {**table["lexer"], "terminals": [{"@": index} for index in range(len(terminals))]}
    frontend = {
        "lexer_conf": lexer,
        "parser_conf": {"rules": rule_at, "start": starts, "parser_type": "lalr"},
        "parser": {
            "tokens": dict(enumerate(table["tokens"])),
            "states": states,
            "start_states": table["starts"],
            "end_states": table["ends"],
        },
    }
    options = {**table["options"], "start": starts}
    make: Callable[..., Lark] = Lark._load_from_dict  # what lark's own standalone parsers call
    return make({"parser": frontend, "rules": rule_at, "options": options}, memo)


def table_of(parser: Lark, options: dict[str, Any]) -> Table:
    """Return the table of a parser that lark has worked out.

    Args:
      options: those it was made with.
    """
    import json

    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    data, memo = json.loads(json.dumps(parser.memo_serialize([TerminalDef, Rule])))
    frontend = data["parser"]
    lexer = frontend["lexer_conf"]
    rules = [each["@"] for each in data["rules"]]
    return {
        "options": {**options, "lexer": data["options"]["lexer"]},
        "lexer": {key: value for key, value in lexer.items() if key != "terminals"},
        "terminals": [memo[str(each["@"])] for each in lexer["terminals"]],
        "rules": [memo[str(number)] for number in rules],
        **_renumbered(frontend["parser"], rules),
    }


def _renumbered(parse: dict[str, Any], rules: list[int]) -> Table:
    """Return tokens and states by their place: tokens by name, states as they are met."""
    names = sorted(parse["tokens"].values())
    tokens = {number: names.index(name) for number, name in parse["tokens"].items()}
    met = list(dict.fromkeys(state for _, state in sorted(parse["start_states"].items())))
    places = {state: index for index, state in enumerate(met)}
    states = []
    for state in met:  # grows on the way
        actions = []
        for number, (kind, to) in sorted(
            parse["states"][str(state)].items(), key=lambda action: tokens[action[0]]
        ):
            if kind:
                actions.append((tokens[number], -1 - rules.index(to["@"])))
                continue
            if to not in places:
                places[to] = len(met)
                met.append(to)
            actions.append((tokens[number], places[to]))
        states.append(actions)
    starts, ends = (
        {name: places[state] for name, state in sorted(parse[which].items())}
        for which in ("start_states", "end_states")
    )
    return {"tokens": names, "states": states, "starts": starts, "ends": ends}


def table_text(table: Table) -> str:
    """Return a table as JSON, a line for each of its parts' entries."""
    import json

    parts = []
    for key, value in table.items():
        entries = [json.dumps(each, separators=(",", ":")) for each in value]
        listed = "[\n" + ",\n".join(entries) + "\n]"
        parts.append(f'"{key}": {listed if isinstance(value, list) else json.dumps(value)}')
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    main()
