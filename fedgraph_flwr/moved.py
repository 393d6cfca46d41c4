"""Names of earlier releases: a module's imports its successor, with a warning, until the next release; a hook's is refused."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = __name__.partition(".")[0]

MOVED = {
    "answers": "wire.reply_schema",
    "checks": "runs.checks",
    "clients.hostile": "clients.malicious",
    "clients.keeping": "clients.saved_models",
    "clients.together": "engine.stacking",
    "completion_command": "cli.completion",
    "config.meaning": "config.key_docs",
    "config.written": "config.config_file",
    "data.import_command": "cli.import_tables",
    "data.listing": "cli.datasets",
    "data.new": "data.prediction_input",
    "data.schema_command": "cli.schema",
    "data.sums": "data.federated_statistics",
    "datasets": "partition.api",
    "evaluation.many": "evaluation.batched_metrics",
    "export.command": "cli.export",
    "fleet.adjusted": "fleet.flower_patches",
    "fleet.command": "cli.fleet",
    "fleet.node": "cli.node",
    "fleet.server": "cli.server",
    "interrupt": "runs.interrupt",
    "keys_command": "cli.keys",
    "lookup": "config.lookup",
    "messages": "wire.messages",
    "methods.feddc": "methods.variates",
    "methods.feddyn": "methods.variates",
    "methods.params": "config.lookup",
    "methods.scaffold": "methods.variates",
    "methods.secagg": "secure.secagg",
    "methods.stages": "strategies.loop",
    "new_command": "cli.new",
    "partition.command": "cli.partition",
    "places": "data.root",
    "predict_command": "cli.predict",
    "prediction": "runs.prediction",
    "progress": "runs.progress",
    "records": "runs.recorder",
    "report.answer": "report.headline",
    "report.command": "cli.report",
    "run_command": "cli.run",
    "run_folder": "runs.folder",
    "runner": "runs.runner",
    "serving": "runs.serving",
    "strategies.labels": "methods.labels",
    "strategies.added": "strategies.actor_aggregation",
    "sweeps.asked": "sweeps.spec",
    "sweeps.book": "sweeps.results_index",
    "sweeps.command": "cli.sweep",
    "sweeps.tally": "sweeps.summary",
    "sweeps.words": "sweeps.overrides",
    "trees": "wire.trees",
}
"""Old module → new module, both below the package."""

_AVERAGE, _CLIENT = "fedgraph_flwr.strategies.fedavg:FedAvg", "fedgraph_flwr.clients.base:GraphClient"

RETIRED: dict[str, tuple[str, dict[str, Any]]] = {
    "fedgraph_flwr.strategies.fedavgm:FedAvgM": (_AVERAGE, {"server_optimizer": "momentum"}),
    "fedgraph_flwr.strategies.fedopt:FedAdagrad": (_AVERAGE, {"server_optimizer": "adagrad"}),
    "fedgraph_flwr.strategies.fedopt:FedAdam": (_AVERAGE, {"server_optimizer": "adam"}),
    "fedgraph_flwr.strategies.fedopt:FedYogi": (_AVERAGE, {"server_optimizer": "yogi"}),
}
"""Old class of one side of a method, as ``strategy.server`` or ``strategy.client`` → the present class and parts."""

HOOKS = {
    "client": {
        "answer": "reply",
        "checkpoint": "save",
        "instead": "with_parameters",
        "own_values": "personal_parameters",
        "plain_answer": "plain_reply",
        "remark": "startup_note",
        "restore": "load",
        "slopes": "grads",
        "snapshot": "save",
        "unmasked": "uplink",
    },
    "server": {
        "aggregate": "step(arrays, reduced)",
        "average": "Mean(...) in uplink",
        "exchange": "request(phase, groups)",
        "remark": "startup_note",
        "schema": "uplink, and fields(phase, group, client) for shapes that follow from earlier replies",
        "sum_weights": "Mean(weight=..., scale=...) or Sum() in uplink",
        **dict.fromkeys(("plain_average", "sends_models", "averages", "sums", "beyond_sums"), "uplink"),
    },
}
"""Per side, members that a method's class must not define → what to define instead."""


def successor(name: str) -> str:
    """The present name of a module; the same name where it did not move."""
    package, _, below = name.partition(".")
    new = MOVED.get(below) if package == PACKAGE else None
    return f"{PACKAGE}.{new}" if new else name


def current(target: str) -> str:
    """The present name of a class ``module:Class``; a module below ``strategies.`` or ``clients.`` is one of ours."""
    module, colon, name = target.partition(":")
    ours = module if module.startswith(f"{PACKAGE}.") else f"{PACKAGE}.{module}"
    return successor(ours) + colon + name


class OldNames(MetaPathFinder, Loader):
    """Import hook for `MOVED`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an old name; None for every other."""
        return ModuleSpec(fullname, self) if successor(fullname) != fullname else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the new module under the old name."""
        old, new = module.__name__, successor(module.__name__)
        warnings.warn(
            f"{old} is now {new}: change the import, the old name goes with the next release", FutureWarning, 2
        )
        sys.modules[old] = importlib.import_module(new)


def refuse_old_hooks(kind: type, side: str) -> None:
    """Refuse a class that defines what its base no longer has or no longer lets it change.

    Args:
        kind: the new class.
        side: ``client`` or ``server``, a key of `HOOKS`.

    Raises:
        TypeError: naming the class, the member, and its replacement.
    """
    for old, new in HOOKS[side].items():
        if old in vars(kind):
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__} defines '{old}', which a method no longer may: define {new} instead"
                ' (docs/extend.md, "Migrate a method")'
            )


def renamed(new: str) -> Any:
    """Return a method that warns and calls the method's new name, for one release."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"call {new} instead: the old name goes with the next release", FutureWarning, 2)
        return getattr(self, new)(*args, **kwargs)

    return call


def install() -> None:
    """Serve old names from now on."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.append(OldNames())
