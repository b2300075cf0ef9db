"""HTML that is put together from elements: whatever is no element is text, and escaped.

What comes from a spec is a stranger's. It can reach a page as text and as the value of an
attribute, and in no other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from shardspec.diagnostics.source import printable


class Html(str):
    """Text that is HTML already, to `tag` and to jinja2."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return it as it is."""
        return self


def tag(name: str, *inner: str, **attributes: object) -> Html:
    """Return an element; None and False leave an attribute out, True has it without a value.

    >>> tag("b", "a < b", class_="x", data_of=3)
    '<b class="x" data-of="3">a &lt; b</b>'
    """
    said = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{said}>{joined(inner)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Return parts as one, those that are text escaped.

    >>> joined(["<", tag("i", "x")])
    '&lt;<i>x</i>'
    """
    return Html("".join(part if isinstance(part, Html) else escaped(part) for part in parts))


def escaped(text: str) -> str:
    """Return text that is safe as text; what would turn a line around stands as its escape."""
    return escape("\n".join(map(printable, text.split("\n"))), quote=False)


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(printable(str(value)))}"'


def table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = (), **more: str
) -> Html:
    """Return a table in a box that scrolls; the first cell of a row heads it.

    On a screen too narrow for them, cells of the class `stack` stand below each other, each with
    its heading.

    Args:
      numbers: the columns that stand to the right.
    """
    right = frozenset(numbers)

    def cell(text: str, at: int, *, is_head: bool) -> Html:
        kind = "th" if is_head or at == 0 else "td"
        scope = None if kind == "td" else "col" if is_head else "row"
        label = headings[at] if kind == "td" and "stack" in more.get("class_", "") else None
        right_ = "number" if at in right else None
        return tag(kind, text, class_=right_, scope=scope, data_label=label)

    head = (cell(text, at, is_head=True) for at, text in enumerate(headings))
    body = (
        tag("tr", *(cell(text, at, is_head=False) for at, text in enumerate(row))) for row in rows
    )
    inner = tag("thead", tag("tr", *head)), tag("tbody", *body)
    return tag("div", tag("table", *inner, **more), class_="scroll", tabindex=0)
