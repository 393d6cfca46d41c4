"""Command ``completion``: shell scripts that complete commands, options, keys and names, and the query that they call."""

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.plugins import conf_dir, packages
from fedgraph_flwr.data.root import imported_names

_BASH = r"""# fedgraph-flwr completion bash > ~/.local/share/bash-completion/completions/fedgraph-flwr
_fedgraph_flwr() {
  local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n' word
  word="${line##* }"
  COMPREPLY=($(fedgraph-flwr completion words -- "$line" 2>/dev/null))
  # bash breaks words at = and replaces only what is behind it
  if [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}"); fi
  if [[ "${COMPREPLY[0]}" == *[=.] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _fedgraph_flwr fedgraph-flwr
"""

_ZSH = r"""#compdef fedgraph-flwr
# fedgraph-flwr completion zsh > a file _fedgraph-flwr in a folder of $fpath
_fedgraph_flwr() {
  local -a found
  found=("${(@f)$(fedgraph-flwr completion words -- "${LBUFFER}" 2>/dev/null)}")
  compadd -S '' -- ${found:#*[^=.]} && return
  compadd -- $found || _files
}
compdef _fedgraph_flwr fedgraph-flwr
"""

_FISH = r"""# fedgraph-flwr completion fish > ~/.config/fish/completions/fedgraph-flwr.fish
complete -c fedgraph-flwr -a '(fedgraph-flwr completion words -- (commandline -cp) 2>/dev/null)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_WITH_KEYS = ("run", "sweep", "partition")


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``completion``."""
    about = "shell, or words: completions of a line (called by the scripts)"
    parser.add_argument("shell", choices=[*SCRIPTS, "words"], help=about)
    parser.add_argument("line", nargs="?", default="", help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    """Handle ``completion``."""
    print(SCRIPTS[args.shell] if args.shell in SCRIPTS else "\n".join(words(args.line)), end="")
    return 0


def words(line: str) -> list[str]:
    """Return completions of the last word of a command line."""
    *earlier, last = line.split(" ")
    given, folders = _own_folders([word for word in earlier if word][1:])
    known = _known()
    if not given:
        return _from([*known["commands"], "--help", "--version", "--conf"], last)
    command, *more = given
    options = known["options"].get(command, {})
    if last.startswith("-"):
        return _from([*options.get("", []), *(options.get(more[0], []) if more else [])], last)
    if len(options) > 1 and not more:
        return _from([name for name in options if name and name != "words"], last)
    if command == "keys":
        choices = (f"{g}={n}" for g in known["groups"][:-1] for n in _names(g, folders))
        return _from([*known["sections"], *choices], last)
    if command == "datasets":
        return _from(_names("dataset", folders), last)
    if command in _OF_RUNS:
        return _from(_runs(), last)
    key, sign, value = last.partition("=")
    if command in ("import", "init-party"):  # keys of a party's file
        values = known["party"].get(key.partition(".")[0], [])
        return _from(
            [f"{key}={v}" for v in values] if sign else [*known["party"]["words"], *sorted(os.listdir())], last
        )
    if command not in _WITH_KEYS:
        return []
    if not sign:
        return _from([f"{key}=" for key in known["keys"]], last)
    if key in _FOLDERS:
        return _from([f"{key}={folder}" for folder in _runs()], last)
    earlier_values, comma, _ = value.rpartition(",")
    names = _names(key, folders) if key in known["groups"] else known["values"].get(key, [])
    there = earlier_values.split(",") if comma and command == "sweep" else []
    return _from([f"{key}={','.join([*there, name])}" for name in names if name not in there], last)


_OF_RUNS = ("predict", "alerts", "drift", "explain", "export", "worth", "blend", "report", "forget")
"""Commands whose arguments are folders of runs."""

_FOLDERS = ("resume", "init", "evaluate")
"""Keys whose value is a folder of a run."""


def _runs() -> list[str]:
    """Return the folders of runs in the current folder, in runs/ and in those that sweeps keep."""
    places = ("*/config.yaml", "runs/*/config.yaml", "sweeps/*-runs/*/config.yaml")
    return sorted(str(path.parent) for place in places for path in Path().glob(place))


def _own_folders(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the arguments without ``--conf DIR``, and the user's config folders."""
    rest, folders, arguments = [], [], iter(words)
    for word in arguments:
        if word == "--conf":
            folders.append(next(arguments, ""))
        elif word.startswith("--conf="):
            folders.append(word.partition("=")[2])
        else:
            rest.append(word)
    named = [*folders, *os.environ.get("FEDGRAPH_CONF", "").split(os.pathsep)]
    return rest, [Path(folder).expanduser() for folder in named if folder]


def _names(group: str, folders: Iterable[Path]) -> list[str]:
    """Return the names that a group accepts, as `config.group_names` does, plus imported datasets."""
    places = [*folders, conf_dir(), *packages().values()]
    names = sorted({path.stem for place in places for path in (place / group).glob("*.yaml")})
    return [*names, *(imported_names() if group == "dataset" else ())]


def _from(accepted: Iterable[str], last: str) -> list[str]:
    return [word for word in accepted if word.startswith(last)]


@cache
def _known() -> dict[str, Any]:
    """Return commands, options, keys and their values, which `python -m benchmarks.generated` writes."""
    vocabulary: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_bytes())
    return vocabulary
