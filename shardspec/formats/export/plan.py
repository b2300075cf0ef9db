"""The plan itself as JSON, as `shardspec compile -o` writes it."""

from __future__ import annotations

from shardspec.formats.export.exported import Request, Written
from shardspec.formats.plan_json import plan_text


def write(request: Request) -> Written:
    """Return the plan."""
    return plan_text(request.plan), ()
