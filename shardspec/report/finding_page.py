"""The page of a finding, for `shardspec explain SHD301`: the docstring of its module."""

from __future__ import annotations

from shardspec.diagnostics import Code


def finding_page(code: Code) -> str:
    """Return the page with its heading."""
    from shardspec.lints.pages import page

    return (
        f"{code.id}  {code.name}  ({code.severity} unless `lints:` says otherwise)\n\n{page(code)}"
    )
