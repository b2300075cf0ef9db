"""A layout that was found, written into the text of its spec: its comments and lines stay.

The sizes of a mesh are edited where they stand. What is stated beside it is edited where its word
stands, or added. Whoever writes the text first reads it as a spec again, and holds it against the
layout (`differs`): what an edit did not reach is never written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardspec.diagnostics import Edit, Fix, Span
from shardspec.diagnostics.diagnostic import apply
from shardspec.ir.spec import MeshAxis, Spec, Target, family
from shardspec.language.formatting import with_line_ends_of
from shardspec.language.reading import is_dsl
from shardspec.search.variants import Candidate, Refusal, size_text

#: Where a spec says what a search may choose: word -> section, key.
_PLACES = {
    "order": ("policy", "order"),
    "remat": ("step", "remat"),
    "microbatches": ("step", "microbatches"),
    "schedule": ("step", "pipeline"),
    "gather": ("step", "gather"),
    "reduce": ("step", "reduce"),
    "state": ("state", "optimizer"),
}


def rewritten(spec: Spec, today: Target, found: Candidate) -> str | Refusal:
    """Return the text of a spec with a layout in place of today's.

    Args:
      spec: as it was loaded.
    """
    if family(today.name) != today.name:
        message = f"target `{today.name}` is one of several that share a mesh"
        return Refusal(message, "write the sizes by hand")
    if today.devices != found.target.devices:
        message = f"the devices of target `{today.name}` are listed, which --write leaves alone"
        return Refusal(message, "take `devices` out, and search again")
    edits = []
    for now, then in zip(today.mesh.axes, found.mesh.axes, strict=True):
        if size_text(now) == size_text(then) and now.auto == then.auto:
            continue
        if not _is_here(now.span, spec):
            return _elsewhere(f"the size of `{now.name}`", now.span)
        assert now.span is not None, "it is here"
        edits.append(Edit(now.span, _size_text(now.span.text, then)))
    if found.hardware != today.hardware:
        span = None if today.hardware is None else today.hardware.span
        if span is None or not _is_here(span, spec):
            return _elsewhere("the machine", span)
        edits.append(Edit(span, str(found.hardware)))
    text = _applied(spec, edits)
    changes = tuple(_words(spec, found))
    if not changes:
        return text
    text = text.replace("\r\n", "\n")
    for word, value in changes:
        section, key = _PLACES.get(word, ("", ""))
        in_dsl = is_dsl(spec.source)
        if not key or (section == "step" and (in_dsl or spec.step is None)):
            return Refusal(f"--write does not write `{word}`", f"say `{word}: {value}` by hand")
        write = _with_statement if in_dsl else _with_word
        text = write(text, section, key, value)
    return with_line_ends_of(spec.source, text)


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


def _with_statement(text: str, section: str, key: str, value: str) -> str:
    """Return a DSL text with `section key value` on a line of its own."""
    line = f"{section} {key} {value}"
    changed, count = re.subn(rf"(?m)^{section} {key} \S+", line, text, count=1)
    return changed if count else f"{text.rstrip()}\n{line}\n"


def _with_word(text: str, section: str, key: str, value: str) -> str:
    """Return YAML with `section: {key: value}`, in the form that the section has."""
    head = re.search(rf"(?m)^{section}:[ \t]*(?P<rest>[^\n]*)\n?", text)
    if head is None:
        end = "" if text.endswith("\n") else "\n"
        return f"{text}{end}{section}: {{{key}: {value}}}\n"
    if head["rest"].startswith("{"):
        start, end_at = head.start("rest"), head.end("rest")
        inner = head["rest"]
        changed, count = re.subn(rf"\b{key}:\s*[^,}}]+", f"{key}: {value}", inner, count=1)
        if not count:
            changed = f"{{{key}: {value}, {inner[1:].lstrip()}"
        return text[:start] + changed + text[end_at:]
    block = re.compile(r"(?:[ \t]++[^\n]*+\n|\n|#[^\n]*+\n)*+").match(text, head.end())
    body = block[0] if block is not None else ""
    changed, count = re.subn(rf"(?m)^([ \t]+{key}:[ \t]*)[^\s#]+", rf"\g<1>{value}", body, count=1)
    if not count:
        indent = re.match(r"[ \t]+", body)
        changed = f"{indent[0] if indent else '  '}{key}: {value}\n{body}"
    return text[: head.end()] + changed + text[head.end() + len(body) :]


def differs(spec: Spec, target: Target, found: Candidate) -> str | None:
    """Return what of a layout a spec that was read again does not say; None where it says all."""
    then = found.spec
    sides = {
        "the mesh": (target.mesh, found.mesh),
        "the machine": (target.hardware, found.hardware),
        "the order of chips": (spec.policy.order, found.order),
        "the state": (spec.state, then.state),
        "the step": (spec.step, then.step),
        "the rules": (spec.axis_rules, then.axis_rules),
    }
    return next((what for what, (now, wanted) in sides.items() if now != wanted), None)
