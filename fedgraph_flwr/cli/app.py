"""The command line ``fedgraph-flwr``.

Exit codes: 0 done; 1 the run could not go on; 2 wrong input; 130 interrupted.
"""

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from fedgraph_flwr.errors import FedGraphError, first_line, sanitize
from fedgraph_flwr.moved import rename_options
from fedgraph_flwr.version import __version__

# Command → the module that registers it and its one-line help. Imported on demand, so that --help is quick.
COMMANDS = {
    "run": ("fedgraph_flwr.cli.run", "train: in this process, on Ray, or on a fleet"),
    "sweep": ("fedgraph_flwr.cli.sweep", "many runs side by side, and their table"),
    "partition": ("fedgraph_flwr.cli.partition", "cut a dataset into one file a client, or describe the cut"),
    "datasets": ("fedgraph_flwr.cli.datasets", "what is known, what is at hand, where files go"),
    "import": ("fedgraph_flwr.cli.import_tables", "bring your own graph: tables or a saved PyG object"),
    "schema": ("fedgraph_flwr.cli.schema", "what your tables' columns mean: show it, or merge statistics"),
    "keys": ("fedgraph_flwr.cli.keys", "every key with its type, range, default and meaning"),
    "completion": ("fedgraph_flwr.cli.completion", "a script for your shell: bash, zsh or fish"),
    "new": ("fedgraph_flwr.cli.new", "a package for a method of your own, with its test"),
    "predict": ("fedgraph_flwr.cli.predict", "what a trained network says of new nodes and graphs"),
    "export": ("fedgraph_flwr.cli.export", "a trained network as a folder that plain PyG loads"),
    "node": ("fedgraph_flwr.cli.node", "this party's SuperNode, with its graph, on a fleet"),
    "server": ("fedgraph_flwr.cli.server", "a fleet's server: SuperLink, and nginx before it"),
    "fleet": ("fedgraph_flwr.cli.fleet", "keys and certificates, who is admitted, who is there, what is wrong"),
    "report": ("fedgraph_flwr.cli.report", "an HTML page of one run or several, or of sweeps"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    with _own_conf(list(sys.argv[1:] if argv is None else argv)) as words:
        return _main(words)


def _main(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        args = _parse(rename_options(words))
        return int(args.func(args))
    except SystemExit as stop:  # argparse ends with 0 after --help and with 2 on wrong input
        return int(stop.code or 0)
    except FedGraphError as error:
        print(f"error: {sanitize(error, 4000)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        return 0
    except OSError as error:  # a disk that is full, a folder that may not be read: anywhere, at any time
        about = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or first_line(error)}{about}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"error: this machine has too little memory for it ({first_line(error)})", file=sys.stderr)
        return 1


@contextlib.contextmanager
def _own_conf(words: list[str]) -> Iterator[list[str]]:
    """The words without ``--conf DIR``, wherever it stood, while that folder is the first to be searched, by our children too."""
    if not any(word == "--conf" or word.startswith("--conf=") for word in words):
        yield words
        return
    from fedgraph_flwr.config import CONF

    option = argparse.ArgumentParser(prog="fedgraph-flwr", add_help=False, allow_abbrev=False)
    option.add_argument("--conf", metavar="DIR", type=os.path.abspath)
    before = os.environ.get(CONF, "")
    told, rest = option.parse_known_args(words)
    os.environ[CONF] = os.pathsep.join(filter(None, [told.conf, before]))
    try:
        yield rest
    finally:
        os.environ[CONF] = before


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = _parser(words)
    args, rest = parser.parse_known_args(words)
    # argparse takes the key=value words of one place only; those behind an option are left over.
    if rest and (not hasattr(args, "overrides") or any(word.startswith("-") or "=" not in word for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser that knows all commands but fills in only the one that is asked for."""
    parser = argparse.ArgumentParser(prog="fedgraph-flwr", description="Federated graph neural networks on Flower.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--conf", metavar="DIR", help="a config folder of your own, searched first (FEDGRAPH_CONF)")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        if name in words[:1]:
            importlib.import_module(module).register(commands)
        else:
            commands.add_parser(name, help=text)
    return parser


def options(command: str) -> list[str]:
    """The options of a command."""
    choices = next(action.choices for action in _parser([command])._actions if action.choices)
    parser = dict(choices).get(command)
    return [option for action in parser._actions for option in action.option_strings] if parser else []


def _as_interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
