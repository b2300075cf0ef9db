"""Files that are no spec, or not in the spelling that their name says, told before they are read.

Read as what they are not, they would have a fault in every line.
"""

from __future__ import annotations

import re

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.codes import OWN_FILE, SYNTAX
from shardspec.diagnostics.diagnostic import point

_LOOKED_AT = 4096

_SCHEMA = re.compile(r'\A\s*\{.*?"schema"\s*:\s*"shardspec\.(\w+)/', re.DOTALL)
_SPEC = re.compile(r'"spec"\s*:\s*"([^"\\\n]+)"')
_LOCK = re.compile(r"^lock \d+, language \d+", re.MULTILINE)
_MANIFEST = re.compile(r"^\s*\{?\s*\"?shardspec-arrays\"?\s*:", re.MULTILINE)
_KEY = (
    r"(?:shardspec|doc|extends|axes|hardware|mesh|targets|rules|drop|params|overrides|scan"
    r"|activations|arrays|manifest|policy|state|coverage|replicate|lints)"
)
#: The first entry of a list of arrays without its header: `"a/kernel": bf16[4]`, or with keys.
_ARRAYS = re.compile(
    r"\A(?:[ \t]*(?:#.*|---)?\n)*[ \t]*(?:\{\s*)?"
    rf"(?![\"']?{_KEY}[\"']?\s*:)"
    r"(?:\"[^\"\n]+\"|'[^'\n]+'|[^\s\"'{}\[\],:#][^\"'\n:]*):\s*"
    r"(?:[\"']?[a-z]\w*\[[ \t]*(?:\d|\])|\{?\s*[\"']?(?:shape|dtype)[\"']?:)"
)
_YAML_LINE = re.compile(rf"\"?{_KEY}\"?\s*:(?:\s|$)")
_DSL_LINE = re.compile(
    r"shardspec[ \t]+\d|(?:rules|params|arrays|activations|scan|mesh)[ \t]*\{"
    r"|target[ \t]+\S+[ \t]+on\b|mesh[ \t]+on\b|axis[ \t]+\S+[ \t]*=|extends[ \t]+[\w./]"
)
_SAYS = {
    "compile": "a plan, as `shardspec compile` writes it",
    "check": "what `shardspec check` found",
    "diff": "what `shardspec diff` found",
    "mesh": "a mesh, as `shardspec mesh` writes it",
}
_COMPARE = "`shardspec diff` compares it with another; a spec is what it was made from"


def mistaken(source: SourceFile, *, is_dsl: bool) -> Diagnostic | None:
    """Return why a text is not to be read as a spec in this spelling; None where it may be."""
    return _own_file(source) or _other_spelling(source, is_dsl)


def _own_file(source: SourceFile) -> Diagnostic | None:
    start = source.text[:_LOOKED_AT]
    if _ARRAYS.match(start):
        return _list_of_arrays(source)
    if "shardspec" not in start:
        return None
    schema = _SCHEMA.match(start)
    if schema:
        what = _SAYS.get(schema[1], f"output of `shardspec {schema[1]}`")
        named = _SPEC.search(start)
        help = f"name the spec that it is about{f': `{named[1]}`' if named else ''}"
    elif _LOCK.search(start):
        what, help = "a lock, as `shardspec lock` writes it", _COMPARE
    elif _MANIFEST.search(start):
        return _list_of_arrays(source)
    else:
        return None
    return point(OWN_FILE, f"`{source.name}` is {what}, and no spec", source.whole, help=help)


def _list_of_arrays(source: SourceFile) -> Diagnostic:
    help = f"a spec names it: `manifest: ./{source.name.rpartition('/')[2]}`"
    return point(
        OWN_FILE, f"`{source.name}` is a list of arrays, and no spec", source.whole, help=help
    )


def _other_spelling(source: SourceFile, is_dsl: bool) -> Diagnostic | None:
    first = _first_line(source.text)
    if is_dsl and source.name.endswith(".shard") and _YAML_LINE.match(first):
        name = f"{source.name.removesuffix('.shard')}.yaml"
        message = f"`{source.name}` is YAML, and `.shard` is for the DSL"
    elif not is_dsl and source.name.endswith((".yaml", ".yml")) and _DSL_LINE.match(first):
        name = f"{source.name.rpartition('.')[0]}.shard"
        message = f"`{source.name}` is in the DSL, and not YAML"
    else:
        return None
    return point(SYNTAX, message, source.whole, help=f"call it `{name}`")


def _first_line(text: str) -> str:
    """Return the first line of substance."""
    for line in text[:_LOOKED_AT].splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "---")):
            return line.strip()
    return ""
