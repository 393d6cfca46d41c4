"""Codes of errors: an error ends with its code, which `fedgraph-flwr help CODE` and docs/errors.md explain."""

import traceback
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """What one code means.

    Attributes:
        cause: why commands fail so.
        example: arguments of `fedgraph-flwr` that do.
        fix: what to do.
        places: modules whose errors have the code, unless the error was made with another. The longest name counts.
    """

    cause: str
    example: str
    fix: str
    places: tuple[str, ...] = ()


ENTRIES = {
    "unknown-name": Entry(
        "A key, method, model, dataset, column or command has another name here, or none.",
        "run train.lrr=1",
        "Take the name that the error suggests. `fedgraph-flwr keys` lists all keys, `keys strategy` all methods.",
    ),
    "wrong-value": Entry(
        "A key has a value of another type, outside its range, or without a key that it needs.",
        "run train.lr=fast",
        "`fedgraph-flwr keys SECTION` prints type, range and default. A line of your file is named in brackets.",
        ("config",),
    ),
    "combination": Entry(
        "Each value is accepted, but not together: a method may not serve a task, a model, or a protection.",
        "run strategy=fedomd model=gcn",
        "Change the key that the error names. [Methods](methods.md#what-goes-with-what) and"
        " [tasks](task-support.md) list what goes together.",
        ("launch", "clients", "methods", "secure", "strategies", "tasks", "models", "evaluation", "engine"),
    ),
    "own-code": Entry(
        "Your module, network or function cannot be imported, or is not of the expected kind.",
        "run model=nowhere:Net",
        "Import it in `python` from the same folder first. [Models](models.md#bring-your-pyg-model) has the accepted forms.",
        ("config.lookup", "models.wrapped", "models.plain"),
    ),
    "package": Entry(
        "The command needs a package that is not installed.",
        "run tracking=[mlflow]",
        "Run the `pip install` that the error prints, in the same environment.",
        ("tracking",),
    ),
    "dataset": Entry(
        "A dataset or graph file is missing, damaged, or cannot be downloaded.",
        "run graph=nowhere",
        "`fedgraph-flwr datasets` lists what is available and where its files belong.",
        ("data", "partition.store"),
    ),
    "table": Entry(
        "A table, or its schema, has no such file or column, or a value that does not fit its column.",
        "import --nodes nowhere.csv --edges nowhere.csv --name calls",
        "The error names file, column and line. [Own data](own-data.md) describes the format.",
        ("party.tables", "party.party_file", "party.book", "party.outcomes", "party.options"),
    ),
    "partition": Entry(
        "The graph does not suffice for the clients, or cannot be divided as requested.",
        "run dataset=csbm dataset.nodes=30 num_clients=100",
        "Lower `num_clients`, or choose another `partition`.",
        ("partition", "data.csbm"),
    ),
    "run-folder": Entry(
        "A folder holds no run, an unfinished one, or files of another version or process.",
        "report nowhere",
        "`fedgraph-flwr runs DIR` lists runs with their state. Resume an unfinished one by `resume=DIR`.",
        ("store", "report", "api"),
    ),
    "model-use": Entry(
        "A trained model cannot be applied: no finished run, other columns than it was trained on, or unknown items.",
        "predict nowhere --nodes new.csv",
        "Compare the tables with the run's schema. [Predict](predict.md) lists what each command needs.",
        ("party", "sklearn"),
    ),
    "parties": Entry(
        "Parties' records cannot be matched, or their rules differ.",
        "link",
        "Compare rules with the other parties ([links](between-parties.md)). Nothing was shared unless the error says so.",
        ("party.link",),
    ),
    "agreement": Entry(
        "An agreement is missing, damaged, unsigned, or does not allow what was requested.",
        "agree show nowhere.yaml",
        "`fedgraph-flwr agree show FILE` prints what members accept. Other runs need [a new version](consortium.md).",
        ("cli.agree", "fleet.agreements", "launch.agreed"),
    ),
    "fleet": Entry(
        "A key, certificate, policy or connection of a server or node is missing or wrong.",
        "node --server 127.0.0.1:9092 --key nowhere --graph client_0.safetensors",
        "`fedgraph-flwr fleet check` tests each step from the party's machine.",
        ("fleet", "cli.node", "cli.server", "cli.superlink", "cli.fleet", "cli.runs", "engine.flower"),
    ),
    "node-refused": Entry(
        "A node refused a request, by its policy or its records. Its owner decides.",
        "",
        "Change the run to what the error says is accepted, or ask the owner. `fedgraph-flwr audit STATE` shows the request.",
        ("node", "secure.policy"),
    ),
    "run-failed": Entry(
        "The input was valid, but too few clients replied or training diverged.",
        "run train.lr=1e30 rounds=2",
        "Read the reason after each client's number, remove it, and continue by `resume=DIR`.",
    ),
    "command": Entry(
        "Arguments of a command are missing, or exclude each other.",
        "sweep strategy=fedavg tune=nothing",
        "`fedgraph-flwr COMMAND --help` has examples.",
        ("",),
    ),
}
"""Entry of each code."""


def code_of(error: BaseException) -> str:
    """Return the code that a `FedGraphError`, or its cause, was made with, else that of the module that raised it."""
    code = getattr(error, "code", "")
    cause = error.__cause__
    if code or cause is error or not hasattr(cause, "exit_code"):
        return code or _code_of_module(error)
    return code_of(cause)  # type: ignore[arg-type]  # None has no exit code


def _code_of_module(error: BaseException) -> str:
    package = __name__.partition(".")[0]
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [
        name.removeprefix(f"{package}.")
        for name in modules
        if name.startswith(package) and name != "fedgraph_flwr.errors"
    ]
    place = f"{ours[-1]}." if ours else ""
    places = {prefix: code for code, entry in ENTRIES.items() for prefix in entry.places}
    fits = [prefix for prefix in places if not prefix or place.startswith(f"{prefix}.")]
    return places[max(fits, key=len)]


def page() -> str:
    """Return docs/errors.md."""
    head = "# Errors\n\nAn error ends with its code in brackets. `fedgraph-flwr help CODE` prints the entry of this page.\n"
    return "\n".join([head, *(f"## {code}\n\n{text(code)}\n" for code in ENTRIES)])


def text(code: str) -> str:
    """Return the entry of a code: cause, example, what to do."""
    entry = ENTRIES[code]
    example = f"Example: `fedgraph-flwr {entry.example}`." if entry.example else ""
    return "\n".join(filter(None, [entry.cause, example, entry.fix]))
