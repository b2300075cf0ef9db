"""A field of the language, explained from the format's own descriptions."""

from __future__ import annotations


def field_page(name: str) -> tuple[str, ...]:
    """Return the page of `rules` or `policy.indivisible`; nothing for what is no field."""
    from shardspec.frontend import document

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
