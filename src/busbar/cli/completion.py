"""`busbar completion bash|zsh|fish`: a script that completes commands and options in a shell, and files behind a command.

The script has all words in it. So a shell completes without starting Busbar, and it has to be made again after an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import command

Words = dict[str, list[str]]
"""By the words of a command ("queue create"): what can follow."""

_BASH = """\
# Completion of busbar for bash: put it into a file, and source that in ~/.bashrc.
_busbar_words() {
    case "$1" in
@CASES@
    esac
}
_busbar() {
    local word path="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [ -n "$(_busbar_words "${path:+$path }$word")" ]; then path="${path:+$path }$word"; fi
    done
    COMPREPLY=($(compgen -W "$(_busbar_words "$path")" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _busbar busbar
"""
_ZSH = """\
#compdef busbar
# Completion of busbar for zsh: put it into a file _busbar of a directory in $fpath.
_busbar_words() {
    case "$1" in
@CASES@
    esac
}
_busbar() {
    local word known=""
    for word in ${words[2,CURRENT-1]}; do
        if [[ -n "$(_busbar_words "${known:+$known }$word")" ]]; then known="${known:+$known }$word"; fi
    done
    local -a found=($(_busbar_words "$known"))
    compadd -- $found
    if [[ "$found[1]" == -* ]]; then _files; fi  # behind a command
}
if [ "$funcstack[1]" = "_busbar" ]; then _busbar "$@"; else compdef _busbar busbar; fi
"""
_FISH = """\
# Completion of busbar for fish: put it into ~/.config/fish/completions/busbar.fish.
function _busbar_words
    switch "$argv"
@CASES@
    end
end
function _busbar
    set -l known
    for word in (commandline -opc)[2..]
        if test -n "$(_busbar_words $known $word)"
            set -a known $word
        end
    end
    _busbar_words $known
end
function _busbar_has_commands
    not string match -q -- '-*' (_busbar)[1]
end
complete -c busbar -n _busbar_has_commands -f -a '(_busbar)'
complete -c busbar -n 'not _busbar_has_commands' -a '(_busbar)'  # and files, which a command may want
"""


def add_completion_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar completion bash > ~/.busbar-completion && . ~/.busbar-completion",
            "busbar completion zsh > ~/.zfunc/_busbar",
            "busbar completion fish > ~/.config/fish/completions/busbar.fish",
        ),
    )(completion)


def completion(*, shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", show_default=False)]) -> None:
    """Print a script that completes the commands and options of busbar in a shell."""
    scripts: dict[str, tuple[str, Callable[[str, list[str]], str]]] = {
        "bash": (_BASH, _case),
        "zsh": (_ZSH, _case),
        "fish": (_FISH, _fish_case),
    }
    if shell not in scripts:
        raise CommandFailure(f"'{shell}' is none of bash, zsh and fish.", ExitCode.USAGE)
    script, case = scripts[shell]
    cases = "\n".join(case(path, words) for path, words in sorted(command_words().items()) if words)
    print(script.replace("@CASES@", cases), end="")


def command_words() -> Words:
    """All commands, with what can follow each of them."""
    from busbar.cli.groups import GROUPS, groups_for
    from busbar.cli.main import app

    root = typer.main.get_command(app)
    found: Words = dict(_walk(root, ""))
    found[""] = sorted({*found[""], *GROUPS})
    for name in GROUPS:
        (group,) = [one for one in groups_for([name]) if one.info.name == name]
        # get_command would make a command of a group that has only one.
        found |= dict(_walk(typer.main.get_group(group), name))
    return found


def _walk(command: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    options = [
        option
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for option in parameter.opts
        if option.startswith("--")
    ]
    below = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
    yield path, [*sorted(below), *options, "--help"]
    for name, one in below.items():
        yield from _walk(one, f"{path} {name}".strip())


def _case(path: str, words: list[str]) -> str:
    return f'        "{path}") echo "{" ".join(words)}" ;;'


def _fish_case(path: str, words: list[str]) -> str:
    return f"        case '{path}'\n            printf '%s\\n' {' '.join(words)}"
