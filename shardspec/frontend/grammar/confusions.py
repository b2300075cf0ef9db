"""What people write when they mean something else, and what the language calls it.

Rows are tried in order at the place where a parser stopped: the start symbols they belong
to, what ends before the place, what stands at it, and the help.
"""

from __future__ import annotations

import re

_RULES = frozenset({"axis_rule"})
_PARTITIONS = frozenset({"partition"})
_MESH = _RULES | _PARTITIONS
_OVER = frozenset({"mesh_axes"})
_NAMES = frozenset({"names"})
_SCAN = frozenset({"scan"})
_TYPES = frozenset({"array_type"})
_SIZES = frozenset({"size", "array_type"})
_MESH_SIZES = frozenset({"mesh_size"})
_HARDWARE = frozenset({"hardware"})
_GLOBS = frozenset({"path_pattern"})
_ANY = _MESH | _OVER | _NAMES | _SCAN | _SIZES | _MESH_SIZES | _HARDWARE | {"place"}

_ARROW = "an arrow joins names and mesh axes: `embed -> model`"
_TUPLE = "several mesh axes stand in parentheses: `(replica, data)`; no mesh axis is `none`"
#: For `none` in the place of all names.
NO_NAMES = (
    "`_` for each dimension: `_ _` for two; arrays that are meant to be whole go under"
    " `replicate`, with the reason"
)
_TILE = "chips along each dimension are joined by `x`: `4x4x8`"

_ROWS: tuple[tuple[frozenset[str], str, str, str], ...] = (
    (_ANY, r"", r"[\"'`]", "names stand without quotes"),
    (_MESH, r"\(\s*$", r"\)", "no mesh axis at all is written `none`"),
    (_RULES, r"[\w)]\s*$", r"=>|=|:|→|-+>|-", _ARROW),
    (_RULES, r"->\s*$", r"$", "name a mesh axis of a target, or `none`"),
    (_MESH, r"", r"\[", _TUPLE),
    (
        _RULES,
        r"->.*[\w)]\s*$",
        r",",
        "alternatives are separated by `|`; " + _TUPLE.partition(";")[0],
    ),
    (
        _RULES,
        r"->.*[\w)]\s*$",
        r"\|\||or\b|/|;|\w",
        "alternatives are separated by `|`: `embed -> model | data`",
    ),
    (_RULES, r"^[^>]*\w\s*$", r"\w", "several names are separated by `,`: `mlp, heads -> model`"),
    (_RULES, r"^[^>]*$", r"none\b", "`none` stands on the right: `kv -> none`"),
    (_RULES, r"^[^>]*$", r"_", "a rule needs the name of an axis; `_` names none"),
    (_MESH, r"", r"_(?!\w)", "no mesh axis at all is written `none`"),
    (_MESH, r"[\[(].*$", r"\]|\[", _TUPLE),
    (_RULES, r"@\s*$", r"", "a priority is a whole number; lower is earlier: `embed -> data @ 5`"),
    (
        _PARTITIONS,
        r"^\s*$",
        r"none\s*$",
        "one entry a dimension: `(none)` for one, `(none, none)` for two",
    ),
    (
        _PARTITIONS,
        r"^\s*$",
        r"P\b|PartitionSpec\b|\w",
        "one entry a dimension, in parentheses: `(none, model)`",
    ),
    (_PARTITIONS, r"\w\s*$", r"\w", "the dimensions are separated by `,`: `(none, model)`"),
    (_OVER, r"^[\s(]*$", r"none\b|\)|$", "name a mesh axis of a target: `data`, `(replica, data)`"),
    (_OVER, r"", r"", "several mesh axes stand in parentheses: `(replica, data)`"),
    (_NAMES, r"^\s*$", r"none\s*$", NO_NAMES),
    (_NAMES, r"", r"none\b", "a dimension without a name is written `_`"),
    (_NAMES, r"", r"\[|\(", "names stand one after another: `embed mlp`"),
    (_NAMES, r"", r"\d", "names begin with a letter; sizes stand in the types of `arrays`"),
    (_NAMES, r"", r"->", "names only: mesh axes are placed by `rules`"),
    (
        _SCAN,
        r"@\s*$",
        r"",
        "a position is counted from 0 at the front of the array: `layers@0`",
    ),
    (_SCAN, r"", r"=|:|\d|$", "an axis and its position are joined by `@`: `layers@0`"),
    (_TYPES, r"^\s*\w*\s*$", r"\(|<|\{|$", "sizes stand in brackets: `bf16[embed mlp]`"),
    (_TYPES, r"^\s*$", r"\[|\d", "a dtype comes first: `f32[4096, 512]`"),
    (_TYPES, r"", r"none\b", "a dimension without a name is its size: `4096`, or `_=4096`"),
    (_TYPES, r"_\s*$", r"", "a dimension without a name needs its size: `_=4096`"),
    (_SIZES, r"\w\s*$", r"[x×]\s", "sizes are multiplied by `*`: `heads * kv`"),
    (_SIZES, r"", r"\d+[x×]", "sizes are multiplied by `*`: `heads * kv`"),
    (_SIZES, r"", r"\d+_\d|\d+[kKmM]\b", "sizes are written in digits: `4096`"),
    (_SIZES, r"", r"[+/-]|\*\*", "a size is a number, an axis, or a product: `heads * kv`"),
    (
        _MESH_SIZES,
        r"^\s*$",
        r"-1|\*|\?|\.\.\.|all\b|none\b|None\b",
        "what the other axes leave over is written `rest`",
    ),
    (_MESH_SIZES, r"@\s*$", r"", "`@ dcn` is an axis between slices or nodes, `@ ici` one within"),
    (_MESH_SIZES, r"submesh\s*$", r"[\[(]|\d", _TILE),
    (_MESH_SIZES, r"auto\s*$", r"", "`auto` needs the number of partitions: `auto 16`"),
    (_MESH_SIZES, r"^\s*$", r"\d+x", "a tile is written `submesh 4x2x2x1`"),
    (_MESH_SIZES, r"", r"dcn\b|ici\b", "the network follows `@`: `2 @ dcn`"),
    (
        _MESH_SIZES,
        r"^\s*$",
        r"(explicit|manual)\b",
        "the size stands before the type: `8 explicit`",
    ),
    (_MESH_SIZES, r"[\w@]\s+\w+\s*$", r"(auto|explicit|manual)\b", "an axis has one type"),
    (
        _MESH_SIZES,
        r"(\d|rest|dcn|ici)\s+$",
        r"[A-Za-z]{3}",
        "types of axes are `auto`, `explicit` and `manual`: `8 explicit`",
    ),
    (_HARDWARE, r"", r"\d+x(\s|[A-Za-z])|[x×]\s", "slices or nodes stand before `*`: `2 * h100`"),
    (_HARDWARE, r"", r"[x×]\s|[(\[,]|\d+[*X]\d|\*", _TILE),
    (
        _HARDWARE,
        r"[A-Za-z]\w*\s+$",
        r"\d+\s*$",
        "a number of chips comes first: `16 v5e`; a slice is `4x4`",
    ),
    (_HARDWARE, r"", r"$", "name a chip: `tpu v4 4x4x8`, `4 * h100`, `8 cpu`"),
    (
        frozenset({"place"}),
        r"",
        r"",
        "`start`, `end`, `before mlp` or `after mlp`",
    ),
    (_GLOBS, r"", r"\}", r"nothing is open here; a brace of the path itself is written `\}`"),
    (_GLOBS, r"", r"\\$", r"`\` makes the next character stand for itself; write `\\` for one"),
    (_GLOBS, r"", r"$", r"close it with `}`; a brace of the path itself is written `\{`"),
)


def help_for(start: str, before: str, found: str) -> str | None:
    """Return what would work, or None where nobody has been here before.

    Args:
      start: the start symbol.
      before: the text up to the place where the parser stopped.
      found: the text from there.
    """
    for starts, left, right, help in _ROWS:
        if start in starts and re.search(left, before) and re.match(right, found):
            return help
    return None
