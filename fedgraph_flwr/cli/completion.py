"""The command ``completion``: scripts by which shells complete commands, options, keys and names, and what they ask."""

import argparse
from collections.abc import Iterable
from typing import Any

from fedgraph_flwr.config import group_names
from fedgraph_flwr.config.composition import GROUPS
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.config.key_docs import keys_of, sections
from fedgraph_flwr.data.root import imported_names

_BASH = r"""# fedgraph-flwr completion bash > ~/.local/share/bash-completion/completions/fedgraph-flwr
_fedgraph_flwr() {
  local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n' word
  word="${line##* }"
  COMPREPLY=($(fedgraph-flwr completion words -- "$line" 2>/dev/null))
  # bash breaks words at = and replaces only what is behind it
  if [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}"); fi
  if [[ "${COMPREPLY[0]}" == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _fedgraph_flwr fedgraph-flwr
"""

_ZSH = r"""#compdef fedgraph-flwr
# fedgraph-flwr completion zsh > a file _fedgraph-flwr in a folder of $fpath
_fedgraph_flwr() {
  local -a found
  found=("${(@f)$(fedgraph-flwr completion words -- "${LBUFFER}" 2>/dev/null)}")
  compadd -S '' -- ${found:#*[^=]} && return
  compadd -- $found || _files
}
compdef _fedgraph_flwr fedgraph-flwr
"""

_FISH = r"""# fedgraph-flwr completion fish > ~/.config/fish/completions/fedgraph-flwr.fish
complete -c fedgraph-flwr -a '(fedgraph-flwr completion words -- (commandline -cp) 2>/dev/null)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_TAKE_KEYS = ("run", "partition")


def register(commands: Any) -> None:
    """Add ``completion`` to the subparsers."""
    parser = commands.add_parser("completion", help="a script for your shell: bash, zsh or fish")
    parser.add_argument("shell", choices=[*SCRIPTS, "words"], help="words: what completes a line, as the scripts ask")
    parser.add_argument("line", nargs="?", default="", help=argparse.SUPPRESS)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``completion``."""
    print(SCRIPTS[args.shell] if args.shell in SCRIPTS else "\n".join(words(args.line)), end="")
    return 0


def words(line: str) -> list[str]:
    """What the last word of a command line may become."""
    from fedgraph_flwr.cli.app import COMMANDS, options  # which imports this module, when it is asked for

    *before, last = line.split(" ")
    given = [word for word in before if word][1:]
    if not given:
        return _from([*COMMANDS, "--help", "--version", "--conf"], last)
    command = given[0]
    if last.startswith("-"):
        return _from(options(command), last)
    if command == "keys":
        return _from([*sections(), *(f"{g}={n}" for g in GROUPS[:-1] for n in group_names(g))], last)
    if command == "completion":
        return _from(SCRIPTS, last)
    if command not in _TAKE_KEYS:
        return []
    key, sign, _ = last.partition("=")
    return _from([f"{key}={value}" for value in values(key)] if sign else [f"{key}=" for key in _keys()], last)


def _keys() -> list[str]:
    return [*GROUPS, *(key.name for group in sections() for key in keys_of(group) if not key.name.endswith(".name"))]


def values(key: str) -> list[str]:
    """What a key accepts, where that is a list of words."""
    if key in GROUPS:
        return [*group_names(key), *(imported_names() if key == "dataset" else ())]
    if key == "engine":
        return list(SIMULATIONS)
    for group in sections():
        for known in keys_of(group):
            if known.name == key:
                accepted = known.accepted.split(" | ") if " | " in known.accepted else []
                return [*accepted, *(["true", "false"] if isinstance(known.default, bool) else [])]
    return []


def _from(accepted: Iterable[str], last: str) -> list[str]:
    return [word for word in accepted if word.startswith(last)]
