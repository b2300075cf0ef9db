"""The commonest spellings of the small expressions, read without a parser.

To load lark and the tables of the grammars costs a tenth of a short run, and long manifests pay for
every entry. The grammars define the language; what stands here reads a part of it in the same way,
which a property test holds it to, and leaves everything else, every fault among it, to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from shardspec.ir.spec import Network
from shardspec.language.grammar import refusals, syntax
from shardspec.language.grammar.refusals import NOTHING
from shardspec.language.grammar.syntax import Name

#: Longer texts are for the parser, which has a limit of its own.
LONGEST = 1_000

_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_DIM = rf"(?:{_NAME}|[0-9]{{1,15}})"
_TILE = r"[0-9]{1,9}(?:x[0-9]{1,9})+"
_ARRAY_TYPE = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*)\[({_DIM}(?:(?:, | ){_DIM})*)\]")
_WORD = re.compile(_DIM)
_TARGET = rf"(?:{_NAME}|\({_NAME}(?:, {_NAME})*\)\??)"
_RULE = re.compile(
    rf"({_NAME}(?:, {_NAME})*) -> ({_TARGET}(?: \| {_TARGET})*)(?: @ (-?[0-9]{{1,9}}))?"
)
_EACH_TARGET = re.compile(_TARGET)
_TEXT = re.compile(r"[^*?{},]+")
_PIECE = re.compile(r"\{[0-9]{1,9}\.\.[0-9]{1,9}\}|\*\*?|[?{},]|[^*?{},]+")
_SIGNS: dict[str, Callable[[int, int], syntax.Part]] = {
    "*": syntax.Star,
    "**": syntax.DoubleStar,
    "?": syntax.AnyChar,
}
_WORDS = re.compile(rf"{_NAME}(?: {_NAME})*")
_SCAN = re.compile(rf"({_NAME})@(-?[0-9]{{1,9}})")
_SIZE_PART = re.compile(rf"{_DIM}|[+-]")
_NUMBER = re.compile(r"[0-9]{1,15}")
_SIZE = re.compile(rf"{_DIM}(?: [*+-] {_DIM})*")
_MESH_SIZE = re.compile(rf"(?:submesh ({_TILE})|({_DIM}))(?: @ (dcn|ici))?")
_COUNT = r"[0-9]{1,9}"
_CHIP = r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*"
_HARDWARE = re.compile(
    rf"(?:({_COUNT}) \* )?(?:({_COUNT}) )?(?:(tpu|gpu|cpu) )?({_CHIP})(?: ({_TILE}))?"
)
_PLATFORMS = frozenset({"tpu", "gpu", "cpu"})


def plain_array_type(text: str) -> syntax.ArrayType | None:
    """Return the type of sizes or names alone: `bf16[4096, 512]`, `bf16[embed mlp]`."""
    found = _ARRAY_TYPE.fullmatch(text)
    if found is None or len(text) > LONGEST:
        return None
    dims = []
    for name in _names(text, *found.span(2)):
        word = name.text
        if word == "none" or word in NOTHING:
            return None
        size = syntax.product(int(word)) if word.isdigit() else None
        dims.append(syntax.ArrayDim(None if size else name, size, name.start, name.end))
    return syntax.ArrayType(Name(found[1], 0, found.end(1)), tuple(dims))


def plain_rule(text: str) -> syntax.RuleExpr | None:
    """Return the rule of plain names: `mlp, heads -> model | (replica, data)? | none @ 5`."""
    found = _RULE.fullmatch(text)
    if found is None or len(text) > LONGEST:
        return None
    names = _names(text, *found.span(1))
    targets = []
    for each in _EACH_TARGET.finditer(text, *found.span(2)):
        axes = () if each[0] == "none" else _names(text, *each.span())
        targets.append(syntax.AxisTarget(axes, *each.span(), each[0].endswith("?")))
    if any(
        name.text == "none" for part in (names, *(t.mesh_axes for t in targets)) for name in part
    ):
        return None
    rule = syntax.RuleExpr(names, tuple(targets), int(found[3] or 0))
    return None if refusals.in_rule(rule) else rule


def _names(text: str, start: int, end: int) -> tuple[Name, ...]:
    return tuple(Name(word[0], *word.span()) for word in _WORD.finditer(text, start, end))


def plain_names(text: str) -> syntax.NamesExpr | None:
    """Return words with one space between them: `embed mlp`."""
    if _WORDS.fullmatch(text) is None or len(text) > LONGEST:
        return None
    names = _names(text, 0, len(text))
    if any(name.text == "none" or name.text in NOTHING for name in names):
        return None
    return syntax.NamesExpr(names)


def plain_scan(text: str) -> syntax.ScanExpr | None:
    """Return one stacked axis: `layers@0`."""
    found = _SCAN.fullmatch(text)
    if found is None or found[1] == "none":
        return None
    return syntax.ScanExpr(((Name(found[1], *found.span(1)), int(found[2])),))


def plain_size(text: str) -> syntax.SizeExpr | None:
    """Return a sum without parentheses: `4096`, `heads * kv`, `inner + 2 * state`."""
    if _NUMBER.fullmatch(text):
        return syntax.product(int(text))
    if _SIZE.fullmatch(text) is None or len(text) > LONGEST:
        return None
    terms: list[syntax.SizeTerm] = []
    factors: list[int | Name | syntax.SizeExpr] = []
    sign = 1
    for found in _SIZE_PART.finditer(text):
        if found[0] in {"+", "-"}:
            terms.append(syntax.SizeTerm(tuple(factors), sign))
            sign, factors = (-1 if found[0] == "-" else 1), []
        elif found[0] == "none":
            return None
        else:
            factors.append(int(found[0]) if found[0].isdigit() else Name(found[0], *found.span()))
    return syntax.SizeExpr((*terms, syntax.SizeTerm(tuple(factors), sign)))


def plain_mesh_size(text: str) -> syntax.MeshSize | None:
    """Return a number, a name of `let`, `rest` or a submesh: `8`, `rest @ dcn`, `submesh 4x2`."""
    found = _MESH_SIZE.fullmatch(text)
    if found is None:
        return None
    tile, word = found[1], found[2]
    network: Network = "dcn" if found[3] == "dcn" else "ici"
    if tile:
        size = syntax.MeshSize("submesh", 0, _tile(tile), network)
    elif word == "rest":
        size = syntax.MeshSize("rest", network=network)
    elif word.isdigit():
        size = syntax.MeshSize("integer", int(word), network=network)
    elif word in refusals.NO_LETS:
        return None
    else:
        named = syntax.product(Name(word, 0, len(word)))
        size = syntax.MeshSize("integer", 1, network=network, named=named)
    return None if refusals.in_mesh_size(size) else size


def plain_hardware(text: str) -> syntax.HardwareExpr | None:
    """Return a machine of one size: `2 * tpu v5p 4x4x8`, `4 * h100`, `8 cpu`, `v4-512`."""
    found = _HARDWARE.fullmatch(text)
    if found is None:
        return None
    slices, count, platform, chip, tile = found.groups()
    if chip in ("by", "memory") or (chip.lower() in _PLATFORMS and platform):
        return None
    return syntax.HardwareExpr(
        chip=Name(chip, *found.span(4)),
        slices=int(slices or 1),
        platform=platform,
        count=int(count) if count else None,
        topology=_tile(tile) if tile else (),
    )


def _tile(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def plain_glob(text: str) -> syntax.Glob | None:
    """Return a glob without escapes: `**/block_0/*/kernel`, `layers_{0..23}/{query,key}/kernel`.

    None where a brace has no other, or something in it is refused.
    """
    if not 0 < len(text) <= LONGEST or "\\" in text:
        return None
    if _TEXT.fullmatch(text):  # the paths of arrays, of which there are many
        return syntax.Glob((syntax.GlobText(text, 0, len(text)),))
    parts: list[syntax.Part] = []
    around: list[tuple[int, list[syntax.Part], list[tuple[syntax.Part, ...]]]] = []
    for found in _PIECE.finditer(text):
        piece, (start, end) = found[0], found.span()
        if piece == "{" and len(around) < refusals.DEPTH:
            around.append((start, parts, []))
            parts = []
        elif around and piece in {",", "}"}:
            around[-1][2].append(tuple(parts))
            parts = []
            if piece == "}":
                opening, parts, alternatives = around.pop()
                parts.append(syntax.Braces(tuple(alternatives), opening, end))
        elif piece in {"{", "}"}:
            return None
        elif piece[0] == "{":
            parts.append(syntax.int_range(piece, start, end))
        elif piece in _SIGNS:
            parts.append(_SIGNS[piece](start, end))
        elif parts and isinstance(last := parts[-1], syntax.GlobText):
            parts[-1] = syntax.GlobText(last.text + piece, last.start, end)
        else:
            parts.append(syntax.GlobText(piece, start, end))
    glob = syntax.Glob(tuple(parts))
    return None if around or refusals.in_glob(glob) else glob
