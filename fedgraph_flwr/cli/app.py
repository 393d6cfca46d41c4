"""The command line ``fedgraph-flwr``.

Exit codes: 0 success, 1 the run failed, 2 wrong input, 130 interrupted.
"""

import argparse
import contextlib
import difflib
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from fedgraph_flwr.cli.renamed import current
from fedgraph_flwr.errors import KEY_ALIASES, FedGraphError, first_line, sanitize, unknown
from fedgraph_flwr.version import __version__

# Command → the module of this package that registers it, and its one-line help. Modules are imported on demand: --help is fast.
COMMANDS = {
    "run": ("cli.run", "train a model in this process, on Ray, or on a fleet"),
    "sweep": ("cli.sweep", "run many configurations in parallel and write a table"),
    "runs": ("cli.runs", "list runs with their settings, state and score"),
    "clean": ("cli.clean", "list and delete old files of runs and of a node's state"),
    "partition": ("cli.partition", "partition a dataset into client files, or describe the partition"),
    "datasets": ("cli.datasets", "list datasets, their availability and their files"),
    "init-party": ("party.tables.init_command", "write party.yaml by guessing from a party's two tables"),
    "import": ("party.tables.import_command", "import your graph from tables or a saved PyG object"),
    "book": ("party.book.command", "keep a party's exports as one book, whose days are scored"),
    "link": ("party.link.command", "match records of edges between parties, without showing the others"),
    "forget": ("party.forget_command", "remove a party from a finished run, exactly"),
    "schema": ("party.tables.schema_command", "show the schema of your tables, or merge statistics of parties"),
    "keys": ("cli.keys", "list configuration keys with type, range, default and meaning"),
    "completion": ("cli.completion", "print a completion script for bash, zsh or fish"),
    "new": ("cli.new", "create a package for your method, with a test"),
    "predict": ("party.use.predict_command", "predict new nodes and graphs with a trained model"),
    "alerts": ("party.use.alerts_command", "choose a threshold for alerts, and list the items above it"),
    "drift": ("party.use.drift_command", "compare new tables with the data that a model was trained on"),
    "explain": ("party.use.explain_command", "list the columns and payments that carry an item's score"),
    "worth": ("party.use.worth_command", "compare local, boosting and federated models on a party's own test items"),
    "drill": ("party.drill.command", "plant agreed patterns in copies of tables, and report which models find them"),
    "audit": ("party.use.audit_command", "verify and summarise what a server asked a node, and what left it"),
    "blend": ("party.use.blend_command", "weigh the predictions of finished runs"),
    "export": ("party.use.export_command", "export a trained model to a folder that plain PyG loads"),
    "node": ("cli.node", "run this party's SuperNode with its graph"),
    "agree": ("cli.agree", "agree with other members which runs nodes accept, and sign it"),
    "server": ("cli.server", "run a fleet's server: SuperLink behind nginx"),
    "fleet": ("cli.fleet", "create keys and certificates, admit nodes, show status, diagnose"),
    "report": ("cli.report", "write an HTML report of runs or sweeps"),
}


GROUPS = {
    "Train": ("run", "sweep", "runs", "report", "keys", "new", "clean", "completion"),
    "Data": ("datasets", "partition", "import", "init-party", "schema", "book", "link", "forget"),
    "Use a model": ("predict", "alerts", "drift", "explain", "worth", "drill", "blend", "export"),
    "Fleet": ("fleet", "server", "node", "agree", "audit"),
}
"""Commands in the order of the help."""

_USAGE = "fedgraph-flwr [-h] [--version] [--conf DIR] COMMAND ..."

_EXAMPLES = """\
Examples:
  fedgraph-flwr run strategy=fedprox dataset=cora num_clients=5
  fedgraph-flwr sweep strategy=fedavg,fedprox seed=0..4
  fedgraph-flwr import --nodes people.csv --edges calls.csv --name calls
  fedgraph-flwr predict runs/mine --nodes new.csv --edges new_calls.csv

An error ends with its code in brackets: `fedgraph-flwr help CODE` explains it.
"""

_OF_OWN_CODE = ("run", "sweep")
"""Commands that import the user's code from the current folder. Others read files of other people, and folders of them."""

_ALIASES = {
    "help": ["--help"],
    "version": ["--version"],
    "-V": ["--version"],
    "methods": ["keys", "strategy"],
    "models": ["keys", "model"],
    "config": ["keys"],
    "list": ["runs"],
    "ls": ["runs"],
    "status": ["fleet", "status"],
}
"""First words elsewhere, and what answers them here."""


_TRAINS = "run trains a model: fedgraph-flwr run strategy=fedavg"
_SCORES = "run scores a finished run again: fedgraph-flwr run evaluate=runs/mine"
_DRAWS = "report draws the curves of runs: fedgraph-flwr report runs/a runs/b --page both.html"
_INSTEAD = {
    **dict.fromkeys(("train", "simulate", "fit"), _TRAINS),
    **dict.fromkeys(("evaluate", "test", "eval"), _SCORES),
    **dict.fromkeys(("plot", "compare"), _DRAWS),
    "download": "run downloads a dataset on first use: fedgraph-flwr run dataset=cora",
    "approve": "members agree on runs once: fedgraph-flwr agree new, then agree sign",
}
"""Commands elsewhere that another one here does in its own words."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        with _own_conf(list(sys.argv[1:] if argv is None else argv)) as given:
            if given[:1] and given[0] in _OF_OWN_CODE and os.getcwd() not in sys.path:
                sys.path.append(os.getcwd())  # model=net:Net of the current folder
            if given[:1] == ["help"] and given[1:]:
                return _help(given[1])
            args = _parse(given)
            return int(args.func(args))
    except SystemExit as stop:  # argparse exits with 0 after --help and with 2 on wrong input
        return int(stop.code or 0)
    except FedGraphError as error:
        from fedgraph_flwr.error_codes import code_of

        _print_error(f"{sanitize(error, 4000)} [{code_of(error)}]")
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has exited
        return 0
    except OSError as error:  # a full disk, an unreadable folder
        about = f" ({error.filename})" if error.filename else ""
        _print_error(f"{error.strerror or first_line(error)}{about}")
        return 1
    except MemoryError as error:
        _print_error(f"not enough memory on this machine ({first_line(error)})")
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)


def _help(name: str) -> int:
    """Print the entry of an error's code, or the help of a command."""
    from fedgraph_flwr.error_codes import ENTRIES, text

    if name not in ENTRIES.keys() - COMMANDS.keys():
        return main([name, "--help"])
    print(text(name))
    return 0


def _print_error(text: str) -> None:
    """Print an error message, as the log's last line if the command writes its log in JSON."""
    processes = sys.modules.get("fedgraph_flwr.fleet.processes")
    if processes and processes.LINES.form == "json":
        processes.say(f"error: {text}")
    else:
        print(f"error: {text}", file=sys.stderr)


@contextlib.contextmanager
def _own_conf(args: list[str]) -> Iterator[list[str]]:
    """Yield the arguments without ``--conf DIR``; meanwhile this process and its children search that folder first."""
    if not any(word == "--conf" or word.startswith("--conf=") for word in args):
        yield args
        return
    from fedgraph_flwr.config import CONF

    option = _Parser(prog="fedgraph-flwr", add_help=False, allow_abbrev=False)
    option.add_argument("--conf", metavar="DIR", type=os.path.abspath)
    before = os.environ.get(CONF, "")
    known, rest = option.parse_known_args(args)
    os.environ[CONF] = os.pathsep.join(filter(None, [known.conf, before]))
    try:
        yield rest
    finally:
        os.environ[CONF] = before


def _parse(given: Sequence[str]) -> argparse.Namespace:
    given = given or ["--help"]
    given = [*_ALIASES.get(given[0], given[:1]), *given[1:]]
    if given[0] in _OF_OWN_CODE:
        given = _of_hydra(given)
    if not given[0].startswith("-") and given[0] not in COMMANDS:
        meant = difflib.get_close_matches(given[0], [*COMMANDS, *_INSTEAD], n=1)
        instead = _INSTEAD.get(given[0] if given[0] in _INSTEAD else meant[0] if meant else "", "")
        raise unknown("command", given[0], COMMANDS, instead=instead)
    given = current(given)
    parser = _parser(given)
    args, rest = parser.parse_known_args(given)
    # argparse takes arguments without a name at one position only; those after an option are left over.
    if hasattr(args, "words") and not any(word.startswith("-") for word in rest):
        args.words, rest = [*args.words, *rest], []
    if rest and (not hasattr(args, "overrides") or any(word.startswith("-") or "=" not in word for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}{_as_override(given, rest[0])}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def _of_hydra(given: Sequence[str]) -> list[str]:
    """Return ``+key=value``, ``--multirun`` and ``--cfg job`` of Hydra in the words of this command line."""
    words = [re.sub(r"^\+{1,2}(?=[\w.]+=)", "", word) for word in given]
    if several := {"-m", "--multirun"} & {*words}:
        words = ["sweep", *(word for word in words[1:] if word not in several)]
    if "--cfg" in words:
        place = words.index("--cfg")
        words[place : place + 2] = ["--dry-run"]
    return words


def _as_override(given: Sequence[str], option: str) -> str:
    """Return how to set the key that an unknown option names; empty if there is no such key."""
    from fedgraph_flwr.config.key_docs import keys_of, sections

    word, sign, value = option.lstrip("-").partition("=")
    name, keys = word.replace("-", "_"), ["config", *(key.name for section in sections() for key in keys_of(section))]
    named = [key for key in keys if key.rpartition(".")[2] == name]
    alias = KEY_ALIASES.get(name) or (named[0] if len(named) == 1 else "")
    key = name if name in (*keys, *sections()) else alias if alias in keys else ""
    after = [*given, ""][given.index(option) + 1] if option in given else ""
    value = value if sign else after if after and not after.startswith("-") else "VALUE"
    return f"; keys are set without dashes: {key}={value}" if key and option.startswith("--") else ""


class _Once(argparse.Action):
    """Store the value of an option, or of a positional argument; refuse a second one, which would replace it in silence."""

    given: Any = None

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if option_string and self.given is not None:
            raise FedGraphError(
                f"{option_string} is given twice, as '{self.given}' and '{values}', but takes one value: leave one out"
            )
        self.given = values
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """A parser whose options, and those of its commands, are `_Once`, unless they have another action."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def print_help(self, file: Any = None) -> None:
        """Print the help; on a terminal with bold headings and coloured options, unless ``NO_COLOR`` is set."""
        stream, text = file or sys.stdout, self.format_help()
        if stream.isatty() and not os.environ.get("NO_COLOR") and "\x1b" not in text:  # Python 3.14 has colours
            text = re.sub(r"^(?!usage:)\S.*(?=\n  )", "\x1b[1m\\g<0>\x1b[0m", text, flags=re.MULTILINE)
            text = re.sub(r"(?<![\w-])--?[a-z][\w-]*", "\x1b[36m\\g<0>\x1b[39m", text)
        stream.write(text)


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the requested command, or else with the names of all."""
    about = "Federated graph neural networks on Flower. `fedgraph-flwr COMMAND --help` describes a command."
    lists = [
        f"{group}\n" + "".join(f"  {name:<12}{COMMANDS[name][1]}\n" for name in names)
        for group, names in GROUPS.items()
    ]
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="fedgraph-flwr",
        usage=_USAGE,
        description=about,
        epilog="\n".join([*lists, _EXAMPLES]),
        formatter_class=form,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--conf", metavar="DIR", help="additional config folder, searched first (see FEDGRAPH_CONF)")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog="fedgraph-flwr")
    for name in {*given[:1]} & COMMANDS.keys() or COMMANDS:
        module, text = COMMANDS[name]
        command = commands.add_parser(name, help=text, formatter_class=form)
        if name in given[:1]:
            called = importlib.import_module(f"fedgraph_flwr.{module}")
            command.epilog = (called.__doc__ or "").partition("\n\n")[2]  # examples
            command.set_defaults(func=getattr(called, "main", None))  # those of its actions take precedence
            called.register(command)
    return parser


def options(command: str) -> dict[str, list[str]]:
    """Return the options of a command, under "", and those of each of its actions."""

    def shown(parser: argparse.ArgumentParser) -> list[str]:
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        return [option for action in actions for option in action.option_strings]

    parser = dict(next(action.choices for action in _parser([command])._actions if action.choices) or {})[command]
    by_action = {"": shown(parser)}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            by_action |= {name: shown(inner) for name, inner in action.choices.items()}
        elif action.choices and not action.option_strings:
            by_action |= {str(name): [] for name in action.choices}
    return by_action


def _as_interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
