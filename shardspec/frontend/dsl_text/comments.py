"""Comments of a DSL file -> the entries they belong to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from shardspec.frontend.dsl_text.layout import Comment
from shardspec.frontend.reading import Comments, Route
from shardspec.frontend.yaml_text.comments import comment_text


def attach_comments(
    text: str,
    comments: Sequence[Comment],
    entries: Sequence[tuple[Route, int, int]],
    blocks: Sequence[tuple[Route, int, int]] = (),
) -> Mapping[Route, Comments]:
    """Return the comments by route of the entry: those on lines of their own go to the next one.

    Below the last entry of a block, they go to its end.

    Args:
      entries: route, start and end of each entry.
      blocks: route, opening and end of each block.
    """
    entries = sorted(entries, key=lambda entry: entry[1])
    starts = [start for _, start, _ in entries]
    before: dict[Route, list[str]] = {}
    trailing: dict[Route, str] = {}
    after: dict[Route, list[str]] = {}
    previous: Comment | None = None
    for comment in comments:
        place = bisect_left(starts, comment.start)
        following = entries[place][0] if place < len(entries) else ()
        owner = entries[_first_on_line(text, starts, place)][0] if place else following
        if not comment.own_line and owner and owner not in trailing:
            trailing[owner] = comment_text(text[comment.start : comment.end])
            continue
        block = _closed_block(comment, blocks, starts[place] if place < len(starts) else len(text))
        lines = before.setdefault(following, []) if block is None else after.setdefault(block, [])
        if lines and previous and text.count("\n", previous.end, comment.start) > 1:
            lines.append("")
        lines.append(comment_text(text[comment.start : comment.end]))
        previous = comment
    return {
        route: Comments(
            tuple(before.get(route, ())), trailing.get(route), tuple(after.get(route, ()))
        )
        for route in dict.fromkeys((*before, *trailing, *after))
    }


def _closed_block(
    comment: Comment, blocks: Sequence[tuple[Route, int, int]], following: int
) -> Route | None:
    """Return the block that a comment stands in, if no entry of it follows."""
    for route, start, end in blocks:
        if start < comment.start < end <= following:
            return route
    return None


def _first_on_line(text: str, starts: Sequence[int], place: int) -> int:
    """Return the first entry on the line where the one before `place` begins."""
    line_start = text.rfind("\n", 0, starts[place - 1]) + 1
    return bisect_left(starts, line_start)
