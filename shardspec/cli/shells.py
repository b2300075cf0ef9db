"""How bash, zsh and fish ask what to offer, and hear it: `eval "$(... shardspec)"`.

Click's own scripts lose three things that are kept here. bash parts words at `:` and `=`, so that
`axis:em` came in pieces; where files are offered beside names, its script threw the names away;
and what follows `--target=` replaced the option in zsh and fish.

In `completion.bash` the line up to the cursor goes over whole. Of a reply, what lies before the
last `:` or `=` is on the line already. Files alone are left to readline, which knows `~` and quotes
names.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)


class _Whole(ShellComplete):
    """Offers each for the whole word, `--target=` with it; nothing for a line that is no good."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what to offer."""
        try:
            items = ShellComplete.get_completions(self, args, incomplete)
        except (click.ClickException, click.exceptions.Exit, OSError):
            return []
        option, equals, _ = incomplete.partition("=")
        if option.startswith("--") and equals:
            for each in items:
                if each.type == "plain":
                    each.value = f"{option}={each.value}"
        return items


class _Bash(_Whole, BashComplete):
    source_template = Path(__file__).with_name("completion.bash").read_text("utf-8")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the one that is being typed."""
        line = os.environ.get("COMP_WORDS", "")
        words = split_arg_string(line)[1:]
        return (words[:-1], words[-1]) if words and not line[-1:].isspace() else (words, "")


class _Zsh(_Whole, ZshComplete):
    pass


class _Fish(_Whole, FishComplete):
    pass


def register() -> None:
    """Have click use what is here."""
    for each in (_Bash, _Zsh, _Fish):
        add_completion_class(each)
