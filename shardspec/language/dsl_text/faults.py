"""What to say about a statement of the DSL that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable

from shardspec.diagnostics.words import nearest
from shardspec.language.dsl_text.layout import BLOCKS, KEYWORDS, OTHER_WORDS, Statement
from shardspec.language.grammar import expressions
from shardspec.language.grammar.parse_faults import either, fault_table, stop_of
from shardspec.language.grammar.parser import parser
from shardspec.language.grammar.step_lines import parse_step_line
from shardspec.language.grammar.syntax import SyntaxFault

_Parse = Callable[[str], object]

_OPTIONAL = r"(?:optional\s+(?!because\b)(?=[^\s:=]))?"
_PATTERN = _OPTIONAL + r'(?:re:?"(?:[^"\\]|\\.)*"|"(?:[^"\\]|\\.)*"|(?:\\.|[^\s:="\\])+)'
#: A key of `step:` with its value.
STEP_SETTING = (
    r"(?:extends|mode|tokens|microbatches|remat|dtype|attention|gradients|experts|pipeline|gather|reduce)"
    r"\s+[\w.\"(]"
)
_MEMORY = r"(?:\s+memory\s+\w+)?"
_AT = r'(?:\s+at\s*"[^"]*"?)?'
_BECAUSE = rf"(?P<rest>{_MEMORY}(?:\s+because\b.*)?)$"

#: What stands before an expression and after it, and which expression it is.
_PAIR = rf"(?:{_PATTERN})\s*:(?P<text>.*)$"


def _answers(before: str, after: str) -> tuple[tuple[str, _Parse], ...]:
    """Return how what a pattern is given reads: names behind `:`, a partition behind `=`."""
    parsers = ((":", expressions.parse_names), ("=", expressions.parse_partition))
    return tuple(
        (rf"{before}(?:{_PATTERN})\s*{mark}(?P<text>.*?){after}", parse) for mark, parse in parsers
    )


#: An expression up to words, or to a text in quotes.
_TO_WORD = r'(?P<text>[^"]*?)(?:(?:\s+(?:{})\b|\s*").*)?$'.format

_EXPRESSIONS: dict[str, tuple[tuple[str, _Parse], ...]] = {
    "rules_entry": ((r"(?P<text>.*?)(?:\s+at\b.*)?$", expressions.parse_axis_rule),),
    "params_entry": ((_PAIR, expressions.parse_names),),
    "activation_entry": _answers("", f"{_MEMORY}{_AT}$"),
    "activation": _answers(r"\w+\s+", f"{_MEMORY}{_AT}$"),
    "scan_entry": ((_PAIR, expressions.parse_scan),),
    "scan": ((rf"\w+\s+{_PAIR}", expressions.parse_scan),),
    "derive_entry": ((_PAIR, expressions.parse_derived),),
    "arrays_entry": ((_PAIR, expressions.parse_array_type),),
    "mesh_entry": ((r"[^=]*=(?P<text>.*)$", expressions.parse_mesh_size),),
    "target": ((r"target\s+\S+\s+on\b(?P<text>.*)$", expressions.parse_hardware),),
    "mesh": ((r"mesh\s+on\b(?P<text>.*)$", expressions.parse_hardware),),
    "machine": ((r"hardware\b(?P<text>.*)$", expressions.parse_hardware),),
    "let": ((r"let\s+\S+\s*=(?P<text>.*)$", expressions.parse_size),),
    "step_entry": ((rf"(?!{STEP_SETTING})(?P<text>.*)$", parse_step_line),),
    "axis": (
        (rf"axis\s+\S+\s*={_TO_WORD('unit|min_shard')}", expressions.parse_size),
        (rf"axis\s[^\"]*?\sunit\b{_TO_WORD('min_shard')}", expressions.parse_size),
    ),
    "override": _answers(r"\w+\s+", _BECAUSE),
}

_BARE_REGEX = re.compile(
    r"(?:(?:override|scan|replicate|activation)\s+)?(?:optional\s+)?re:(?=[^\s\"])"
)
_BARE_REASON = re.compile(r'\sbecause\s*(?P<reason>(?:(?<=\s)[^"\s][^"]*)?)$')
_MESH_COLON = re.compile(r"(?P<axis>[A-Za-z_][\w.-]*)\s*+:\s*+(?P<size>\S(?:.*\S)?)\s*+")
_LOOK_BACK = 80
_MACHINES = frozenset({"target", "mesh", "machine"})


def statement_fault(start: str, text: str) -> SyntaxFault:
    """Return what is wrong with a statement or entry, with offsets into its text.

    Args:
      start: the start symbol that refused it.
    """
    unclosed = _unclosed_text(text)
    if unclosed is not None:
        return unclosed
    bare = _BARE_REGEX.match(text)
    if bare:
        help = 'a regex stands in quotes: `re".*/kernel"`'
        return SyntaxFault('expected `"` after `re`', bare.end() - 1, bare.end(), help)
    plain = _BARE_REASON.search(text) if start in {"override", "replicate"} else None
    if plain:
        help = 'a reason stands in quotes: `because "tiny"`'
        message = "expected text in double quotes after `because`"
        return SyntaxFault(message, plain.start("reason"), plain.end("reason"), help)
    return _expression_fault(start, text) or _layout_fault(start, text)


def unknown_statement(word: str, text: str, statement: Statement) -> SyntaxFault:
    """Return the fault of a statement that begins with a word that begins none."""
    shown = word if len(word) <= 40 else f"{word[:40]}..."
    known = known_word(word)
    end = statement.start + min(len(word), 40)
    if known and word.removesuffix(":") in {known, *OTHER_WORDS} and word.endswith(":"):
        help = _without_colon(known)
    elif known:
        help = f"did you mean `{known}`?"
    elif word.startswith("//"):
        help = "a comment begins with `#`"
    elif "->" in text[statement.start : statement.end]:
        help = "axis rules stand in a block: `rules { embed -> model }`"
    else:
        help = f"a statement begins with {either(tuple(f'`{word}`' for word in sorted(KEYWORDS)))}"
    return SyntaxFault(f"`{shown}` begins no statement", statement.start, end, help)


def _without_colon(keyword: str) -> str:
    """Return how a statement looks that was begun as a key of a YAML file."""
    if keyword in BLOCKS:
        return f"a block stands in braces: `{keyword} {{`"
    return f"no `:` after the word: `{fault_table().forms.get(keyword, keyword)}`"


def known_word(word: str) -> str:
    """Return the keyword that `word` was meant to be, or nothing."""
    plain = re.match(r"[\w-]+", word[:40])
    name = plain.group() if plain else word[:40]
    return OTHER_WORDS.get(name.lower()) or "".join(nearest(name, KEYWORDS))


def no_block(keyword: str) -> SyntaxFault:
    """Return the fault of a block without braces."""
    form = fault_table().forms.get(keyword, f"{keyword} {{ ... }}")
    if keyword in BLOCKS and keyword not in fault_table().forms:
        form = f"{keyword} {{ {fault_table().forms[entry_of(keyword)]} }}"
    message = f"expected `{{` after `{keyword}`"
    return SyntaxFault(message, 0, len(keyword), f"such as `{form}`")


_SIDE_BY_SIDE = "move it out: phases stand side by side, and each is merged over the spec alone"
#: The fault of a phase that stands in another.
PHASE_IN_PHASE = SyntaxFault("a phase stands in a phase", 0, len("phase"), _SIDE_BY_SIDE)


def entry_of(keyword: str) -> str:
    """Return the start symbol of the entries of a block."""
    starts = {"activations": "activation_entry", "target": "mesh_entry", "caches": "arrays_entry"}
    return starts.get(keyword, f"{keyword}_entry")


def _unclosed_text(text: str) -> SyntaxFault | None:
    """Return the fault of a quote without its partner."""
    for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)("?)', text):
        if not match[2]:
            help = 'close it with `"`; a quote within the text is written `\\"`'
            return SyntaxFault("this text is not closed", match.start(), match.end(), help)
    return None


def _expression_fault(start: str, text: str) -> SyntaxFault | None:
    """Return the fault of the expression in a statement, told by its own parser."""
    for layout, parse in _EXPRESSIONS.get(start, ()):
        match = re.match(layout, text, re.DOTALL)
        if match is None:
            continue
        fault = parse(match["text"])
        if isinstance(fault, SyntaxFault):
            fault = _told_better(start, match["text"], fault)
            at = match.start("text")
            return fault._replace(start=at + fault.start, end=at + fault.end)
    return None


def _told_better(start: str, text: str, fault: SyntaxFault) -> SyntaxFault:
    """Return the fault with a way out that only the DSL, or the catalogue, knows of."""
    if start in _MACHINES:
        from shardspec.language.catalogue import machine_fault

        return machine_fault(fault, text)
    if start == "rules_entry" and text.lstrip().startswith("- "):
        help = f"entries of a block stand without `-`: `{text.lstrip()[2:].strip()[:_LOOK_BACK]}`"
        return fault._replace(help=help)
    if start == "mesh_entry" and "," in text:
        help = "sizes are separated by `;` or lines: `{ data = rest; model = 8 }`"
        return fault._replace(help=help)
    return fault


def _layout_fault(start: str, text: str) -> SyntaxFault:
    """Return the fault of what stands around expressions."""
    stop = stop_of(parser("document"), start, text)
    found = re.compile(r"[-=]>|[\w.-]+|\S").match(text, stop.at)
    word = found.group() if found else ""
    before = re.findall(r"[-=]>|[\w./-]+|\S", text[max(0, stop.at - _LOOK_BACK) : stop.at])
    after = f" after `{before[-1]}`" if before else ""
    words = tuple(word.strip("`") for word in stop.words if word.startswith("`"))
    near = nearest(word, words) if word else ()
    help = f"did you mean `{near[0]}`?" if near else f"such as `{fault_table().forms[start]}`"
    sized = _MESH_COLON.fullmatch(text) if start == "mesh_entry" else None
    if sized and not isinstance(expressions.parse_mesh_size(sized["size"]), SyntaxFault):
        help = f"write `{sized['axis']} = {sized['size']}`"
    message = f"expected {either(stop.words)}{after}"
    return SyntaxFault(message, stop.at, stop.at + len(word), help)
