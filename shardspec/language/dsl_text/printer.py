"""Plain data of a document -> DSL text, in its one canonical layout, comments kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from shardspec.ir.spec import MEMORY_KINDS
from shardspec.language.grammar.syntax import quoted
from shardspec.language.reading import OPTIONAL, Comments, Data, Route
from shardspec.language.sections import SECTIONS
from shardspec.language.validate import fields_at, words_at
from shardspec.language.yaml_text.comments import comment_line

_WIDTH = 88
_LEFT = 56
_KEY = re.compile(r"\w[\w./-]*")
_REFERENCE = re.compile(r"[\w./@+~-]+")
_PATTERN = re.compile(r"(?!re[:\"])(?:\\\S|[^\s:=\"#;()\[\]\\])+")
_RAW_REGEX = re.compile(r'(?:[^"\\\n]|\\[^\n])*')
_LIKE_MEMORY = re.compile(rf"\bmemory ({'|'.join(MEMORY_KINDS)})$")
_REST = re.compile(r"[\w(][\w%(),.-]*(?: [\w%(),.-]+)*")
_AMOUNT = re.compile(r"[0-9][0-9.]*[ \t]*[A-Za-z%]+")
_GROUPS = {
    "doc": "shardspec",
    "extends": "shardspec",
    "hardware": "mesh",
    "coverage": "state",
    "lints": "policy",
}


def print_dsl(data: Data, comments: Mapping[Route, Comments]) -> str:
    """Return the DSL text of a document.

    Args:
      data: what `canonical` gives back for a valid document.
      comments: by route, as a reader gives them.

    Invariants:
      round_trip: reading the text gives the same data, once both are canonical.
      comments: every comment is in the text.
    """
    assert isinstance(data, dict)
    return "\n".join(_lines(data, comments)) + "\n"


def _lines(
    data: dict[str, Any], comments: Mapping[Route, Comments], *, in_braces: bool = False
) -> list[str]:
    """Return the lines of a document, or of a phase, whose last comments stand before a brace."""
    printer = _Printer(data, comments)
    keys = [key for key in data if key not in {"hardware", "devices"} or "mesh" not in data]
    for _, group in groupby(keys, key=lambda key: _GROUPS.get(key, key)):
        printer.gap()
        for key in group:
            _PRINTERS[key](printer, data[key])
            printer.leave(key)
    printer.rest(in_braces=in_braces)
    return printer.lines


class _Printer:
    """The text as it grows, and the comments that are still to be placed."""

    def __init__(self, data: dict[str, Any], comments: Mapping[Route, Comments]) -> None:
        self.data = data
        self.lines: list[str] = []
        self.comments = {r: c for r, c in comments.items() if any(c.before) or c.trailing}
        self.after = {r: c.after for r, c in comments.items() if any(c.after)}
        self.left: tuple[str, ...] = ()

    def gap(self) -> None:
        """Leave a line empty, unless nothing stands above."""
        if self.lines:
            self.lines.append("")

    def rest(self, *, in_braces: bool) -> None:
        """Add the comments that belong to nothing below them."""
        found = self._take((*self.comments, *self.after))
        last = () if found.trailing is None else (found.trailing,)
        lines = _comment_lines((*self.left, *found.before, *last))
        if lines:
            if not in_braces:
                self.gap()
            self.lines += lines

    def line(self, text: str, *routes: Route, indent: str = "") -> None:
        """Add a line, with the comments of its routes and of all that stands below them."""
        inner = (r for r in self._commented() if any(r[: len(above)] == above for above in routes))
        self._add(text, self._take(tuple(inner)), indent)

    def head(self, text: str, *routes: Route) -> None:
        """Add the head of a block, with the comments of its own routes alone."""
        self._add(text, self._take(tuple(dict.fromkeys(routes)), without_ends_of=routes), "")

    def close(self, *routes: Route) -> None:
        """Add the end of a block, with the comments that stand last in it."""
        for route in routes:
            lines = _comment_lines(self.after.pop(route, ()))
            self.lines += (f"  {line}".rstrip() for line in lines)
        self.lines.append("}")

    def leave(self, section: str) -> None:
        """Keep what stands at the end of a section without braces for what comes next."""
        for route in [route for route in self.after if route[:1] == (section,)]:
            self.left += self.after.pop(route)

    def _commented(self) -> tuple[Route, ...]:
        """Return the routes that still have comments."""
        return tuple(dict.fromkeys((*self.comments, *self.after)))

    def _add(self, text: str, found: Comments, indent: str) -> None:
        before = _comment_lines((*self.left, *found.before))
        self.left = ()
        self.lines += (f"{indent}{line}".rstrip() for line in before)
        trailing = "" if found.trailing is None else f"  {comment_line(found.trailing)}".rstrip()
        self.lines.append(f"{indent}{text}{trailing}")

    def _take(self, routes: tuple[Route, ...], without_ends_of: tuple[Route, ...] = ()) -> Comments:
        """Remove comments and return them as one: the first trailing one stays trailing."""
        before: list[str] = []
        trailing: str | None = None
        for route in routes:
            found = self.comments.pop(route, Comments())
            before += found.before
            before += () if route in without_ends_of else self.after.pop(route, ())
            if found.trailing is not None and trailing is not None:
                before.append(found.trailing)
            elif found.trailing is not None:
                trailing = found.trailing
        return Comments(tuple(before), trailing)

    def has_comments_below(self, route: Route) -> bool:
        """Say whether a comment stands at something in `route`, or at its end."""
        inner = any(len(r) > len(route) and r[: len(route)] == route for r in self.comments)
        return inner or any(r[: len(route)] == route for r in self.after)

    def pairs(self, section: str, entries: Mapping[str, Any]) -> None:
        """Add a block of `left : right`."""
        left = _pattern if SECTIONS[section].rules else _path
        self.block(section, {key: (left(key), f": {v}") for key, v in entries.items()})

    def block(self, section: str, rows: Mapping[Any, tuple[str, str]]) -> None:
        """Add a section in braces."""
        self.head(f"{section} {{" if rows else f"{section} {{}}", (section,))
        if rows:
            self.columns((section,), rows)
            self.close((section,))

    def columns(self, route: Route, rows: Mapping[Any, tuple[str, str]]) -> None:
        """Add lines of left and right sides, the right ones below each other."""
        widths = [len(left) for left, right in rows.values() if right and len(left) <= _LEFT]
        width = max(widths, default=0)
        for key, (left, right) in rows.items():
            text = f"{left:<{width}} {right}" if right else left
            self.line(text, (*route, key), indent="  ")

    def whole(self, section: str, spelt: Callable[[Any], str], value: Any) -> None:
        """Add a section that is one line."""
        self.line(f"{section} {spelt(value)}", (section,))

    def named(self, section: str, entries: Any) -> None:
        for name, entry in entries.items():
            stated = entry if isinstance(entry, dict) else {"size": entry}
            words = [SECTIONS[section].word, _key(name)]
            words += [f"= {stated['size']}"] if stated.get("size") is not None else []
            parts = [f"{_key(part)} = {size}" for part, size in stated.get("parts", {}).items()]
            words += [f"= parts ({', '.join(parts)})"] if parts else []
            words += _fields(section, stated, but=("size", "parts", "doc"))
            words += [quoted(stated["doc"])] if "doc" in stated else []
            self._sectioned(section, " ".join(words), name)

    def settings(self, section: str, values: Any) -> None:
        word, spelt = SECTIONS[section].word, _SPELT.get(section, _to_end)
        for name, value in values.items():
            self._sectioned(section, f"{word} {_key(name)} {spelt(str(value))}", name)

    def _sectioned(self, section: str, text: str, key: str | int) -> None:
        """Add a line of a section that has no head of its own; its comments come first."""
        route: Route = (section, key)
        inner = (found for found in self._commented() if found[:2] == route)
        self._add(text, self._take(((section,), *inner), without_ends_of=((section,),)), "")

    def targets(self, targets: Any) -> None:
        for name, entry in targets.items():
            self._target(f"target {_key(name)}", ("targets", name), entry, ("targets",))

    def mesh(self, value: Any) -> None:
        entry = {key: self.data.get(key) for key in ("hardware", "devices")} | {"mesh": value}
        self._target("mesh", (), entry, ("hardware",), ("mesh",))

    def _target(self, head: str, route: Route, entry: Any, *above: Route) -> None:
        """Add a target, on one line where it is short and nothing is said within."""
        machine = entry.get("hardware")
        start = head if machine is None else f"{head} on {machine}"
        inner: Route = (*route, "mesh")
        sizes = {key: (_key(key), f"= {size}") for key, size in (entry.get("mesh") or {}).items()}
        own = (route,) if route else ()
        blocks = (inner, *own)
        heads = (*above, *own, (*route, "hardware"), inner)
        fields = {line.split()[0]: line for line in _fields("targets", entry, ("hardware", "mesh"))}
        is_commented = self.has_comments_below(inner) or any(one in self.after for one in own)
        commented = (*self.comments, *self.after)
        is_commented = is_commented or any((*route, key) in commented for key in fields)
        rows = (*map(" ".join, sizes.values()), *fields.values())
        short = f"{start} {{ {'; '.join(rows)} }}"
        if not rows:
            self.head(f"{start} {{}}", *heads)
        elif len(short) <= _WIDTH and not is_commented:
            self.head(short, *heads)
        else:
            self.head(f"{start} {{", *heads)
            self.columns(inner, sizes)
            for key, line in fields.items():
                self.line(line, (*route, key), indent="  ")
            self.close(*blocks)

    def phases(self, phases: Any) -> None:
        for at, (name, entry) in enumerate(phases.items()):
            route: Route = ("phases", name)
            inner = self._inner_comments(route)
            lines = _lines(entry, inner, in_braces=True)
            start = f"phase {_key(name)} {{"
            if at:
                self.gap()
            self.head(start if lines else f"{start}}}", ("phases",), route)
            if lines:
                self.lines += (f"  {line}".rstrip() for line in lines)
                self.close(route)

    def _inner_comments(self, route: Route) -> dict[Route, Comments]:
        """Remove the comments within a route and return them, by routes that begin there."""
        found = {}
        for each in self._commented():
            if each[: len(route)] == route and len(each) > len(route):
                one = self.comments.pop(each, Comments())
                found[each[len(route) :]] = one._replace(after=self.after.pop(each, ()))
        return found

    def rules(self, rules: Any) -> None:
        entries = (rule if isinstance(rule, dict) else {"rule": rule} for rule in rules)
        texts = (" ".join((r["rule"], *_fields("rules", r, ("rule",)))) for r in entries)
        self.block("rules", dict(enumerate(map(_at_arrow, texts))))

    def step(self, step: Any) -> None:
        self.head("step {", ("step",))
        for key, value in step.items():
            if key == "program":
                self.columns(("step", "program"), dict(enumerate(map(_at_arrow, value))))
                self.left += self.after.pop(("step", "program"), ())
            else:
                shown = ", ".join(value) if isinstance(value, list) else _to_end(str(value))
                self.line(f"{key} {shown}", ("step", key), indent="  ")
        self.close(("step",))

    def items(self, section: str, entries: Any) -> None:
        for index, entry in enumerate(entries):
            words = [SECTIONS[section].word, _entry_pattern(entry), *_answer(section, entry)]
            self._sectioned(section, " ".join(words), index)

    def activations(self, entries: Any) -> None:
        answers = {name: _answer("activations", entry) for name, entry in entries.items()}
        self.block("activations", {name: (_path(name), " ".join(a)) for name, a in answers.items()})


def _comment_lines(lines: Iterable[str]) -> list[str]:
    """Return comments as lines, without empty lines at the ends or two in a row."""
    shown = [comment_line(line) for line in lines]
    kept = [line for i, line in enumerate(shown) if line or (i and shown[i - 1])]
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _key(text: str) -> str:
    return text if _KEY.fullmatch(text) else quoted(text)


def _reference(text: str) -> str:
    return text if _REFERENCE.fullmatch(text) else quoted(text)


def _listed(spelt: Callable[[str], str]) -> Callable[[Any], str]:
    return lambda names: ", ".join(map(spelt, [names] if isinstance(names, str) else names))


def _amount(text: str) -> str:
    return text if _AMOUNT.fullmatch(text) else _key(text)


def _to_end(text: str) -> str:
    return text if _REST.fullmatch(text) and _is_balanced(text, "()") else quoted(text)


def _at_arrow(text: str) -> tuple[str, str]:
    """Return both sides of a rule or a line, the second with its arrow."""
    left, arrow, right = text.partition(" -> ")
    return left, f"{arrow[1:]}{right}"


def _answer(section: str, stated: Mapping[str, Any] | str) -> tuple[str, ...]:
    """Return the mark of names or of a partition, and what stands behind it, if there is one."""
    entry = {"axes": stated} if isinstance(stated, str) else stated
    behind = _fields(section, entry, but=("path", "match", "optional", "axes", "spec"))
    if "spec" in entry:
        return "=", entry["spec"], *behind
    # Two last names that read like a memory are parted by a comma.
    names = _LIKE_MEMORY.sub(r"memory, \1", entry.get("axes", ""))
    return (":", names, *behind) if names else tuple(behind)


def _fields(section: str, entry: Mapping[str, Any], but: Sequence[str]) -> list[str]:
    """Return the fields of an entry, each behind its name: texts in quotes, flags last."""
    kept = [key for key in fields_at((section,)) if entry.get(key) not in (None, False)]
    shown = []
    for key in sorted((key for key in kept if key not in but), key=lambda key: entry[key] is True):
        value = entry[key]
        is_bare = key in SECTIONS[section].fields or words_at((section, key))
        spelt = quoted(value) if isinstance(value, str) and not is_bare else value
        shown.append(key if value is True else f"{key} {spelt}")
    return shown


def _entry_pattern(entry: Mapping[str, str]) -> str:
    text = _regex(entry["match"]) if "match" in entry else _glob(entry["path"])
    return f"optional {text}" if entry.get("optional") else text


def _pattern(key: str) -> str:
    """Return a key of `params:` and the like: behind `optional:` and `re:`, or a glob."""
    is_optional = key.startswith(OPTIONAL)
    return f"optional {_path(key.removeprefix(OPTIONAL))}" if is_optional else _path(key)


def _path(key: str) -> str:
    """Return a key of `arrays:` and the like: a glob, or a regex behind `re:`."""
    return _regex(key[3:]) if key.startswith("re:") else _glob(key)


def _glob(text: str) -> str:
    return text if _PATTERN.fullmatch(text) and _is_balanced(text) else quoted(text)


def _regex(text: str) -> str:
    return f're"{text}"' if _RAW_REGEX.fullmatch(text) else f"re:{quoted(text)}"


def _is_balanced(text: str, pair: str = "{}") -> bool:
    depth = 0
    for match in re.finditer(rf"\\.|[{re.escape(pair)}]", text):
        depth += {pair[0]: 1, pair[1]: -1}.get(match.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def _by(print_as: Callable[..., None], *given: object) -> Callable[[_Printer, Any], None]:
    return lambda printer, value: print_as(printer, *given, value)


_FORMS: Mapping[str, Callable[..., None]] = {
    "pairs": _Printer.pairs,
    "items": _Printer.items,
    "settings": _Printer.settings,
}
_PRINTERS: Mapping[str, Callable[[_Printer, Any], None]] = {
    **{n: _by(_FORMS[each.form], n) for n, each in SECTIONS.items() if each.form in _FORMS},
    **{each: _by(_Printer.whole, each, str) for each in ("shardspec", "hardware", "devices")},
    "doc": _by(_Printer.whole, "doc", lambda value: quoted(str(value))),
    "extends": _by(_Printer.whole, "extends", _listed(_reference)),
    "drop": _by(_Printer.whole, "drop", _listed(_key)),
    "manifest": _by(_Printer.whole, "manifest", _listed(quoted)),
    **{each: _by(_Printer.named, each) for each in ("let", "axes")},
    "mesh": _Printer.mesh,
    "targets": _Printer.targets,
    "rules": _Printer.rules,
    "activations": _Printer.activations,
    "step": _Printer.step,
    "phases": _Printer.phases,
}
_SPELT = {"policy": _amount, "lints": _key}
