"""A line of `step:` as a node: what it reads, what it makes, how often it runs.

`residual, "**/query/kernel" -> query x 24` reads a value and arrays, and makes a value. Offsets are
relative to the line's own text, as those of all expressions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from shardspec.ir.program import SCHEDULES, Balance, Experts, Schedule
from shardspec.language.grammar.expressions import reader
from shardspec.language.grammar.parser import Node, Token
from shardspec.language.grammar.syntax import Name, SizeExpr, SyntaxFault, unquoted
from shardspec.language.grammar.syntax import size as stated_size

#: Units of a number of tokens.
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_COUNT = re.compile(r"\s*+(?P<number>[0-9]{1,18}(?:\.[0-9]{1,6})?)\s*+(?P<unit>[KMBT]?)\s*+", re.I)
_MOST_TOKENS = 10**18

_SHARE = r"[0-9]{1,6}(?:\.[0-9]{1,6})?"
_EXPERTS = re.compile(
    r"\s*top\s+(?P<choices>[0-9]{1,6})"
    rf"(?:\s+(?P<how>dropless)|\s+capacity\s+(?P<share>{_SHARE}))?"
    rf"(?:\s+balance\s+(?P<mean>{_SHARE})\s+p99\s+(?P<p99>{_SHARE}))?\s*"
)

_SCHEDULE = re.compile(r"\s*(?P<kind>[a-z0-9-]{1,20})(?:\((?P<chunks>[0-9]{1,3})\))?\s*")

_KINDS = {"VALUE": "value", "REGEX": "regex"}


class LineDim(NamedTuple):
    """A dimension in the brackets of a line: `length`, `length as klength`, `slot=640`, `_`.

    Attributes:
      name: None for `_`.
      alias: the name that the line knows it by, where it is another.
      size: where it is written.
    """

    name: Name | None
    alias: Name | None = None
    size: int | None = None


class LineTerm(NamedTuple):
    """Something that a line reads or makes.

    Attributes:
      kind: `value` for a name, which may be that of an array; else arrays by pattern.
      dims: those in brackets; None where there are none.
    """

    text: str
    kind: Literal["value", "glob", "regex"]
    dims: tuple[LineDim, ...] | None
    start: int
    end: int


class LineExpr(NamedTuple):
    """A whole line.

    Attributes:
      call: `flash`, `gather`, `dispatch` or another word; empty for an einsum.
      flops: what `op` states, or `flash` where a mask leaves something out.
      times: the number behind `x`.
      per: the arrays behind `per`.
    """

    call: str
    operands: tuple[LineTerm, ...]
    results: tuple[LineTerm, ...]
    flops: SizeExpr | None = None
    times: int | None = None
    per: LineTerm | None = None


def step_line(tree: Node) -> LineExpr:
    """Return the line of a `step_line` tree."""
    parts = {node.name: node for node in tree.nodes}
    return LineExpr(
        parts["call"].tokens[0].text if "call" in parts else "",
        tuple(map(_term, parts["operands"].nodes)),
        tuple(map(_term, parts["results"].nodes)),
        stated_size(parts["flops"].nodes[0]) if "flops" in parts else None,
        int(parts["times"].tokens[-1]) if "times" in parts else None,
        _named(parts["per"].tokens[-1]) if "per" in parts else None,
    )


def _term(tree: Node) -> LineTerm:
    term = _named(tree.tokens[0])
    return term._replace(dims=tuple(map(_dim, tree.nodes[0].nodes))) if tree.nodes else term


def _named(token: Token) -> LineTerm:
    text = token.text
    if token.type == "STRING":
        text = unquoted(text)
    elif token.type == "REGEX":
        text = text[3:-1]
    kind: Any = _KINDS.get(token.type, "glob")
    return LineTerm(text, kind, None, token.start, token.end)


def _dim(tree: Node) -> LineDim:
    first, *rest = tree.tokens
    name = None if first.type == "BLANK" else _name(first)
    size = next((int(token) for token in rest if token.type.endswith("SIZE")), None)
    alias = next((_name(token) for token in rest if token.type.endswith("LOGICAL_AXIS")), None)
    return LineDim(name, alias, size)


def _name(token: Token) -> Name:
    return Name(token.text, token.start, token.end)


def in_step_line(line: LineExpr) -> SyntaxFault | None:
    """Return what a line lacks, or has too much of."""
    several = line.results[1] if len(line.results) > 1 else None
    if several is not None and line.call not in ("split", "op"):
        help = "a line makes one thing; `split(qkv) -> query, key` makes several"
        return SyntaxFault("a second result", several.start, several.end, help)
    at = line.operands[0]
    if line.flops is None and line.call == "op":
        help = "say what it computes: `op(a, b) -> c, flops 2 * batch * embed`"
        return SyntaxFault("`op` without FLOPs", 0, at.start, help)
    if line.flops is not None and line.call not in ("op", "flash"):
        help = "names say what an einsum computes; remove it, or write `op(...)`"
        return SyntaxFault("only `op` and `flash` state their FLOPs", at.start, at.end, help)
    wanted = _OPERANDS.get(line.call, ())
    if wanted and len(line.operands) not in wanted:
        last = line.operands[-1]
        numbers = " or ".join(map(str, wanted))
        message = f"`{line.call}` takes {numbers}, and this is {len(line.operands)}"
        return SyntaxFault(message, line.operands[0].start, last.end, _FORMS[line.call])
    if line.times == 0:
        return SyntaxFault("a line that runs 0 times", 0, line.operands[0].end, "remove it")
    return None


#: `residual, "**/query/kernel" -> query`.
parse_step_line = reader("step", "step_line", step_line, in_step_line)


_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "flash": (2, 3),
    **dict.fromkeys(("gather", "dispatch", "combine"), (2,)),
    **dict.fromkeys(("split", "route"), (1,)),
}
_FORMS = {
    "flash": "as in `flash(query, key, value) -> context`, or `flash(query, key_value) -> context`",
    "gather": "as in `gather(tokens, embedder/embedding) -> residual`",
    "dispatch": "as in `dispatch(residual, routing) -> arrived[expert batch slot embed]`",
    "combine": "as in `combine(made, routing) -> residual`",
    "route": "as in `route(scores) -> dispatch[batch length expert slot]`",
    "split": "as in `split(qkv) -> query, key, value`",
}


def parse_experts(text: str) -> Experts | SyntaxFault:
    """Return how tokens go to experts.

    >>> parse_experts("top 2 capacity 1.25")
    Experts(choices=2, capacity=1.25, is_dropless=False, balance=None)
    >>> parse_experts("top 2 dropless balance 1.2 p99 2").balance
    Balance(mean=1.2, p99=2.0)
    """
    found = _EXPERTS.fullmatch(text)
    if found is None or not int(found["choices"]) or (found["share"] and not float(found["share"])):
        message = f"`{text.strip()[:40]}` does not say how tokens go to experts"
        help = "as in `top 2 capacity 1.25`: two of them, and room for 1.25 times the even share;"
        help += " or `top 2 dropless`: tokens are sorted by expert"
        return SyntaxFault(message, 0, len(text), help)
    made = Experts(int(found["choices"]), float(found["share"] or 1), bool(found["how"]))
    if found["mean"] is None:
        return made
    balance = Balance(float(found["mean"]), float(found["p99"]))
    return _balance_fault(balance, text, made) or made._replace(balance=balance)


def _balance_fault(balance: Balance, text: str, experts: Experts) -> SyntaxFault | None:
    """Return why experts cannot be as uneven as a line says."""
    start = text.index("balance")
    if not experts.is_dropless:
        message = "with a capacity every expert has the same slots, however uneven the choice is"
        help = "leave `balance` out, or write `dropless`, where an expert takes what is chosen"
    elif not 1 <= balance.mean <= balance.p99:
        message = f"`{balance}`: the busiest expert has at least its even share, 1, and p99 more"
        help = "as in `top 2 dropless balance 1.2 p99 2`: of the busiest, over the even share"
    else:
        return None
    return SyntaxFault(message, start, len(text), help)


def parse_schedule(text: str) -> Schedule | SyntaxFault:
    """Return how the stages of a pipeline take turns.

    >>> parse_schedule("1f1b"), parse_schedule("interleaved(2)")
    (Schedule(kind='1f1b', chunks=1), Schedule(kind='interleaved', chunks=2))
    """
    found = _SCHEDULE.fullmatch(text)
    chunks = int(found["chunks"] or 1) if found is not None else 0
    kind = next((each for each in SCHEDULES if found is not None and each == found["kind"]), None)
    if kind is None or (chunks > 1) != (kind == "interleaved"):
        message = f"`{text.strip()[:40]}` is no schedule of a pipeline"
        help = "as in `1f1b`, `zero-bubble` and `gpipe`; `interleaved(2)` cuts the layers of a"
        help += " stage into 2 parts that take turns"
        return SyntaxFault(message, 0, len(text), help)
    return Schedule(kind, chunks)


def parse_count(text: str) -> int | SyntaxFault:
    """Return the number of tokens that `4M` is.

    >>> parse_count("4M"), parse_count("2.5k")
    (4000000, 2500)
    """
    found = _COUNT.fullmatch(text)
    number = 0 if found is None else float(found["number"]) * _UNITS[found["unit"].upper()]
    if not 1 <= number <= _MOST_TOKENS:
        shown = text.strip()[:24]
        help = "as in `4194304`, `4M`; K, M, B and T are thousands, millions and on"
        return SyntaxFault(f"`{shown}` is no number of tokens", 0, len(text), help)
    return round(number)
