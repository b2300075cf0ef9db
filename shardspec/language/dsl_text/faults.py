"""What to say about a statement of the DSL that cannot be read."""

from __future__ import annotations

import re

from shardspec.diagnostics.words import nearest
from shardspec.language.dsl_text.layout import BLOCKS, KEYWORDS, OTHER_WORDS, Statement
from shardspec.language.grammar import expressions
from shardspec.language.grammar.parse_faults import either, expected, fault_table
from shardspec.language.grammar.parser import parser
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.sections import SECTIONS

#: What begins a size of an axis behind its first, and what ends one.
_UNIT = re.compile(r"\sunit\b")
_SIZE_END = re.compile(r"\s(?:unit|min_shard)\b")
#: The start symbols of entries whose forms differ, and no more.
ENTRY_STARTS = {
    **{f"{each.name}_entry": "pair_entry" for each in SECTIONS.values() if each.rules},
    "arrays_entry": "array_entry",
    "step_entry": "step_setting",
}

_BARE_REGEX = re.compile(
    r"(?:(?:override|scan|replicate|activation)\s+)?(?:optional\s+)?re:(?=[^\s\"])"
)
_BARE_REASON = re.compile(r'\sbecause\s*(?P<reason>(?:(?<=\s)[^"\s][^"]*)?)$')
_MESH_COLON = re.compile(r"(?P<axis>[A-Za-z_][\w.-]*)\s*+:\s*+(?P<size>\S(?:.*\S)?)\s*+")
_LOOK_BACK = 80


def statement_fault(start: str, text: str) -> SyntaxFault:
    """Return what is wrong with a statement or entry, with offsets into its text.

    Args:
      start: the start symbol that refused it.
    """
    bare = _BARE_REGEX.match(text)
    if bare:
        help = 'a regex stands in quotes: `re".*/kernel"`'
        return SyntaxFault('expected `"` after `re`', bare.end() - 1, bare.end(), help)
    plain = _BARE_REASON.search(text) if start in {"override", "replicate"} else None
    if plain:
        help = 'a reason stands in quotes: `because "tiny"`'
        message = "expected text in double quotes after `because`"
        return SyntaxFault(message, plain.start("reason"), plain.end("reason"), help)
    return _size_fault(start, text) or _layout_fault(start, text)


def early_fault(start: str, text: str) -> SyntaxFault | None:
    """Return the fault of an open quote, or of an entry as in YAML: behind `-`, with commas."""
    if '"' in text and (unclosed := _unclosed_text(text)):
        return unclosed
    before, fault = "", object()
    if start == "rules_entry" and text.startswith("- "):
        help = f"entries of a block stand without `-`: `{text[2:].strip()[:_LOOK_BACK]}`"
        fault = expressions.parse_axis_rule(text)
    elif start == "mesh_entry" and "," in text:
        help = "sizes are separated by `;` or lines: `{ data = rest; model = 8 }`"
        before = text[: text.find("=", text.rfind('"') + 1) + 1]
        fault = expressions.parse_mesh_size(text[len(before) :])
    if not isinstance(fault, SyntaxFault):
        return None
    return SyntaxFault(fault.message, len(before) + fault.start, len(before) + fault.end, help)


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
        form = f"{keyword} {{ {_form(entry_of(keyword))} }}"
    message = f"expected `{{` after `{keyword}`"
    return SyntaxFault(message, 0, len(keyword), f"such as `{form}`")


_SIDE_BY_SIDE = "move it out: phases stand side by side, and each is merged over the spec alone"
#: The fault of a phase that stands in another.
PHASE_IN_PHASE = SyntaxFault("a phase stands in a phase", 0, len("phase"), _SIDE_BY_SIDE)


def entry_of(keyword: str) -> str:
    """Return the start symbol of the entries of a block."""
    starts = {"activations": "activation_entry", "target": "mesh_entry", "caches": "arrays_entry"}
    return starts.get(keyword, f"{keyword}_entry")


def _form(start: str) -> str:
    """Return how a statement or an entry looks; one by pattern, that nothing shows, as others."""
    forms = fault_table().forms
    return forms.get(start, forms["params_entry"])


def _unclosed_text(text: str) -> SyntaxFault | None:
    """Return the fault of a quote without its partner."""
    for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)("?)', text):
        if not match[2]:
            help = 'close it with `"`; a quote within the text is written `\\"`'
            return SyntaxFault("this text is not closed", match.start(), match.end(), help)
    return None


def _size_fault(start: str, text: str) -> SyntaxFault | None:
    """Return the fault that the parser of sizes finds in a statement."""
    if start not in ("axis", "let"):
        return None
    plain = text.partition('"')[0]
    equals = plain.find("=") + 1
    unit = _UNIT.search(plain, equals) if start == "axis" else None
    for at in filter(None, (equals, unit and unit.end())):
        stop = _SIZE_END.search(plain, at) if start == "axis" else None
        fault = expressions.parse_size(plain[at : stop.start() if stop else len(plain)])
        if isinstance(fault, SyntaxFault):
            return fault._replace(start=at + fault.start, end=at + fault.end)
    return None


def _layout_fault(start: str, text: str) -> SyntaxFault:
    """Return the fault of what stands around expressions."""
    machine = parser("document")
    stop = machine.stop(text, ENTRY_STARTS.get(start, start))
    expects = expected(machine, stop.accepted)
    found = re.compile(r"[-=]>|[\w.-]+|\S").match(text, stop.at)
    word = found.group() if found else ""
    before = re.findall(r"[-=]>|[\w./-]+|\S", text[max(0, stop.at - _LOOK_BACK) : stop.at])
    after = f" after `{before[-1]}`" if before else ""
    words = tuple(word.strip("`") for word in expects if word.startswith("`"))
    near = nearest(word, words) if word else ()
    help = f"did you mean `{near[0]}`?" if near else f"such as `{_form(start)}`"
    sized = _MESH_COLON.fullmatch(text) if start == "mesh_entry" else None
    if sized and not isinstance(expressions.parse_mesh_size(sized["size"]), SyntaxFault):
        help = f"write `{sized['axis']} = {sized['size']}`"
    message = f"expected {either(expects)}{after}"
    return SyntaxFault(message, stop.at, stop.at + len(word), help)
