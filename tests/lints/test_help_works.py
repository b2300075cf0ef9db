"""Help is followed by a machine: the finding goes, and nothing worse comes.

Over all specs of `tests/cases` and all bad examples. What a help says in code, it says in one of a
few forms, and each form has a hand that carries it out on the data of the spec: a rule in place of
those for its axis, a size, a name for a name, a level. The edits of fixes are applied as they are.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.codes import LintLevel
from shardspec.diagnostics.diagnostic import apply
from tests.test_cases import CASES, files_of
from tests.test_docs import NOT_A_SPEC, example

Data = dict[str, Any]

#: What stands before a rule that is no way out: another part of the sentence, or an example.
_NO_WAY_OUT = ("put ", "above ", "before ", "take out ", "for ", "mesh axes: ", "`|`: ", "write ")
_RULE = re.compile(r"`(?P<axes>[\w.-]+(?:, [\w.-]+)*) -> (?P<to>[^`\n]+)`")
_DID_YOU_MEAN = re.compile(r"did you mean `(?P<name>[^`]+)`(?: or `[^`]+`)*\?")
_ADD_SIZE = re.compile(r"add `(?P<axis>[\w.-]+): SIZE` to `axes`")
_WOULD_DIVIDE = re.compile(r"(?P<axis>[\w.-]+) = (?P<sizes>\d+(?: or \d+)*) would divide")
_FITS = re.compile(r"`(?P<axis>[\w.-]+)` (?:= (?P<size>\d+)|in \{(?P<sizes>[\d, ]+)\})")
_LEVEL = re.compile(r"`lints: \{(?P<name>[\w-]+): allow\}`")
_ABOVE = re.compile(r"put `(?P<rule>[^`]+)` above `(?P<other>[^`]+)`")


def specs() -> Iterator[Any]:
    """Yield each bad example and each case of one spec."""
    for code in codes.ALL:
        if code.name not in NOT_A_SPEC and "Bad:" in _page(code):
            yield pytest.param(example(code, "Bad"), id=f"bad-{code.name}")
    for path in CASES:
        files = files_of(path.read_text(encoding="utf-8"))
        if list(files) == ["spec.yaml"]:
            yield pytest.param(files["spec.yaml"], id=path.stem)


def _page(code: Any) -> str:
    from shardspec.lints.registry import page

    return page(code)


@cache
def found_in(text: str, name: str = "spec.yaml") -> tuple[Diagnostic, ...]:
    """Return all findings of a text, pedantic ones too, without what suppressions say."""
    spec, faults = pipeline.load_text(text, name)
    if spec is None:
        return faults
    from dataclasses import replace

    asked = tuple(LintLevel(c.id, c.severity) for c in codes.ALL if c.is_pedantic)
    spec = replace(spec, lint_levels=(*asked, *spec.lint_levels))
    return pipeline.checked(spec, faults, pipeline.compile_plans(spec), is_whole=False).shown


def _data(text: str) -> Data | None:
    """Return a spec as data, None where a machine cannot read what a person may."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return data if isinstance(data, dict) else None


def _text(data: Data) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=10_000)


def _axes_of(rule: object) -> list[str]:
    text = rule.get("rule", "") if isinstance(rule, dict) else rule
    if not isinstance(text, str) or "->" not in text:
        return []
    return [axis.strip() for axis in text.partition("->")[0].split(",")]


def _with_rule(data: Data, axes: list[str], rule: str) -> Data:
    """Return the spec with a rule in place of the first of those for its axes, the others gone.

    A rule that is for other axes too stays for those.
    """
    old = data.get("rules") or []
    new: list[Any] = []
    is_placed = False
    for each in old:
        named = _axes_of(each)
        if not set(named) & set(axes):
            new.append(each)
            continue
        if not is_placed:
            new.append(rule)
            is_placed = True
        others = [axis for axis in named if axis not in axes]
        if others and isinstance(each, str):
            new.append(f"{', '.join(others)} -> {each.partition('->')[2].strip()}")
    if not is_placed:
        new.append(rule)
    return {**data, "rules": new}


def _rules(found: Diagnostic, data: Data) -> Iterator[tuple[str, Data]]:
    for match in _RULE.finditer(found.help or ""):
        before = (found.help or "")[: match.start()]
        if before.endswith(_NO_WAY_OUT) or match["axes"] == "AXIS":
            continue
        rule = f"{match['axes']} -> {match['to']}"
        yield rule, _with_rule(data, match["axes"].split(", "), rule)


def _sizes(found: Diagnostic, data: Data) -> Iterator[tuple[str, Data]]:
    for match in _WOULD_DIVIDE.finditer(found.help or ""):
        axes = data.get("axes") or {}
        if match["axis"] not in axes:
            continue
        for size in match["sizes"].split(" or "):
            entry = axes[match["axis"]]
            entry = {**entry, "size": int(size)} if isinstance(entry, dict) else int(size)
            yield f"axes.{match['axis']}={size}", {**data, "axes": {**axes, match["axis"]: entry}}


def _added_sizes(found: Diagnostic, data: Data) -> Iterator[tuple[str, Data]]:
    for match in _ADD_SIZE.finditer(found.help or ""):
        inline = re.search(rf"\b{re.escape(match['axis'])}=(\d+)", _text(data))
        size = int(inline[1]) if inline else 64
        axes = {**(data.get("axes") or {}), match["axis"]: size}
        yield f"add {match['axis']}", {**data, "axes": axes}


def _levels(found: Diagnostic, data: Data) -> Iterator[tuple[str, Data]]:
    for match in _LEVEL.finditer(found.help or ""):
        lints = {**(data.get("lints") or {}), match["name"]: "allow"}
        yield match[0], {**data, "lints": lints}


def _mesh_sizes(found: Diagnostic, data: Data) -> Iterator[tuple[str, Data]]:
    """Yield the spec with each size that fits, in every mesh of its target."""
    if "these fit: " not in (found.help or ""):
        return
    for match in _FITS.finditer(found.help or ""):
        for size in (match["size"] or match["sizes"]).split(", "):
            changed = copy.deepcopy(data)
            targets = changed.get("targets") or {"default": changed}
            for name, target in targets.items():
                if found.target in (None, name) and match["axis"] in target.get("mesh", {}):
                    target["mesh"][match["axis"]] = int(size)
            yield f"{match['axis']}={size}", changed


def _order(found: Diagnostic, data: Data) -> Iterator[tuple[str, Data]]:
    for match in _ABOVE.finditer(found.help or ""):
        rules = list(data.get("rules") or [])
        if match["rule"] in rules and match["other"] in rules:
            rules.remove(match["rule"])
            rules.insert(rules.index(match["other"]), match["rule"])
            yield match[0], {**data, "rules": rules}


_HANDS: tuple[Callable[[Diagnostic, Data], Iterator[tuple[str, Data]]], ...] = (
    _rules,
    _sizes,
    _added_sizes,
    _mesh_sizes,
    _levels,
    _order,
)


def _renamed(found: Diagnostic, text: str) -> Iterator[tuple[str, str]]:
    """Yield the text with the name that is meant in place of the one under the caret."""
    match = _DID_YOU_MEAN.search(found.help or "")
    place = found.primary
    if match is None or place is None or place.span.source.name != "spec.yaml":
        return
    old = place.span.text
    word = old if re.fullmatch(r"[\w.*/{}-]+", old) else None
    if word is not None:
        start, end = place.span.start, place.span.end
        yield match[0], text[:start] + match["name"] + text[end:]


def _followed(found: Diagnostic, text: str) -> Iterator[tuple[str, str]]:
    """Yield what a way out is, and the spec after it."""
    if found.fix is not None:
        edited = apply([found.fix]).texts
        if list(edited) == ["spec.yaml"]:
            yield f"fix: {found.fix.title}", edited["spec.yaml"]
    yield from _renamed(found, text)
    data = _data(text)
    if data is not None and _codes(_text(data)) == _codes(text):
        for hand in _HANDS:
            for said, changed in hand(found, copy.deepcopy(data)):
                yield said, _text(changed)


def _codes(text: str) -> list[str]:
    return sorted(d.code.id for d in found_in(text))


def _misleading(text: str) -> Iterator[str]:
    before = found_in(text)
    errors = {d.code.id for d in before if d.is_error}
    for found in before:
        for said, changed in _followed(found, text):
            after = found_in(changed)
            worse = {d.code.id for d in after if d.is_error} - errors
            if found.code.id < "SHD1":  # what a fault of reading hid may come to light
                worse = {code for code in worse if code < "SHD1" and code != "SHD004"}
            if _count(found, after) >= _count(found, before):
                yield f"{found.code.id} stays after {said!r}: {found.help}"
            if worse:
                yield f"{found.code.id}: {sorted(worse)} after {said!r}: {found.help}"


def _count(found: Diagnostic, among: tuple[Diagnostic, ...]) -> int:
    return sum((d.code, d.message) == (found.code, found.message) for d in among)


@pytest.mark.parametrize("text", list(specs()))
def test_help_that_is_followed_helps(text: str) -> None:
    assert list(_misleading(text)) == []


def test_most_kinds_of_help_are_followed() -> None:
    followed: dict[str, set[str]] = {}
    for each in specs():
        text = str(each.values[0])
        for each_one in found_in(text):
            for said, _ in _followed(each_one, text):
                followed.setdefault(each_one.code.id, set()).add(said)
    assert len(followed) >= 25
    assert sum(map(len, followed.values())) >= 80
