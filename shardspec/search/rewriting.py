"""A layout that was found, written into the text of its spec: its comments and lines stay.

The sizes of a mesh are edited where they stand. What is stated beside it is edited where its word
stands, or added. A mesh of other axes brings its rules: it is set in the data of the spec, which is
printed as `fmt` prints it, and so is all that the DSL states. Whoever writes the text first reads
it as a spec again, and holds it against the layout (`differs`): what an edit did not reach is never
written. Nor is what leaves another target of the spec worse (`harm`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from shardspec import assets
from shardspec.diagnostics import Diagnostic, Edit, Fix, SourceFile, Span, codes
from shardspec.diagnostics.diagnostic import apply
from shardspec.diagnostics.words import listed
from shardspec.ir.spec import Mesh, MeshAxis, Spec, Target, family
from shardspec.language.formatting import with_line_ends_of
from shardspec.language.loader import SPEC_SUFFIXES, File, read
from shardspec.language.reading import is_dsl
from shardspec.language.yaml_text.printer import print_yaml
from shardspec.search.roles import RoleSet
from shardspec.search.variants import KEPT, OFFLOADED, Candidate, Refusal, size_text

#: Where a spec says what a search may choose: word -> section, key.
_PLACES = {
    "order": ("policy", "order"),
    "indivisible": ("policy", "indivisible"),
    "remat": ("step", "remat"),
    "microbatches": ("step", "microbatches"),
    "schedule": ("step", "pipeline"),
    "gather": ("step", "gather"),
    "reduce": ("step", "reduce"),
    "state": ("state", "optimizer"),
    "dtype": ("step", "dtype"),
}

#: What is set in the data of a spec, and printed.
_PRINTED = frozenset(("roles", "rule", "batch", "offload"))


def rewritten(spec: Spec, today: Target, found: Candidate) -> str | Refusal:
    """Return the text of a spec with a layout in place of today's.

    Args:
      spec: as it was loaded.
    """
    if today.devices != found.target.devices:
        message = f"the devices of target `{today.name}` are listed, which --write leaves alone"
        return Refusal(message, "take `devices` out, and search again")
    is_same = found.mesh.names == today.mesh.names
    edits = _edits(spec, today, found)
    if isinstance(edits, Refusal):
        return edits
    text = _applied(spec, edits)
    changes = tuple(_words(spec, found))
    if not changes and is_same:
        return text
    for word, value in changes:
        section, _ = _PLACES.get(word, ("", ""))
        is_known = section or word in _PRINTED
        if not is_known or (section == "step" and spec.step is None):
            return Refusal(f"--write does not write `{word}`", f"say `{word}: {value}` by hand")
    stated = _stated(text.replace("\r\n", "\n"), spec, today, found, changes)
    return stated if isinstance(stated, Refusal) else with_line_ends_of(spec.source, stated)


def _edits(spec: Spec, today: Target, found: Candidate) -> list[Edit] | Refusal:
    """Return what changes in a text for sizes of the same mesh axes, and for another machine."""
    edits: list[Edit] = []
    is_same = found.mesh.names == today.mesh.names
    for now, then in zip(today.mesh.axes, found.mesh.axes if is_same else (), strict=is_same):
        if size_text(now) == size_text(then) and now.auto == then.auto:
            continue
        if not _is_here(now.span, spec):
            return _elsewhere(f"the size of `{now.name}`", now.span)
        assert now.span is not None, "it is here"
        edits.append(Edit(now.span, _size_text(now.span.text, then)))
        edits += [each for each in _without_origin(now.span) if each not in edits]
    if found.hardware != today.hardware:
        if family(today.name) != today.name:
            message = f"target `{today.name}` shares its machine with other counts of slices"
            return Refusal(message, f"write `{found.hardware}` by hand")
        span = None if today.hardware is None else today.hardware.span
        if span is None or not _is_here(span, spec):
            return _elsewhere("the machine", span)
        edits.append(Edit(span, str(found.hardware)))
    return edits


def _without_origin(span: Span) -> Iterator[Edit]:
    """Yield the edit that takes away where a value is from, which it no longer is."""
    behind, _, _ = span.source.text[span.end :].partition("\n")
    behind = behind.removesuffix("\r")
    value, mark, _ = behind.partition(" # from ")
    if mark and "#" not in value:
        start = span.end + len(value.rstrip())
        yield Edit(Span(span.source, start, span.end + len(behind)), "")


def _words(spec: Spec, found: Candidate) -> Iterator[tuple[str, str]]:
    """Yield what a layout changes beside mesh and machine."""
    if found.order != spec.policy.order:
        yield "order", found.order
    yield from found.variant.changes


def _is_here(span: Span | None, spec: Spec) -> bool:
    return span is not None and span.source.name == spec.source.name


def _elsewhere(what: str, span: Span | None) -> Refusal:
    place = f"stands in {span.source.name}" if span is not None else "is set from outside"
    return Refusal(f"{what} {place}, which --write leaves alone", "write it by hand")


def _size_text(before: str, axis: MeshAxis) -> str:
    """Return the size of an axis in place of a text that may say more: `rest`, a type."""
    kept = re.search(r"\b(explicit|manual)\b", before)
    size = size_text(axis)
    if before.startswith("rest") and axis.submesh is None:
        size = size.replace(str(axis.size), "rest", 1)
    size, at, network = size.partition(" @ ")
    return f"{size}{f' {kept[0]}' if kept else ''}{at}{network}"


def _applied(spec: Spec, edits: list[Edit]) -> str:
    name = spec.source.name
    return apply([Fix("write the mesh", tuple(edits))]).texts.get(name, spec.source.text)


_Data = dict[str, Any]
_HOST = "pinned_host"
#: Sections of a spec that stand above its rules, and above what it extends.
_ABOVE_RULES = (
    *("shardspec", "doc", "extends", "manifest", "let", "axes", "hardware", "mesh", "targets"),
)
_ABOVE_EXTENDS = ("shardspec", "doc")


def _stated(
    text: str, spec: Spec, today: Target, found: Candidate, changes: Iterable[tuple[str, str]]
) -> str | Refusal:
    """Return a text printed anew from its data, with what a layout changes."""
    from shardspec.language.dsl_text.printer import print_dsl
    from shardspec.language.grammar.print_expressions import canonical

    in_dsl = is_dsl(spec.source)
    file = File(SourceFile(spec.source.name, text), "", spec.source.name, in_dsl)
    reading, faults = read(file, with_comments=True)
    data = canonical(None if reading is None else reading.data)
    if reading is None or faults or not isinstance(data, dict) or spec.phase:
        where = f"phase `{spec.phase}`" if spec.phase else f"{spec.source.name}"
        return Refusal(f"--write does not reach {where}", f"write `{found}` by hand")
    gone: set[tuple[str | int, ...]] = set()
    made: _Data = dict(data)
    if found.mesh.names != today.mesh.names:
        place = _with_mesh(made, today, found.mesh)
        if place is None:
            return Refusal("the mesh stands in another file", f"write `{found}` by hand")
        gone.add(place)
    for word, value in changes:
        made = _with_change(made, word, value, found)
        gone |= {("rules",)} if word in ("roles", "rule") else set()
    comments = {
        route: each
        for route, each in reading.comments.items()
        if not any(len(route) > len(place) and route[: len(place)] == place for place in gone)
    }
    of_policy = comments.get(("policy",))
    if of_policy is not None and made.get("policy") != data.get("policy"):
        is_tools = (of_policy.trailing or "").startswith("as ")  # does the tool of an import
        comments["policy",] = of_policy._replace(trailing=None) if is_tools else of_policy
    if in_dsl:
        return print_dsl(made, comments)
    same = frozenset(key for key, value in made.items() if data.get(key) == value)
    return _spliced(text, print_yaml(made, comments), same)


_END = "#"


def _spliced(before: str, after: str, same: frozenset[str]) -> str:
    """Return YAML with the sections that changed in place of those before; the others stay.

    Where sections do not begin at the margin, all of it is printed anew.
    """
    old, new = dict(_sections(before)), dict(_sections(after))
    if not same <= old.keys():
        return after
    kept = (
        old[key] if key in {*same, "", _END} else _blanks(old.get(key, text)) + text.lstrip("\n")
        for key, text in new.items()
    )
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in kept if text)


def _blanks(text: str) -> str:
    return "\n" * (len(text) - len(text.lstrip("\n")))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the lines of each section, comments above it included.

    `""` is before them, and what follows the last one stands by itself: a new section comes above.
    """
    key = ""
    lines: list[str] = []
    above: list[str] = []
    for line in text.splitlines(keepends=True):
        head = re.match(r"([a-z]+):(?=\s|$)", line)
        if head is not None:
            yield key, "".join(lines)
            key, lines, above = head[1], [*above, line], []
        elif line.startswith("#") or not line.strip():
            above.append(line)
        else:
            lines += [*above, line]
            above = []
    yield key, "".join(lines)
    yield _END, "".join(above)


def _set(section: Any, key: str, value: str | int) -> _Data:
    """Return a section with one value; `batch: {size: 512, doc: ...}` keeps what else it says."""
    entries: _Data = dict(section) if isinstance(section, dict) else {}
    known = entries.get(key)
    return entries | {key: {**known, "size": value} if isinstance(known, dict) else value}


def _with_change(data: _Data, word: str, value: str, found: Candidate) -> _Data:
    """Return the data of a spec with what a layout changes, by a word of `--over`."""
    if word == "roles":
        assert found.variant.roles is not None, "they are what changes"
        return _with_roles(data, found.variant.roles)
    if word == "rule":
        pairs = (each.split("->") for each in value.split(","))
        return _with_lines(data, {axis: f"{axis} -> {right}" for axis, right in pairs})
    if word == "offload":
        return _offloaded(data, value, found.variant.spec)
    section, key = ("axes", "batch") if word == "batch" else _PLACES[word]
    plain = int(value) if value.isdigit() else value
    return data | {section: _set(data.get(section), key, plain)}


def _offloaded(data: _Data, what: str, spec: Spec) -> _Data:
    """Return the data of a spec with state or activations in the memory of the host."""
    if what != "activations":
        data = data | {"memory": {OFFLOADED: _HOST, **(data.get("memory") or {})}}
    if what == "state":
        return data
    kept = next(each for each in spec.activations if each.name == KEPT)
    axes = " ".join(name or "_" for name in kept.logical_axes)
    named = data.get("activations") or {}
    return data | {"activations": named | {KEPT: {"axes": axes, "memory": _HOST}}}


def _with_mesh(data: _Data, today: Target, mesh: Mesh) -> tuple[str, ...] | None:
    """Put a mesh in the place of that of a target, and return where it stands.

    Of several counts of slices, what says `rest` has another size on each, and says so still.
    """
    name, targets = family(today.name), data.get("targets")
    spans = {axis.name: axis.span for axis in today.mesh.axes if name != today.name}
    sizes = {
        axis.name: _plain(_size_text("" if span is None else span.text, axis))
        for axis in mesh.axes
        for span in (spans.get(axis.name),)
    }
    if isinstance(targets, dict) and isinstance(targets.get(name), dict):
        data["targets"] = targets | {name: targets[name] | {"mesh": sizes}}
        return "targets", name, "mesh"
    if "mesh" in data:
        data["mesh"] = sizes
        return ("mesh",)
    return None


def _plain(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _with_roles(data: _Data, roles: RoleSet) -> _Data:
    """Return the data of a spec with the presets and rules of some roles."""
    presets = set(assets.spec_names("presets"))
    stated: Any = data.get("extends") or []
    before = [stated] if isinstance(stated, str) else list(stated)
    kept = [
        each
        for each in before
        if each not in roles.extends and (roles.is_own or not _is_of_rules(each, presets))
    ]
    data = _placed(data, "extends", [*kept, *roles.extends], _ABOVE_EXTENDS)
    if not roles.is_own:
        data.pop("drop", None)
        return _placed(data, "rules", [*roles.rules], _ABOVE_RULES)
    lines = {text.partition(" ->")[0]: text for text in roles.rules}
    return _with_lines(data, lines, roles.covered)


def _with_lines(data: _Data, lines: _Data, covered: Collection[str] = ()) -> _Data:
    """Return the data of a spec with some rules in place of those of the same axes.

    Args:
      covered: axes whose rules are taken out.
    """
    left, axes = dict(lines), frozenset((*lines, *covered))
    rules = [part for rule in data.get("rules") or () for part in _parted(rule, axes, left)]
    return _placed(data, "rules", [*rules, *left.values()], _ABOVE_RULES)


def _is_of_rules(name: str, presets: Collection[str]) -> bool:
    """Say whether something that a spec extends is a preset with rules, and no more."""
    is_file = name.endswith(SPEC_SUFFIXES) or "/" in name.removeprefix("t5x/")
    return not is_file and name in presets


def _parted(rule: Any, covered: frozenset[str], texts: _Data) -> Iterator[Any]:
    """Yield a rule without logical axes that others are for, with those of `texts` among them."""
    text = rule.get("rule", "") if isinstance(rule, dict) else rule
    names, arrow, right = str(text).partition("->")
    found = [name.strip() for name in names.split(",")]
    if covered.isdisjoint(found):
        yield rule
        return
    for is_covered, group in itertools.groupby(found, covered.__contains__):
        if is_covered:
            yield from (texts.pop(name) for name in group if name in texts)
            continue
        made = f"{', '.join(group)} {arrow}{right}"
        yield rule | {"rule": made} if isinstance(rule, dict) else made


def _placed(data: _Data, key: str, value: Any, above: Collection[str]) -> _Data:
    """Return data with a section: in its place, or behind those that stand above it."""
    if key in data or not value:
        return {
            name: value if name == key else each
            for name, each in data.items()
            if name != key or value
        }
    at = max((at for at, name in enumerate(data, 1) if name in above), default=0)
    entries = list(data.items())
    return dict([*entries[:at], (key, value), *entries[at:]])


def harm(before: Iterable[Diagnostic], after: Iterable[Diagnostic], target: Target) -> str | None:
    """Return what `check` has against a spec with a layout and not against the one before.

    Errors count, and on other targets mesh axes that nothing is sharded over any more.
    """
    known = {(each.code, each.target) for each in before}
    found: Mapping[str, None] = dict.fromkeys(
        each.code.id + (f" on target {each.target}" if each.target else "")
        for each in after
        if (each.code, each.target) not in known
        and (each.is_error or (each.code is codes.UNUSED_MESH_AXIS and each.target != target.name))
    )
    return f"with it, `shardspec check` has {listed(found)}" if found else None


def differs(spec: Spec, target: Target, found: Candidate) -> str | None:
    """Return what of a layout a spec that was read again does not say; None where it says all."""
    then = found.spec
    sides = {
        "the mesh": (target.mesh, found.mesh),
        "the machine": (target.hardware, found.hardware),
        "the order of chips": (spec.policy.order, found.order),
        "what happens to sizes": (spec.policy.indivisible, then.policy.indivisible),
        "the state": (spec.state, then.state),
        "the step": (spec.step, then.step),
        "the memory of the host": (
            (spec.memory, spec.activations),
            (then.memory, then.activations),
        ),
        "the rules": (spec.axis_rules, then.axis_rules),
    }
    return next((what for what, (now, wanted) in sides.items() if now != wanted), None)
