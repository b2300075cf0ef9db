"""What can stand at the cursor: names of the spec, what comes along, words of the language.

Where the cursor is, is read from a text that is still being written. That is no YAML yet, and no
DSL: of YAML this follows indentation, brackets and quotes up to the cursor, of the DSL statements.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from shardspec import assets
from shardspec.diagnostics import codes
from shardspec.diagnostics.words import binary_bytes, counted
from shardspec.ir.spec import DTYPE_BITS, LogicalAxis, Spec
from shardspec.language import catalogue
from shardspec.language.dsl_text.layout import BLOCKS, KEYWORDS, PHASE, Statement, lay_out
from shardspec.language.loader import bundled_doc
from shardspec.language.sections import RULES, SPEC_ALONE, expression_at, section_of
from shardspec.language.validate import fields_at, words_at
from shardspec.lsp import types
from shardspec.lsp.snapshot import Snapshot
from shardspec.lsp.types import Kind as Name
from shardspec.report.pages import field_page, finding_page
from shardspec.report.table import rows

#: What stands at the place of an item of a list.
ITEM = "-"
_KEY = re.compile(
    r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s#'"{}\[\],](?:[^#\n:]|(?<!\s)#|:(?!\s|$))*+))"""
    r"""[ \t]*+:(?=\s|$)"""
)
_FLOW_KEY = re.compile(
    r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s'"{}\[\],](?:[^{}\[\],\n:]|:(?![\s"'{\[]))*+))"""
    r"""[ \t]*+:(?=[\s"'{\[])"""
)
_COMMENT = re.compile(r"(?:^|\s)#([^\n]*)$")


class Place(NamedTuple):
    """Where the cursor stands.

    Attributes:
      route: the keys above, `-` for an item of a list; of a value, its own key too.
      is_key: whether a key is being written, and not a value.
      written: what stands there already, up to the cursor; of a comment, its text.
      is_comment: whether it is within a comment.
      is_dsl: whether the DSL is written, where entries end otherwise.
    """

    route: tuple[str, ...]
    is_key: bool
    written: str
    is_comment: bool = False
    is_dsl: bool = False

    @property
    def inner(self) -> tuple[str, ...]:
        """Return the route counted from the phase that it is in, if it is in one."""
        return self.route[2:] if self.route[:1] == ("phases",) and self.route[1:] else self.route


def place_at(text: str, offset: int, *, is_dsl: bool) -> Place:
    """Return where an offset stands in a text."""
    before = text[:offset]
    line = before[before.rfind("\n") + 1 :]
    comment = _COMMENT.search(_without_quoted(line))
    if comment is not None:
        return Place((), False, line[comment.start(1) :], is_comment=True, is_dsl=is_dsl)
    return _dsl_place(before)._replace(is_dsl=True) if is_dsl else _yaml_place(before)


def _without_quoted(line: str) -> str:
    """Return a line with other letters in place of what stands in quotes, as long as before."""
    return re.sub(r"\"[^\"]*\"|'[^']*'", lambda found: "x" * len(found[0]), line)


# YAML


def _named(key: re.Match[str]) -> str:
    return next(filter(None, key.groups()), "").rstrip(" \t")


class _Block(NamedTuple):
    indent: int
    key: str


def _yaml_place(before: str) -> Place:
    """Return the place at the end of a piece of YAML."""
    top = _last_top_line(before)
    blocks: list[_Block] = []
    at = top
    while True:
        end = before.find("\n", at)
        last = end < 0
        line = before[at:] if last else before[at:end]
        stripped = line.strip()
        if last or (stripped and not stripped.startswith("#")):
            start = _enter(line, at, blocks, is_last=last)
            if start is None:
                return Place((*(block.key for block in blocks),), True, line.lstrip("- \t"))
            found = _Flow(before, start).run(_route(blocks))
            if isinstance(found, Place):
                return found
            at = max(found, end)
        else:
            at = end
        at = before.find("\n", at) + 1
        if at == 0:
            return Place(_route(blocks), False, "")


def _last_top_line(before: str) -> int:
    """Return where the last line above begins that holds a key at the margin."""
    line = before.rfind("\n") + 1
    found = 0
    for match in re.finditer(r"^[^\s#\-\]})]", before, re.MULTILINE):
        if match.start() > line:
            break
        found = match.start()
    return found


def _route(blocks: list[_Block]) -> tuple[str, ...]:
    return tuple(block.key for block in blocks)


def _enter(line: str, at: int, blocks: list[_Block], *, is_last: bool) -> int | None:
    """Follow a line into its block; return the offset of the value on it.

    None where the cursor stands in what may become a key.
    """
    indent = len(line) - len(line.lstrip(" "))
    rest = line[indent:]
    while rest == ITEM or rest.startswith(("- ", "-\t")):
        _leave(blocks, indent, is_item=True)
        blocks.append(_Block(indent, ITEM))
        more = len(rest) - len(rest[1:].lstrip(" \t")) if rest != ITEM else 1
        indent, rest = indent + more, rest[more:]
    if rest or is_last:
        _leave(blocks, indent, is_item=False)
    key = _KEY.match(rest)
    if key is None:
        starts_value = blocks and blocks[-1].key == ITEM and blocks[-1].indent < indent
        if not is_last or starts_value or rest[:1] in ("{", "["):
            return at + indent
        return None
    blocks.append(_Block(indent, _named(key)))
    return at + indent + key.end()


def _leave(blocks: list[_Block], indent: int, *, is_item: bool) -> None:
    """Leave the blocks that a line of this indentation ends; an item may stand below its key."""
    while blocks and (
        blocks[-1].indent > indent
        or (blocks[-1].indent == indent and (not is_item or blocks[-1].key == ITEM))
    ):
        blocks.pop()


class _Flow:
    """The walk over one value, its brackets and quotes included."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def run(self, route: tuple[str, ...]) -> Place | int:
        """Return the place, if the text ends in this value; else the offset behind it."""
        text = self.text
        while self.at < len(text) and text[self.at] in " \t":
            self.at += 1
        if text[self.at : self.at + 1] not in ("{", "["):
            return self._scalar(route)
        found = self._collection(route)
        return self.at if found is None else found

    def _scalar(self, route: tuple[str, ...]) -> Place | int:
        """Return the place in a plain or quoted value of a block, which ends with its line."""
        text, start = self.text, self.at
        quote = text[start : start + 1]
        if quote in ('"', "'") and quote:
            end = text.find(quote, start + 1)
            if end < 0:
                return Place(route, False, text[start + 1 :])
        end = text.find("\n", start)
        return Place(route, False, text[start:]) if end < 0 else end

    def _collection(self, route: tuple[str, ...]) -> Place | None:
        """Go through `{...}` or `[...]`; return the place if the text ends within it."""
        is_map = self.text[self.at] == "{"
        self.at += 1
        inner = route if is_map else (*route, ITEM)
        is_key = is_map
        start = untried = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            key = None
            if is_map and is_key and self.at >= untried and not char.isspace():
                key = _FLOW_KEY.match(self.text, self.at)
                end = self.text.find("\n", self.at)  # a key stands on one line
                untried = len(self.text) if end < 0 else end
            if key is not None:
                inner = (*route, _named(key))
                self.at, is_key = key.end(), False
                start = self.at
            elif char in ('"', "'"):
                end = self.text.find(char, self.at + 1)
                if end < 0:
                    return Place(inner, is_key, self.text[self.at + 1 :])
                self.at = end + 1
            elif char in "{[":
                found = self._collection(inner)
                if found is not None:
                    return found
            elif char in "}]":
                self.at += 1
                return None
            else:
                self.at += 1
                if char == ",":
                    untried = self.at
                    inner, is_key, start = route if is_map else inner, is_map, self.at
        written = self.text[start:].lstrip()
        return Place(route if is_key and is_map else inner, is_key, written)


# DSL


def _dsl_place(before: str) -> Place:
    """Return the place at the end of a piece of DSL."""
    layout = lay_out(before)
    route: tuple[str, ...] = ()
    statements = layout.statements
    while True:
        last = statements[-1] if statements else None
        if last is None or _is_over(last, before):
            return Place(route, True, "")
        head = before[last.start : last.end]
        if last.entries is None:
            return _in_statement(head + before[last.end :], route)
        word, _, rest = head.strip().partition(" ")
        if word != PHASE:
            return _in_block(word, rest, last, before, route)
        route = ("phases", rest.strip())
        statements = last.entries


def _is_over(statement: Statement, before: str) -> bool:
    """Say whether the cursor stands behind a statement."""
    if statement.entries is not None:
        return statement.is_closed
    return bool(re.search(r"[\n;]", before[statement.end :]))


def _in_block(word: str, rest: str, block: Statement, before: str, route: tuple[str, ...]) -> Place:
    """Return the place within the braces of a section or a mesh."""
    section = section_of(word)
    section_route = (*route, section)
    if word == "target":
        section_route = (*route, "targets", *(rest.split() or [""])[:1], "mesh")
    last = block.entries[-1] if block.entries else None
    entry = "" if last is None or _is_over(last, before) else before[last.start :]
    if section == "rules":
        rule, _, at = entry.partition(" at ")
        where = (*section_route, ITEM)
        return Place((*where, "at"), False, at) if at else Place(where, False, rule)
    mark = "=" if section_route[-1] == "mesh" else ":"
    key, found, value = _cut(entry, mark)
    where = (*section_route, key) if found else section_route
    return Place(where, not found, value if found else entry)


def _cut(entry: str, mark: str) -> tuple[str, bool, str]:
    """Return a key, whether it is done, and what stands behind it."""
    if entry.startswith('"') and entry.find('"', 1) > 0:
        end = entry.find('"', 1)
        rest = entry[end + 1 :].lstrip()
        return entry[1:end], rest.startswith(mark), rest[1:].lstrip()
    found = re.match(rf"(\S+?)\s*{mark}(?=\s|$)\s*(.*)", entry, re.DOTALL)
    return (found[1], True, found[2]) if found else (entry, False, "")


def _in_statement(text: str, route: tuple[str, ...]) -> Place:
    """Return the place within a statement that has no block."""
    word, blank, rest = text.partition(" ")
    if not blank:
        return Place(route, True, word)
    section = section_of(word)
    if word in ("extends", "manifest", "drop"):
        return Place((*route, section, ITEM), False, re.split(r",\s*", rest)[-1])
    if word in ("hardware", "doc", "shardspec"):
        return Place((*route, section), False, rest.lstrip())
    if word in ("mesh", "target"):
        name, _, machine = rest.rpartition("on ") if "on " in rest else (rest, "", None)
        where = (*route, "targets", name.strip()) if word == "target" else route
        if machine is None:
            return Place(where, True, "")
        return Place((*where, "hardware"), False, machine)
    if word in ("policy", "state", "coverage", "lint"):
        key, blank, value = rest.partition(" ")
        where = (*route, section)
        return Place((*where, key) if blank else where, not blank, value or key)
    if word in ("axis", "let"):
        name, found, value = _cut(rest, "=")
        where = (*route, section)
        return Place((*where, name), False, value) if found else Place(where, True, name)
    return _in_entry(section, rest, route)


def _in_entry(section: str, rest: str, route: tuple[str, ...]) -> Place:
    """Return the place within an override, and what else is about a pattern."""
    for mark, field in ((":", "axes"), ("=", "spec")):
        key, found, answer = _cut(rest, mark)
        if found:
            return Place((*route, section, ITEM, field), False, answer)
    return Place((*route, section, ITEM, "path"), False, key)


Kind = types.CompletionItemKind
#: Characters of what is being written, behind which an item replaces it.
_WORD = re.compile(r"(?<![\w.-])[\w.-]*+$")
_TEXT = re.compile(r"(?<![^\s\"'{}\[\],:])[^\s\"'{}\[\],:]*+$")
_PATH = re.compile(r"(?<![^\s\"'])[^\s\"']*+$")
_FOLDER = re.compile(r"((?:\.\.?/)(?:[^\s\"']*/)?)[^/\s\"']*$")
#: Of `2 * tpu v5`, what is no number of slices.
_MACHINE = re.compile(r"(?<=[\s\"'*:{,])[\w-][\w .-]*$")
_MACHINE_OF_DSL = re.compile(r"(?:(?<=\son\s)|(?<=\*\s))[\w .-]*$")
#: How far back from the cursor what is being written is looked for.
_FURTHEST = 500
#: Paths offered; an editor filters what it has.
_MOST = 2000


#: What is read to the end as one word: no expression.
_WORDS_ALONE = frozenset({"hardware", "base", "manifest", "step", "axes", "pattern"})


class Choice(NamedTuple):
    """Something that may stand here.

    Attributes:
      detail: what it is, behind it.
      text: what is written, where that is more than the label.
    """

    label: str
    kind: types.CompletionItemKind
    detail: str = ""
    text: str = ""


def completions(snapshot: Snapshot, known: Spec | None, offset: int) -> list[types.CompletionItem]:
    """Return what may stand at an offset.

    Args:
      known: the last spec that could be made of the text, whose names are offered.
    """
    place = place_at(snapshot.text, offset, is_dsl=snapshot.is_dsl)
    choices = _Choices(snapshot, known, place)
    line_start = snapshot.text.rfind("\n", 0, offset) + 1
    before = snapshot.text[max(line_start, offset - _FURTHEST) : offset]
    found = []
    for number, choice in enumerate(choices.found()):
        pattern = _PATH if choice.kind in (Kind.Value, Kind.File) else _TEXT
        pattern = _WORD if choices.is_expression else pattern
        if choice.kind is Kind.Unit:
            pattern = _MACHINE_OF_DSL if place.is_dsl else _MACHINE
        written = pattern.search(before)
        start = offset - len(written[0] if written else "")
        where = snapshot.lines.range(start, offset)
        item = types.CompletionItem(
            label=choice.label,
            kind=choice.kind,
            detail=choice.detail or None,
            sort_text=f"{number:05}",
            filter_text=choice.label,
            text_edit=types.TextEdit(where, choice.text or choice.label),
        )
        found.append(item)
    return found


class _Choices:
    """The choices at one place.

    Attributes:
      is_expression: whether names stand between other things here: `->`, `*`, brackets.
    """

    def __init__(self, snapshot: Snapshot, known: Spec | None, place: Place) -> None:
        self.snapshot = snapshot
        self.spec = snapshot.spec or known
        self.place = place
        self.is_expression = False

    def found(self) -> Iterator[Choice]:
        """Yield them, the likeliest first."""
        place = self.place
        if place.is_comment:
            yield from self._comment()
        elif not place.inner and place.is_key:
            yield from self._sections()
        elif set(place.inner) <= {ITEM}:
            return  # a list, or one value, is no spec
        elif place.is_key:
            yield from self._keys()
        else:
            yield from self._values()

    # keys

    def _comment(self) -> Iterator[Choice]:
        if re.search(r"shardspec:\s*ignore(-file)?\[[^\]]*$", self.place.written):
            yield from _findings(by_code=True)
        elif "shardspec" in self.place.written or not self.place.written.strip():
            detail = "silences findings on this line, or on the next"
            yield Choice("shardspec: ignore[]", Kind.Snippet, detail)

    def _sections(self) -> Iterator[Choice]:
        in_phase = self.place.route[:1] == ("phases",)
        words = KEYWORDS if self.place.is_dsl else fields_at((), is_phase=in_phase)
        for word in sorted(words) if self.place.is_dsl else words:
            section = section_of(word)
            if in_phase and section in SPEC_ALONE:
                continue
            text = f"{word}{self._ending}"
            if self.place.is_dsl and word in BLOCKS and word not in ("target", "phase"):
                text = f"{word} {{"
            yield Choice(word, Kind.Keyword, _about_key(section), text)

    def _keys(self) -> Iterator[Choice]:
        inner = self.place.inner
        section = inner[0]
        if section == "lints":
            yield from _findings(ending=self._ending)
        elif inner[-1] == "mesh":
            yield from self._mesh_axes(ending=" = " if self.place.is_dsl else ": ")
        elif section == "axes" and len(inner) == 1:
            stated = {axis.name for axis in self._spec_axes()}
            yield from (c for c in self._logical_axes(": ") if c.label not in stated)
        elif section in RULES and len(inner) == 1:
            yield from self._paths(is_key=True)
        elif section == "policy" or len(inner) == 2 - (section in ("state", "coverage", "step")):
            yield from self._fields(section)

    @property
    def _ending(self) -> str:
        return " " if self.place.is_dsl else ": "

    def _fields(self, section: str) -> Iterator[Choice]:
        """Yield the keys of an entry that is a mapping."""
        for name in fields_at((section,)):
            if name not in fields_at(()) or section == "targets" or len(self.place.inner) > 1:
                about = _about_key(f"{section}.{name}")
                yield Choice(name, Kind.Property, about, f"{name}{self._ending}")

    # values

    def _values(self) -> Iterator[Choice]:
        inner = self.place.inner
        if inner in (("overrides", ITEM), ("replicate", ITEM)):
            yield from self._fields(inner[0])
            return
        kind = expression_at(inner)
        reader = self._readers().get(kind)
        if reader is not None:
            self.is_expression = kind not in _WORDS_ALONE
            yield from reader()
        yield from _constants(tuple(part for part in inner if part != ITEM))

    def _readers(self) -> Mapping[str, Callable[[], Iterator[Choice]]]:
        """Return what offers values, by kind of expression."""
        return {
            "axis_rule": self._rule,
            "place": self._at,
            "mesh_size": self._mesh_size,
            "hardware": _machines,
            "base": lambda: self._files("presets", (".yaml", ".yml", ".shard")),
            "manifest": lambda: self._files("arrays", (".yaml", ".yml", ".json")),
            "step": lambda: self._files("steps", (".yaml", ".yml", ".shard")),
            **dict.fromkeys(("step_line", "names", "scan"), self._names),
            "size": self._sizes,
            "array_type": self._array,
            **dict.fromkeys(("partition", "mesh_axes"), self._partition),
            "pattern": self._paths,
            "derived": self._derived,
            "axes": self._logical_axes,
        }

    def _rule(self) -> Iterator[Choice]:
        if "->" not in self.place.written:
            yield from self._logical_axes(" -> " if " " not in self.place.written else "")
        else:
            yield from self._partition()

    def _partition(self) -> Iterator[Choice]:
        yield from self._mesh_axes()
        yield Choice("none", Kind.Keyword, "replicated on every device")

    def _at(self) -> Iterator[Choice]:
        words = {"start": "first", "end": "last", "before": "an axis", "after": "an axis"}
        yield from (Choice(word, Kind.Keyword, detail) for word, detail in words.items())
        yield from self._logical_axes()

    def _mesh_size(self) -> Iterator[Choice]:
        words = {
            "rest": "what the other axes leave over",
            "submesh": "a tile of the torus: `submesh 4x2x2x1`",
            "auto": "so many ways, where the compiler likes: `auto 16`",
            "fit": "the largest size that divides a logical axis: `fit kv_heads`",
            "over": "these dimensions of the torus: `over y z2`",
            "dcn": "between slices or nodes: `4 @ dcn`",
            "explicit": "an axis type of JAX",
            "manual": "an axis type of JAX",
        }
        yield from self._numbers()
        yield from (Choice(word, Kind.Keyword, detail) for word, detail in words.items())
        if "fit" in self.place.written:
            yield from self._logical_axes()

    def _sizes(self) -> Iterator[Choice]:
        yield from self._numbers()
        yield from self._logical_axes()

    def _names(self) -> Iterator[Choice]:
        yield from self._logical_axes()
        yield Choice("_", Kind.Keyword, "a dimension without a name")

    def _derived(self) -> Iterator[Choice]:
        yield Choice("from", Kind.Keyword, "the array that it is laid out from")
        yield Choice("dims", Kind.Keyword, "which of its dimensions each is")
        yield Choice("= A[embed] @ B", Kind.Keyword, "both sides of a product, by what is summed")
        yield from self._logical_axes()

    def _array(self) -> Iterator[Choice]:
        if "[" in self.place.written:
            yield from self._sizes()
            return
        for name, bits in DTYPE_BITS.items():
            yield Choice(name, Kind.TypeParameter, f"{bits} bits", f"{name}[")

    # names

    def _uses(self, kind: Name) -> Iterator[str]:
        yield from dict.fromkeys(use.name for use in self.snapshot.all_uses if use.kind is kind)

    def _spec_axes(self) -> tuple[LogicalAxis, ...]:
        return self.spec.logical_axes if self.spec else ()

    def _logical_axes(self, ending: str = "") -> Iterator[Choice]:
        sizes = {axis.name: axis.size for axis in self._spec_axes()}
        names = [*sizes, *self._uses(Name.LOGICAL_AXIS)]
        if self.spec is not None:
            names += [rule.logical_axis for rule in self.spec.axis_rules]
        for name in dict.fromkeys(names):
            detail = "logical axis" + (f" = {sizes[name]}" if sizes.get(name) else "")
            yield Choice(name, Kind.Field, detail, f"{name}{ending}")

    def _mesh_axes(self, ending: str = "") -> Iterator[Choice]:
        targets = [t for each in (self.spec.in_phases if self.spec else ()) for t in each.targets]
        sizes: dict[str, list[str]] = {}
        for target in targets:
            wholes = ((name, target.mesh.ways(parts)) for name, parts in target.mesh.wholes)
            for name, size in (*target.mesh.sizes.items(), *wholes):
                sizes.setdefault(name, []).append(str(size))
        for name in dict.fromkeys((*sizes, *self._uses(Name.MESH_AXIS))):
            stated = ", ".join(dict.fromkeys(sizes.get(name, ())))
            detail = "mesh axis" + (f" = {stated}" if stated else "")
            yield Choice(name, Kind.EnumMember, detail, f"{name}{ending}")

    def _numbers(self) -> Iterator[Choice]:
        for name in self._uses(Name.NUMBER):
            yield Choice(name, Kind.Constant, "a name of `let`")

    def _paths(self, *, is_key: bool = False) -> Iterator[Choice]:
        """Yield the paths of the arrays, layers that agree as one, and their endings."""
        found = rows(self.snapshot.plans[0]) if self.snapshot.plans else ()
        names = {row.name.rpartition(" x")[0] or row.name: row for row in found}
        ends = dict.fromkeys(f"**/{'/'.join(name.split('/')[-2:])}" for name in names)
        written = _PATH.search(self.place.written)
        is_quoted = bool(written) and self.place.written.startswith(('"', "'"))
        ending = (" : " if self.place.is_dsl else ": ") if is_key and not is_quoted else ""
        for name, row in [*names.items()][:_MOST]:
            size = binary_bytes(sum(each.param.bytes for each in row.shardings))
            detail = f"{row.first.param}, {counted(len(row.shardings), 'array')}, {size}"
            yield Choice(name, Kind.Value, detail, self._quoted(name, is_quoted) + ending)
        for end in [*ends][:_MOST]:
            text = self._quoted(end, is_quoted) + ending
            yield Choice(end, Kind.Value, "wherever it stands", text)

    def _quoted(self, path: str, is_quoted: bool) -> str:
        """Return a path as YAML takes it: one with signs of a glob needs quotes."""
        needs = bool(re.search(r"[*{}\[\],&!|>%@`#]", path)) and not self.place.is_dsl
        return f'"{path}"' if needs and not is_quoted else path

    def _files(self, kind: assets.SpecKind, suffixes: tuple[str, ...]) -> Iterator[Choice]:
        """Yield bundled names, and the files beside the spec."""
        if "./" not in self.place.written:
            for name in assets.spec_names(kind):
                yield Choice(name, Kind.Module, bundled_doc(kind, name))
        folder = os.path.dirname(self.snapshot.path)
        written = _FOLDER.search(self.place.written[-_FURTHEST:])
        inner = written[1] if written else "./"
        where = os.path.normpath(os.path.join(folder, inner))
        for name in _listed(where, suffixes):
            path = os.path.join(where, name)
            if path != self.snapshot.path and self.snapshot.may_show(path):
                yield Choice(f"{inner}{name}", Kind.File)


def _listed(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []
    return [name for name in names if name.endswith(suffixes) and not name.startswith(".")][:_MOST]


def _findings(*, ending: str = "", by_code: bool = False) -> Iterator[Choice]:
    for code in codes.ALL:
        label, other = (code.id, code.name) if by_code else (code.name, code.id)
        yield Choice(label, Kind.Event, f"{other}: {code.summary}", f"{label}{ending}")


def _machines() -> Iterator[Choice]:
    """Yield machines of the catalogue, and the names that it knows beside these."""
    seen = set[str]()
    for text, entry in catalogue.usual_machines():
        seen.update(text.split())
        yield Choice(text, Kind.Unit, _about_chip(entry))
    for name, file in catalogue.hardware_names().items():
        if name not in seen:
            yield Choice(name, Kind.Unit, _about_chip(catalogue.catalogue_entry(file)))


def _about_chip(entry: catalogue.CatalogueEntry) -> str:
    chip = entry.chip
    return f"{chip.title}, {binary_bytes(chip.hbm_bytes)}" if chip.hbm_bytes else chip.title


#: Words that are not all that may stand there, by the keys above them.
_WORDS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("state", "dtype"): ("f32", "bf16"),
    ("step", "pipeline"): ("1f1b", "interleaved(2)", "zero-bubble", "gpipe"),
    ("step", "remat"): ("none", "full", "dots", "stages"),
    ("step", "dtype"): ("bf16", "f32"),
    ("shardspec",): ("1",),
}


def _constants(where: tuple[str, ...]) -> Iterator[Choice]:
    words = _WORDS.get(where, ()) or words_at(where)
    yield from (Choice(word, Kind.EnumMember) for word in words)


def _about_key(name: str) -> str:
    """Return what the first line of a key's page says of it."""
    return "".join(field_page(name)[:1]).partition(": ")[2]


def page_of(label: str, kind: int) -> str | None:
    """Return the page of a choice: that of a finding is long, and read one at a time."""
    found = next((code for code in codes.ALL if label in (code.id, code.name)), None)
    return finding_page(found) if found is not None and kind == Kind.Event else None
