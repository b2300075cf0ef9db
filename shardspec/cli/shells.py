"""How bash, zsh and fish ask what to offer, and hear it: `eval "$(... shardspec)"`.

Click's own scripts lose three things that are kept here. bash parts words at `:` and `=`, so that
`axis:em` came in pieces; where files are offered beside names, its script threw the names away;
and what follows `--target=` replaced the option in zsh and fish.
"""

from __future__ import annotations

import os

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

#: The line up to the cursor goes over whole. Of a reply, what lies before the last `:` or `=` is
#: on the line already. Files alone are left to readline, which knows `~` and quotes names.
_BASH = r"""%(complete_func)s() {
    local type value whole line="${COMP_LINE:0:COMP_POINT}" special='*[!A-Za-z0-9_./:=,@%%+-]*'
    local current="${COMP_WORDS[COMP_CWORD]}" kept='' has_files=''
    whole="${line##*[[:space:]]}"
    [[ $current == [:=] ]] && current=''
    [[ $whole == *"$current" ]] && kept="${whole%%"$current"}"
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            plain)
                value="${value#"$kept"}"
                [[ $value == $special ]] && printf -v value '%%q' "$value"
                COMPREPLY+=("$value") ;;
            dir) compopt -o dirnames ;;
            file) has_files=1 ;;
        esac
    done < <(COMP_WORDS="$line" %(complete_var)s=bash_complete "$1" 2>/dev/null)
    if [[ $has_files ]]; then
        if (( ${#COMPREPLY[@]} )); then
            while IFS= read -r value; do
                [[ -d $value ]] && value+=/
                [[ $value == $special ]] && printf -v value '%%q' "$value"
                COMPREPLY+=("$value")
            done < <(compgen -f -- "$current")
            [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
        else
            compopt -o default
        fi
    fi
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


def _offered(shell: ShellComplete, args: list[str], start: str) -> list[CompletionItem[str]]:
    """Return what to offer, each for the whole word, `--target=` with it; nothing for a bad line.

    Args:
      shell: its class comes after one of this module, whose words are wanted.
    """
    try:
        items = ShellComplete.get_completions(shell, args, start)
    except (click.ClickException, click.exceptions.Exit, OSError):
        return []
    option, equals, _ = start.partition("=")
    if not option.startswith("--") or not equals:
        return items
    for each in items:
        if each.type == "plain":
            each.value = f"{option}={each.value}"
    return items


class _Bash(BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the one that is being typed."""
        line = os.environ.get("COMP_WORDS", "")
        words = split_arg_string(line)[1:]
        return (words[:-1], words[-1]) if words and not line[-1:].isspace() else (words, "")

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what to offer."""
        return _offered(self, args, incomplete)


class _Zsh(ZshComplete):
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what to offer."""
        return _offered(self, args, incomplete)


class _Fish(FishComplete):
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what to offer."""
        return _offered(self, args, incomplete)


def register() -> None:
    """Have click use what is here."""
    for each in (_Bash, _Zsh, _Fish):
        add_completion_class(each)
