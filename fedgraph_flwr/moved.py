"""Old names of modules, keys, options and files, accepted for one release with a warning; old hooks are refused."""

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fedgraph_flwr.errors import FedGraphError

PACKAGE = __name__.partition(".")[0]

KEYS = {"evaluation.watch": "evaluation.monitor", "split.redraw": "split.resample"}
"""Old key of a configuration → new key."""

VALUES = {"privacy.scores": {"told": "exact"}}
"""Key of a configuration → old value → new value."""

POLICY_KEYS = {"demands": "required_config"}
"""Old key of a node's policy → new key."""

SWEEP_KEYS = {"choose": "tune", "against": "baseline"}
"""Old key of a sweep, in its file or on the command line → new key."""

CONTRACT_NAMES = {"words": "overrides"}
"""Old attribute of `testing.MethodContract`, and old key of a limit in a method's ``declares``, → new name."""

OPTIONS = {"--against": "--baseline", "--alone": "--no-baselines"}
"""Old option of the command line → new option."""

FILES = {"input_spec.json": "meaning.json"}
"""File of a run → its old name, which is read too."""

MOVED = {
    "answers": "wire.reply_schema",
    "checks": "runs.checks",
    "clients.hostile": "clients.malicious",
    "clients.keeping": "clients.saved_models",
    "clients.together": "engine.stacking",
    "completion_command": "cli.completion",
    "clients.personal": "clients.part",
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
_NOVA = "fedgraph_flwr.clients.fednova:FedNovaClient"

RETIRED: dict[str, tuple[str, dict[str, Any]]] = {
    "fedgraph_flwr.clients.fedprox:FedProxClient": (_CLIENT, {"objective": ["prox"]}),
    "fedgraph_flwr.clients.moon:MoonClient": (_CLIENT, {"objective": ["moon"]}),
    "fedgraph_flwr.clients.fedsam:FedSAMClient": (_CLIENT, {"objective": ["sam"]}),
    "fedgraph_flwr.clients.ditto:DittoClient": (_CLIENT, {"personalization": "ditto"}),
    "fedgraph_flwr.clients.apfl:APFLClient": (_CLIENT, {"personalization": "apfl"}),
    "fedgraph_flwr.clients.fedavg_ft:FineTunedClient": (_CLIENT, {"personalization": "finetune"}),
    "fedgraph_flwr.clients.fedala:FedALAClient": (_CLIENT, {"personalization": "ala"}),
    "fedgraph_flwr.clients.fednova:FedNovaClient": (_NOVA, {"objective": ["prox"]}),
    "fedgraph_flwr.strategies.scaffold:Scaffold": (_AVERAGE, {"variates": "scaffold"}),
    "fedgraph_flwr.clients.scaffold:ScaffoldClient": (_CLIENT, {"variates": "scaffold"}),
    "fedgraph_flwr.strategies.feddyn:FedDyn": (_AVERAGE, {"variates": "feddyn"}),
    "fedgraph_flwr.clients.feddyn:FedDynClient": (_CLIENT, {"variates": "feddyn"}),
    "fedgraph_flwr.strategies.feddc:FedDC": (_AVERAGE, {"variates": "feddc"}),
    "fedgraph_flwr.clients.feddc:FedDCClient": (_CLIENT, {"variates": "feddc"}),
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
        warnings.warn(f"{old} is now {new}: change the import, the next release removes the old name", FutureWarning, 2)
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
        warnings.warn(f"call {new} instead: the next release removes the old name", FutureWarning, 2)
        return getattr(self, new)(*args, **kwargs)

    return call


def renamed_attribute(new: str) -> property:
    """Return a property that warns and reads the attribute's new name, for one release."""

    def read(self: Any) -> Any:
        warnings.warn(f"read {new} instead: the next release removes the old name", FutureWarning, 2)
        return getattr(self, new)

    return property(read)


def rename_keys(
    given: Mapping[str, Any], names: Mapping[str, str], places: Mapping[str, str] | None = None, warn: bool = True
) -> dict[str, Any]:
    """Replace old names by new ones, for one release.

    Args:
        given: values by name.
        names: old name → new name.
        places: file and line by old name, for messages.
        warn: whether to warn; not for files that a program wrote.

    Raises:
        FedGraphError: both the old and the new name are given.
    """
    for old in [name for name in names if name in given]:
        new, place = names[old], (places or {}).get(old, "")
        where = f" ({place})" if place else ""
        if new in given:
            raise FedGraphError(f"{old}{where} is the old name of {new}, and both are given: remove {old}")
        if warn:
            _warn(f"{old}{where}", new)
    return {names.get(name, name): value for name, value in given.items()}


def rename_config(
    given: Mapping[str, Any], places: Mapping[str, str] | None = None, warn: bool = True
) -> dict[str, Any]:
    """Replace old keys and values of a configuration, by dotted key; see `rename_keys`.

    A list of accepted values, as in a policy, is replaced value by value.
    """
    renamed = rename_keys(given, KEYS, places, warn)
    for key in VALUES.keys() & renamed.keys():
        value = renamed[key]
        renamed[key] = (
            [_new_value(key, v, warn) for v in value] if isinstance(value, list) else _new_value(key, value, warn)
        )
    return renamed


def rename_nested(node: dict[str, Any], places: Mapping[str, str] | None = None, warn: bool = True) -> None:
    """Replace old keys and values of a nested configuration in place; see `rename_config`."""
    for section in {key.partition(".")[0] for key in (*KEYS, *VALUES)}:
        if isinstance(node.get(section), dict):
            dotted = rename_config({f"{section}.{key}": v for key, v in node[section].items()}, places, warn)
            node[section] = {key.partition(".")[2]: value for key, value in dotted.items()}


def rename_words(words: Sequence[str]) -> list[str]:
    """Replace old keys and values in ``key=value`` overrides of stored results, without a warning."""
    parts = (word.partition("=") for word in words)
    return [f"{(new := KEYS.get(key, key))}{sign}{VALUES.get(new, {}).get(value, value)}" for key, sign, value in parts]


def old_names(given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Replace new keys and values of overrides by old ones, to recompute a hash of an earlier release."""
    keys = {new: old for old, new in KEYS.items()}
    values = {key: {new: old for old, new in table.items()} for key, table in VALUES.items()}
    return {
        keys.get(key, key): [values.get(key, {}).get(value, value) for value in every] for key, every in given.items()
    }


def rename_options(args: Sequence[str]) -> list[str]:
    """Replace old options of the command line, for one release.

    Raises:
        FedGraphError: both the old and the new option are given.
    """
    given = {arg.partition("=")[0]: arg for arg in args if arg.startswith("--")}
    rename_keys(given, OPTIONS)
    parts = (arg.partition("=") for arg in args)
    return [f"{OPTIONS.get(name, name)}{sign}{value}" for name, sign, value in parts]


def _new_value(key: str, value: Any, warn: bool) -> Any:
    new = VALUES[key].get(value, value) if isinstance(value, str) else value
    if new != value and warn:
        _warn(f"{key}={value}", f"{key}={new}")
    return new


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}: use the new name, the next release removes the old one", FutureWarning, 3)


def install() -> None:
    """Serve old names from now on."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.append(OldNames())
