"""Grammar -> table: lark works out what `shardspec.language.grammar.parser` goes by.

    python -m tests.grammar_tables

The tables are part of the package, and a test holds them to the grammars. States are numbered as
they are met from the starts, so that the same grammar gives the same text on every run and under
every lark that can read it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from lark import Lark
from lark.grammar import Rule
from lark.lexer import PatternStr, TerminalDef

from shardspec import assets

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
        *("mesh_entry", "phase", "device_list", "rules_entry", "pair_entry", "array_entry"),
        *("activation_entry", "state", "coverage", "replicate", "step_setting"),
    ),
}


def build_parser(grammar: str) -> Lark:
    """Return lark's own parser for the grammar of this name."""
    return Lark.open(
        str(assets.grammar_path(grammar)),
        start=list(STARTS[grammar]),
        parser="lalr",
        maybe_placeholders=False,
        propagate_positions=True,
    )


def table_of(parser: Lark) -> dict[str, Any]:
    """Return the table of a parser; see `shardspec.language.grammar.parser.Table`."""
    data, memo = json.loads(json.dumps(parser.memo_serialize([TerminalDef, Rule])))
    frontend = data["parser"]
    rules = [each["@"] for each in data["rules"]]
    terminals = sorted(parser.terminals, key=_turn)
    return {
        "ignore": frontend["lexer_conf"]["ignore"],
        "terminals": [_terminal(each, terminals) for each in terminals],
        "rules": [_rule(memo[str(number)]) for number in rules],
        **_renumbered(frontend["parser"], rules),
    }


def _turn(terminal: TerminalDef) -> tuple[Any, ...]:
    """Return what lark sorts terminals by, the first of which to match counts."""
    pattern = terminal.pattern
    return -terminal.priority, -pattern.max_width, -len(pattern.value), terminal.name


def _terminal(terminal: TerminalDef, others: list[TerminalDef]) -> dict[str, Any]:
    """Return a terminal: of a word, with those that read it too, and then mean the word by it."""
    pattern = terminal.pattern
    if not isinstance(pattern, PatternStr):
        return {"name": terminal.name, "regex": pattern.to_regexp(), "shown": pattern.value}
    wider = [
        other.name
        for other in others
        if not isinstance(other.pattern, PatternStr)
        and other.priority == terminal.priority
        and _reads(other, pattern.value)
    ]
    found = {"name": terminal.name, "regex": pattern.to_regexp(), "shown": pattern.value}
    return {**found, "wider": wider} if wider else found


def _reads(terminal: TerminalDef, text: str) -> bool:
    match = re.match(terminal.pattern.to_regexp(), text)
    return match is not None and match[0] == text


def _rule(rule: dict[str, Any]) -> list[Any]:
    """Return what a rule makes: its name, and of each part whether it is kept or unpacked."""
    assert not rule["options"]["expand1"]
    keeps_all = rule["options"]["keep_all_tokens"]
    parts = ""
    for part in rule["expansion"]:
        if part["__type__"] == "Terminal":
            parts += "k" if keeps_all or not part["filter_out"] else "-"
        else:
            parts += "u" if part["name"].startswith("_") else "k"
    origin = rule["origin"]["name"]
    origin = origin if isinstance(origin, str) else origin[1]
    return [origin, rule["alias"] or origin, parts]


def _renumbered(parse: dict[str, Any], rules: list[int]) -> dict[str, Any]:
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


def table_text(table: dict[str, Any]) -> str:
    """Return a table as JSON, a line for each of its parts' entries."""
    parts = []
    for key, value in table.items():
        entries = [json.dumps(each, separators=(",", ":")) for each in value]
        listed = "[\n" + ",\n".join(entries) + "\n]"
        parts.append(f'"{key}": {listed if isinstance(value, list) else json.dumps(value)}')
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    """Write the table of every grammar anew."""
    for grammar in STARTS:
        text = table_text(table_of(build_parser(grammar)))
        assets.table_path(grammar).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
