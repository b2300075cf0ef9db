"""The pages of `shardspec explain`: of a finding, and of a field of the language."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardspec.diagnostics import Code
from shardspec.diagnostics.codes import ALL
from shardspec.diagnostics.lines import columns

_NUMBER = re.compile(r"\[?(?:shd[-_ ]?)?([0-9]{3})\]?", re.IGNORECASE)


def find_code(text: str) -> Code | None:
    """Return the finding that a person means: `SHD301`, `301`, `Cut_Unit`, `lint cut-unit`.

    >>> [find_code(text).name for text in ("shd312", "[SHD312]", "312", "Cut_Unit", "`cut-unit`")]
    ['cut-unit', 'cut-unit', 'cut-unit', 'cut-unit', 'cut-unit']
    >>> find_code("SHD999"), find_code("rules")
    (None, None)
    """
    text = re.sub(r"^(?:lints?|finding)[.: ]\s*", "", text.strip("` "))
    number = _NUMBER.fullmatch(text)
    name = re.sub(r"[_\s]+", "-", text.lower())
    wanted = f"SHD{number[1]}" if number else name
    return next((code for code in ALL if wanted in (code.id, code.name)), None)


def finding_page(code: Code) -> str:
    """Return the page with its heading."""
    from shardspec.lints.registry import page

    return f"{code.id}  {code.name}  ({level_text(code)})\n\n{page(code)}"


def level_text(code: Code) -> str:
    """Return how loud a finding is, in words."""
    if code.is_pedantic:
        return f"pedantic: a {code.severity} under --pedantic, or where `lints:` names it"
    return f"{code.severity} unless `lints:` says otherwise"


def code_lines(codes: Iterable[Code] = ALL) -> Iterator[str]:
    """Yield a line for each finding: code, name, how loud it is, and what it says."""
    cells = (
        (code.id, code.name, "pedantic" if code.is_pedantic else code.severity, code.summary)
        for code in codes
    )
    yield from columns(cells, indent=0, is_prose=True)


def field_page(name: str) -> tuple[str, ...]:
    """Return the page of `rules` or `policy.indivisible`; nothing for what is no field."""
    from shardspec.language import document

    outer, _, inner = name.partition(".")
    entries = document.ENTRIES
    field = document.Document.model_fields.get(outer)
    if field is None:
        return ()
    if inner:
        entry = entries[outer].model_fields.get(inner) if outer in entries else None
        return (f"{name}: {entry.description}",) if entry is not None else ()
    lines = [f"{name}: {field.description}"]
    if outer in entries:
        members = entries[outer].model_fields.items()
        lines += ["", *(f"  {key}: {member.description}" for key, member in members)]
    return tuple(lines)
