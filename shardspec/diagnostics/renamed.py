"""Words of the version before: they keep working for this one, and say the new word."""

from __future__ import annotations

import warnings


def renamed(old: str, new: str) -> None:
    """Warn whoever called the caller that what they use has another name now."""
    message = f"`{old}` is called `{new}` now; the old word goes with 0.3"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
