"""What libyaml says is wrong -> where a person looks, and what would work.

libyaml reports the character at which its state machine gave up. Nearly always the slip is
one of a dozen: a tab, a missing space after `:`, a pattern that starts with `*` or `{` without
quotes, an apostrophe inside apostrophes. Each has a function here that recognises it from the
report and the text around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span, codes
from shardspec.language.grammar import parse_faults


@dataclass(frozen=True, slots=True)
class Trouble:
    """One report of libyaml.

    Attributes:
      at: offset of the character where it gave up.
      opened_at: offset where what it was reading began, or None.
    """

    source: SourceFile
    problem: str
    context: str
    at: int
    opened_at: int | None

    @property
    def text(self) -> str:
        """Return the whole text."""
        return self.source.text

    @property
    def char(self) -> str:
        """Return the character where libyaml gave up, or "" at the end."""
        return self.text[self.at : self.at + 1]

    def span(self, start: int, end: int | None = None) -> Span:
        """Return a span kept inside the text; one character long where `end` is None."""
        size = len(self.text)
        return Span(self.source, min(start, size), min(start + 1 if end is None else end, size))

    def line_start(self, offset: int) -> int:
        """Return where the line of `offset` starts."""
        return self.text.rfind("\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """Return the end of what stands on the line of `offset`, its comment left out."""
        end = self.text.find("\n", offset)
        line = self.text[offset : len(self.text) if end < 0 else end]
        return offset + len(re.split(r"\s#", line, maxsplit=1)[0].rstrip())

    def word_end(self, offset: int) -> int:
        """Return the end of the key or value that starts at `offset`."""
        end = self.line_end(offset)
        found = re.search(r":(?=\s|$)", self.text[offset:end])
        return offset + found.start() if found else end

    def is_line_start(self, offset: int) -> bool:
        """Say whether only blanks stand before `offset` on its line."""
        return not self.text[self.line_start(offset) : offset].strip()

    def report(
        self, message: str, span: Span, label: str, way_out: str | None, *others: Label
    ) -> Diagnostic:
        """Return the finding with its culprit at `span`."""
        return Diagnostic(codes.SYNTAX, message, (Label(span, label), *others), help=way_out)

    def unquoted(self, message: str, start: int, end: int) -> Diagnostic:
        """Return the finding for what needs quotes."""
        return self.report(message, self.span(start, end), "", advise_quotes(self, start, end))


def advise_quotes(trouble: Trouble, start: int, end: int) -> str:
    """Return the advice to quote what stands there."""
    text = trouble.text[start:end]
    quote = "'" if '"' in text or "\\" in text else '"'
    return "quote it" if quote in text else f"quote it: {quote}{shorten(text)}{quote}"


def shorten(text: str) -> str:
    """Return text cut to what fits a message."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def indent_of(text: str, start: int) -> int:
    """Return the number of spaces at `start`."""
    rest = text[start : start + 4096]
    return len(rest) - len(rest.lstrip(" "))


def line_above(trouble: Trouble, start: int) -> Span | None:
    """Return what stands on the nearest line above that holds more than a comment."""
    while start > 0:
        start = trouble.line_start(start - 1)
        begin = start + indent_of(trouble.text, start)
        end = trouble.line_end(begin)
        if end > begin and trouble.text[begin] != "#":
            return trouble.span(begin, end)
    return None


_NO_SPACE = re.compile(r"""[ \t]*(?:-[ \t]+)?([^\s"'#:{\[][^\s"'#:]*)(:)([^\s:/][^\n]*)""")


_CLOSING = {"[": "]", "{": "}"}
#: Quoted text and comments, whose brackets do not count, and brackets.
_BRACKET = re.compile(r"'[^']*+'|\"(?:\\.|[^\"\\])*+\"|(?<!\S)#.*+|[\[{\]}]")
_PARTITION = re.compile(r"(?<![\w.])(?:\w++\.)*+(?:P|PartitionSpec)\((?:[^()]++|\([^()]*+\))*+\)")
#: `hardware: {1..8} * tpu v5e 16x16`, up to what ends the value.
_COUNTS = re.compile(r":\s+(\{[\d.,\s]+\}\s*\*[^,{}#\n]*[^,{}#\s])")

_ANCHORS = ("while scanning an alias", "while scanning an anchor")


def explain_yaml_error(error: Any, source: SourceFile) -> Diagnostic:
    """Return the finding for an error of libyaml's scanner or parser."""
    mark, opened = error.problem_mark or error.context_mark, error.context_mark
    at, opened_at = (min(each.index, len(source.text)) if each else None for each in (mark, opened))
    trouble = Trouble(source, error.problem or "", error.context or "", at or 0, opened_at)
    found = (explainer(trouble) for explainer in _EXPLAINERS)
    return next(filter(None, found), None) or _other(trouble)


def _tab(trouble: Trouble) -> Diagnostic | None:
    if trouble.char != "\t":
        return None
    rest = trouble.text[trouble.at :]
    span = trouble.span(trouble.at, trouble.at + len(rest) - len(rest.lstrip("\t")))
    message, way_out = "a tab stands where only spaces may", "replace the tab by a space"
    if trouble.is_line_start(trouble.at):
        message = "a tab indents this line"
        way_out = "YAML is indented by spaces: two for each level"
    return trouble.report(message, span, "tab", way_out)


def _forbidden_start(trouble: Trouble) -> Diagnostic | None:
    """Explain `@x`, `%x` and a backtick: YAML keeps them for itself."""
    if not trouble.problem.startswith("found character that cannot start any token"):
        return None
    message = f"a plain word cannot start with `{trouble.char}`".replace("```", "a backtick")
    return trouble.unquoted(message, trouble.at, trouble.word_end(trouble.at))


def _sign(trouble: Trouble) -> Diagnostic | None:
    """Explain a pattern such as `**/mlp` without quotes, and `!x`."""
    start = trouble.opened_at
    if start is None:
        return None
    sign = trouble.text[start : start + 1]
    is_tag = sign == "!" and ("tag" in trouble.context or "tag" in trouble.problem)
    if not is_tag and not trouble.context.startswith(_ANCHORS):
        return None
    line = trouble.text[trouble.line_start(start) : trouble.line_end(start)]
    counts = _COUNTS.search(line) if sign == "*" else None
    if counts is not None:
        at = trouble.line_start(start) + counts.start(1)
        message = "braces without quotes are a mapping in YAML"
        end = at + len(counts[1])
        return trouble.report(message, trouble.span(at, end), "", f'quote it: "{counts[1]}"')
    kind = {"*": "an alias", "&": "an anchor"}.get(sign, "a tag")
    message = f"a plain word that starts with `{sign}` is {kind} in YAML"
    return trouble.unquoted(message, start, max(trouble.word_end(start), start + 1))


def _second_colon(trouble: Trouble) -> Diagnostic | None:
    """Explain `doc: heads: 3`, a line that goes too deep, and a missing space one line up."""
    if not trouble.problem.startswith("mapping values are not allowed"):
        return None
    start, end = trouble.line_start(trouble.at), trouble.line_end(trouble.at)
    before = trouble.text[start : trouble.at]
    if len(before) > 1000 and ": " not in before:
        message = f"a key of {len(before):,} characters is too long for one line"
        way_out = "write it as `? KEY`, and `: VALUE` below it"
        return trouble.report(message, trouble.span(start, trouble.at), "", way_out)
    if (colon := before.find(": ")) >= 0:
        value = start + colon + 2
        value += len(trouble.text[value:end]) - len(trouble.text[value:end].lstrip())
        message = "a plain value cannot hold `: `"
        way_out = advise_quotes(trouble, value, max(end, trouble.at + 1))
        return trouble.report(message, trouble.span(trouble.at), "the second on this line", way_out)
    return _too_deep_line(trouble, start)


def _too_deep_line(trouble: Trouble, start: int) -> Diagnostic:
    above = line_above(trouble, start)
    entry = trouble.span(start + indent_of(trouble.text, start), trouble.at)
    if above is None:
        return trouble.report("a key cannot stand here", entry, "", "check the quotes above it")
    above_start = trouble.line_start(above.start)
    if found := _NO_SPACE.match(trouble.text, above_start, above.end):
        return _missing_space(trouble, found)
    if ": " not in above.text:
        message = f"`{shorten(above.text)}` has no `:`, so it cannot be a key"
        way_out = f"write `{shorten(above.text)}:` to begin a mapping"
        other = Label(entry, "what would be in it", primary=False)
        return trouble.report(message, above, "", way_out, other)
    other = Label(above, "which has its value on its own line", primary=False)
    message = "this line is indented deeper than the entry above it"
    way_out = "line the two up; or, if this belongs to the value above, quote all of the value"
    return trouble.report(message, entry, "", way_out, other)


def _no_colon(trouble: Trouble) -> Diagnostic | None:
    """Explain a line among `key: value` lines that is none."""
    if not trouble.problem.startswith("could not find expected ':'") or trouble.opened_at is None:
        return None
    start = trouble.opened_at
    if found := _NO_SPACE.match(trouble.text, trouble.line_start(start), trouble.line_end(start)):
        return _missing_space(trouble, found)
    end = max(trouble.line_end(start), start + 1)
    entry = shorten(trouble.text[start:end])
    if "->" in entry:
        rule = entry.lstrip("-* ")
        way_out = f"rules are list items: `- {rule}`, lined up with the other items"
    else:
        way_out = f"write `{entry}: VALUE`, or `- {entry}` for an item of a list"
    message = f"`{entry}` is not `key: value`"
    return trouble.report(message, trouble.span(start, end), "no `:` here", way_out)


def _missing_space(trouble: Trouble, found: re.Match[str]) -> Diagnostic:
    key, value = found[1], found[3].rstrip()
    message = "a space is missing after `:`"
    way_out = f"write `{shorten(key)}: {shorten(value)}`"
    return trouble.report(message, trouble.span(found.start(2)), "", way_out)


def _unclosed_quote(trouble: Trouble) -> Diagnostic | None:
    if "quoted scalar" not in trouble.context or "unexpected" not in trouble.problem:
        return None
    start = trouble.at if trouble.opened_at is None else trouble.opened_at
    quote = trouble.text[start : start + 1]
    message = "a quote is never closed"
    return trouble.report(message, trouble.span(start), "opened here", f"close it with {quote}")


def _escape(trouble: Trouble) -> Diagnostic | None:
    """Explain a regex in double quotes."""
    if "quoted scalar" not in trouble.context or trouble.opened_at is None:
        return None
    start = trouble.text.rfind("\\", trouble.opened_at, trouble.at + 1)
    if start < 0:
        return None
    end = max(start + 2, trouble.at + 1) if "escape character" not in trouble.problem else start + 2
    span = trouble.span(start, end)
    message = f"`{shorten(span.text)}` is not an escape that YAML knows"
    way_out = "in single quotes a backslash is a backslash: '\\d+'"
    return trouble.report(message, span, "", way_out)


def _unclosed_bracket(trouble: Trouble) -> Diagnostic | None:
    if not trouble.problem.startswith("did not find expected ',' or"):
        return None
    start = trouble.at if trouble.opened_at is None else trouble.opened_at
    bracket = trouble.text[start : start + 1]
    closing, opened = _CLOSING[bracket], "opened here"
    if not trouble.text[trouble.at :].strip():
        return _never_closed(trouble, start)
    if variable := parse_faults.SHELL_VARIABLE.match(trouble.text, max(0, trouble.at - 1)):
        found = parse_faults.variable_fault(variable)
        return trouble.report(found.message, trouble.span(found.start, found.end), "", found.help)
    quote = f"between `{bracket}` and `{closing}`, quote values that hold `[ ] {{ }} ,` or `: `"
    way_out = _partition_within(trouble, start) or quote
    other = Label(trouble.span(start), opened, primary=False)
    message = f"`,` or `{closing}` is missing"
    return trouble.report(message, trouble.span(trouble.at), "before this", way_out, other)


def _never_closed(trouble: Trouble, start: int) -> Diagnostic:
    bracket = trouble.text[start : start + 1]
    way_out = f"close it with `{_CLOSING[bracket]}`"
    message = f"`{bracket}` is never closed"
    return trouble.report(message, trouble.span(start), "opened here", way_out)


def _last_open(text: str) -> int | None:
    """Return where the innermost bracket is that a text leaves open."""
    open_at: list[int] = []
    for found in _BRACKET.finditer(text):
        if found[0] in _CLOSING:
            open_at.append(found.start())
        elif found[0] in _CLOSING.values() and open_at:
            open_at.pop()
    return open_at[-1] if open_at else None


def _partition_within(trouble: Trouble, start: int) -> str | None:
    """Return how `P(None, 'data')` is written, where one stands in a flow mapping unquoted."""
    found = _PARTITION.search(trouble.text, start, trouble.line_end(start))
    meant = parse_faults.partition_meant(found[0]) if found else None
    return f'write `"{meant}"`, in quotes' if meant else None


def _goes_on(trouble: Trouble) -> Diagnostic | None:
    """Explain what follows a closing quote or bracket: `{0..3}/kernel: x`, `'it's'`."""
    if not trouble.problem.startswith("did not find expected"):
        return None
    start = trouble.line_start(trouble.at)
    before = trouble.text[start : trouble.at].rstrip()
    if found := re.search(r"(?:^|\s)([*&!]\S*)$", before):
        at = start + found.start(1)
        return _sign(replace(trouble, context="while scanning an alias", opened_at=at))
    if not before.endswith(("'", '"', "]", "}")):
        return None
    end = max(trouble.line_end(trouble.at), trouble.at + 1)
    last = before[-1]
    span = trouble.span(trouble.at, end)
    label = "after the end of the value"
    if last in "'\"":
        way_out = "write '' for a ' inside" if last == "'" else 'write \\" for a " inside'
        way_out = _unquoted_rule(trouble.text[start:end]) or way_out
        return trouble.report(f"text goes on after the closing {last}", span, label, way_out)
    way_out = "a pattern or value that starts with a bracket needs quotes around all of it"
    if dtype := re.fullmatch(r"[a-z]++\d++\w*+", trouble.text[trouble.at : end].strip()):
        sizes = before[before.rindex("[") :] if "[" in before else "[]"
        way_out = f"write the dtype before the sizes: `{dtype[0]}{sizes}`"
        return trouble.report(f"text goes on after `{last}`", span, label, way_out)
    if opened := re.match(r"[ \t]*(?:-[ \t]+)?(?:[^\s{\[]+:[ \t]+)?(?=[{\[])", before):
        at = start + opened.end()
        quoted = advise_quotes(trouble, at, trouble.word_end(trouble.at))
        way_out = _rule_way_out(trouble, at, end) or quoted
    return trouble.report(f"text goes on after `{last}`", span, label, way_out)


def _unquoted_rule(line: str) -> str | None:
    """Return how `"batch" -> "fsdp"` is written: YAML ends the text at the second quote."""
    bare = re.sub(r"[\"']", "", line).strip().removeprefix("- ")
    left, arrow, right = bare.partition("->")
    meant = parse_faults.rule_meant(f"[{left.strip()}] -> {right.strip()}") if arrow else None
    return f"write names without quotes: `{meant}`" if meant else None


def _rule_way_out(trouble: Trouble, start: int, end: int) -> str | None:
    """Return how `[a, b] -> x` is written, which quotes alone would not make a rule."""
    if not trouble.text[trouble.at :].startswith("->"):
        return None
    meant = parse_faults.rule_meant(trouble.text[start:end])
    return f"write `{meant}`" if meant else None


def _bad_indent(trouble: Trouble) -> Diagnostic | None:
    """Explain a line that belongs to no list or mapping that is open."""
    is_list = trouble.problem.startswith("did not find expected '-'")
    if not is_list and not trouble.problem.startswith("did not find expected key"):
        return None
    if trouble.opened_at is None or not trouble.is_line_start(trouble.at):
        return None
    span = trouble.span(trouble.at, max(trouble.word_end(trouble.at), trouble.at + 1))
    opened = trouble.span(trouble.opened_at)
    kind = "list" if is_list else "mapping"
    other = Label(opened, f"a {kind} begins here, in column {opened.column}", primary=False)
    here = f"column {span.column}"
    if span.column != opened.column:
        above = line_above(trouble, trouble.line_start(trouble.at))
        if above is not None and above.line != opened.line:
            other = Label(above, f"column {above.column}", primary=False)
        message = "this line is lined up with nothing above it"
        way_out = "entries of one list or mapping start in the same column"
    elif is_list:
        message = "a key stands among the items of a list"
        way_out = "start it with `- `, or indent it"
    elif trouble.char == ":":
        message, way_out = "a key is missing before `:`", "write `name: value`"
    else:
        message, way_out = "a list item stands among keys", "begin it under a key of its own"
    return trouble.report(message, span, here, way_out, other)


def _no_content(trouble: Trouble) -> Diagnostic | None:
    if not trouble.problem.startswith("did not find expected node content"):
        return None
    message = f"a value cannot start with `{shorten(trouble.char)}`"
    if trouble.char == ":":
        message = "a key is missing before `:`"
    elif trouble.char in ("}", "]"):
        message = f"`{trouble.char}` closes nothing"
    elif not trouble.char:
        start = _last_open(trouble.text)
        if start is not None:
            return _never_closed(trouble, start)
        message = "a value is missing"
    way_out = advise_quotes(trouble, trouble.at, max(trouble.word_end(trouble.at), trouble.at + 1))
    return trouble.report(message, trouble.span(trouble.at), "", way_out)


def _block_on_line(trouble: Trouble) -> Diagnostic | None:
    """Explain `a: - b` and `a: ? b`."""
    if "not allowed in this context" not in trouble.problem:
        return None
    end = max(trouble.line_end(trouble.at), trouble.at + 1)
    item = trouble.text[trouble.at + 1 : end].strip()
    message = f"`{trouble.char} ` cannot stand after a key on one line"
    if trouble.char == "-":
        way_out = f"put the list on lines of its own, or write `[{shorten(item)}]`"
    else:
        way_out = advise_quotes(trouble, trouble.at, end)
    return trouble.report(message, trouble.span(trouble.at), "", way_out)


def _after_document(trouble: Trouble) -> Diagnostic | None:
    if "<document start>" not in trouble.problem:
        return None
    span = trouble.span(trouble.at, max(trouble.line_end(trouble.at), trouble.at + 1))
    message = "text goes on after the end of the document"
    return trouble.report(message, span, "", "one file holds one spec, which is one mapping")


def _block_scalar(trouble: Trouble) -> Diagnostic | None:
    if "block scalar" not in trouble.context or trouble.opened_at is None:
        return None
    start = trouble.opened_at
    mark = trouble.text[start : start + 1]
    message = f"after `{mark}` the line must end: it begins a text on the lines below"
    way_out = advise_quotes(trouble, start, max(trouble.line_end(start), start + 1))
    return trouble.report(message, trouble.span(trouble.at), "", way_out)


def _directive(trouble: Trouble) -> Diagnostic | None:
    start = trouble.line_start(trouble.at)
    if trouble.text[start : start + 1] != "%":
        return None
    span = trouble.span(start, max(trouble.line_end(start), start + 1))
    message = f"`{shorten(span.text)}` is not a directive that can be read"
    return trouble.report(message, span, "", "leave the line out; a spec needs none")


def _other(trouble: Trouble) -> Diagnostic:
    message = f"this is not YAML: {trouble.problem or 'it cannot be read'}"
    others: tuple[Label, ...] = ()
    if trouble.opened_at is not None and trouble.opened_at != trouble.at:
        others = (Label(trouble.span(trouble.opened_at), trouble.context, primary=False),)
    return trouble.report(message, trouble.span(trouble.at), "", None, *others)


_EXPLAINERS = (
    _tab, _forbidden_start, _sign, _second_colon, _no_colon, _unclosed_quote, _escape,
    _unclosed_bracket, _goes_on, _bad_indent, _no_content, _block_on_line, _after_document,
    _block_scalar, _directive,
)  # fmt: skip
