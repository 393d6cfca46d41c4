"""Command ``completion``: shell scripts that complete commands, options, keys and names, and the query that they call."""

import argparse
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.root import imported_names, user_cache
from fedgraph_flwr.version import __version__

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

_WITH_KEYS = ("run", "partition")


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
    command = given[0]
    if last.startswith("-"):
        return _from(known["options"].get(command, []), last)
    if command == "keys":
        choices = (f"{g}={n}" for g in known["groups"][:-1] for n in _names(g, known, folders))
        return _from([*known["sections"], *choices], last)
    if command == "completion":
        return _from(SCRIPTS, last)
    if command not in _WITH_KEYS:
        return []
    key, sign, _ = last.partition("=")
    if not sign:
        return _from([f"{key}=" for key in known["keys"]], last)
    names = _names(key, known, folders) if key in known["groups"] else known["values"].get(key, [])
    return _from([f"{key}={name}" for name in names], last)


def _own_folders(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the arguments without ``--conf DIR``, and the user's config folders."""
    rest, folders, each = [], [], iter(words)
    for word in each:
        if word == "--conf":
            folders.append(next(each, ""))
        elif word.startswith("--conf="):
            folders.append(word.partition("=")[2])
        else:
            rest.append(word)
    named = [*folders, *os.environ.get("FEDGRAPH_CONF", "").split(os.pathsep)]
    return rest, [Path(folder).expanduser() for folder in named if folder]


def _names(group: str, known: dict[str, Any], folders: Iterable[Path]) -> list[str]:
    """Return the names that a group accepts, as `config.group_names` does, plus imported datasets."""
    places = [*folders, *map(Path, known["folders"])]
    found = sorted({path.stem for place in places for path in (place / group).glob("*.yaml")})
    return [*found, *(imported_names() if group == "dataset" else ())]


def _from(accepted: Iterable[str], last: str) -> list[str]:
    return [word for word in accepted if word.startswith(last)]


# --- cache: these values change only with the installation and take two seconds to import ------------------------------


def _known() -> dict[str, Any]:
    """Return commands, options, keys and their values, from the user's cache or, at first use, from the modules."""
    path = user_cache() / f"completion-{_fingerprint()}.json"
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found
    found = _gathered()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("completion-*.json"):
            old.unlink(missing_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found))
        part.replace(path)
    return found


def _fingerprint() -> str:
    """Return a hash of this version's files and of the folders with installed packages."""
    package = Path(__file__).parents[1]
    sources = [path for folder in ("cli", "config") for path in sorted((package / folder).glob("*.py"))]
    parts = [__version__, sys.version, str(package), *map(str, _times([*sources, *map(Path, sys.path)]))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _times(paths: Iterable[Path]) -> Iterator[int]:
    for path in paths:
        with contextlib.suppress(OSError):
            yield path.stat().st_mtime_ns


def _gathered() -> dict[str, Any]:
    """Collect the content of `_known` from the modules."""
    from fedgraph_flwr.cli.app import COMMANDS, options  # it imports this module on demand
    from fedgraph_flwr.config.composition import GROUPS, conf_dir
    from fedgraph_flwr.config.engines import SIMULATIONS
    from fedgraph_flwr.config.key_docs import keys_of, sections
    from fedgraph_flwr.config.plugins import packages

    keys = [key for group in sections() for key in keys_of(group)]
    values = {}
    for key in keys:
        accepted = key.accepted.split(" | ") if " | " in key.accepted else []
        values[key.name] = [*accepted, *(["true", "false"] if isinstance(key.default, bool) else [])]
    return {
        "commands": list(COMMANDS),
        "options": {command: options(command) for command in COMMANDS},
        "groups": list(GROUPS),
        "sections": list(sections()),
        "folders": [str(folder) for folder in (conf_dir(), *packages().values())],
        "keys": [*GROUPS, *(key.name for key in keys if not key.name.endswith(".name"))],
        "values": {**values, "engine": list(SIMULATIONS)},
    }
