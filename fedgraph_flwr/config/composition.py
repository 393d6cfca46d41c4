"""Composition of a configuration from YAML groups and a user's ``key=value`` overrides.

Precedence, lowest first: dataclasses, ``conf/config.yaml``, the selected group files (dataset, partition, model, strategy), the
protocol, overrides. A protocol may have the sections ``strategies:`` and ``datasets:``. In the latter, ``models:`` sizes a model
for that dataset, and ``strategies:`` has keys of a method for it; a dataset of a collection may have its own section. A group is
selected by the user, else by the protocol, else by the dataset, else by ``config.yaml``. For the model, the strategy and the
dataset take precedence over the protocol. After composition the program uses only dataclasses, not OmegaConf.

Names are looked up in the folders of `conf_dirs`, the user's first. ``module:name`` names the user's code.
"""

import contextlib
import copy
import dataclasses
import json
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.config import config_file
from fedgraph_flwr.config.config_file import EXTENSIBLE, ConfigFile, choices, dotted_keys, laid_over, load, resolved
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.config.lookup import locate, own_defaults, own_keys
from fedgraph_flwr.config.parts import KEYS, METHOD, chosen, defaults, key_names, lengthen
from fedgraph_flwr.config.schema import (
    CHOICES,
    DATA,
    IDLE,
    SPLIT_BY_CLIENTS,
    AttackConfig,
    MisfitError,
    RunConfig,
    StrategyConfig,
    expected,
    instance,
    is_own,
    key_field,
    kind_of,
)
from fedgraph_flwr.data.plugins import BASELINES, conf_dir, packages
from fedgraph_flwr.data.root import imported_names, imported_path
from fedgraph_flwr.errors import FedGraphError, first_line, from_python, sanitize, unknown

Layer = tuple[str, dict[str, Any]]
"""Source and nested keys of one layer of a configuration, whose keys composition may change."""

GROUPS = ("dataset", "partition", "model", "task", "strategy", "protocol")

CONF = "FEDGRAPH_CONF"
"""Environment variable with the user's config folders, separated as in PATH; the option ``--conf`` adds to it."""


def own_conf_dirs() -> list[Path]:
    """Return the folders of `CONF`.

    Raises:
        FedGraphError: a folder is missing.
    """
    folders = [Path(word).expanduser().absolute() for word in os.environ.get(CONF, "").split(os.pathsep) if word]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        what = f"config folder {missing[0]} (--conf or {CONF})"
        raise FedGraphError(f"{what} does not exist: expected a folder with strategy/NAME.yaml")
    return folders


def conf_dirs() -> list[Path]:
    """Return the folders of YAML groups in search order: the user's, the built-in one, those of installed packages.

    Hence a package can add names, but not replace built-in ones.
    """
    return [*own_conf_dirs(), conf_dir(), *packages().values()]


def group_names(group: str) -> list[str]:
    """Return the names that a group accepts, such as the strategies."""
    return sorted({path.stem for folder in conf_dirs() for path in (folder / group).glob("*.yaml")})


def group_path(group: str, name: str) -> Path | None:
    """Return the first file of a name in a group, or None."""
    paths = [folder / group / f"{name}.yaml" for folder in conf_dirs()] if _is_name(name) else []
    return next((path for path in paths if path.is_file()), None)


def compose(
    overrides: Sequence[str] = (),
    base: Path | str | None = None,
    defaults: Sequence[str] = (),
    keys: Mapping[str, Any] | None = None,
    foreign: bool = False,
) -> RunConfig:
    """Compose a configuration.

    Args:
        overrides: ``key=value`` overrides, as on the command line.
        base: user file of overrides (`config_file`), with lower precedence; or a resolved configuration that replaces the
            group files: a run's ``config.yaml``, or JSON.
        defaults: overrides with the lowest precedence, unused with a resolved configuration.
        keys: values by key, with the highest precedence: nested, dotted, or both.
        foreign: whether the input comes from another machine; then no class is imported for its defaults.

    Raises:
        FedGraphError: an unknown key or name, a wrong type, or an invalid value.
    """
    values = {key: plain(value, key) for key, value in dotted_keys(keys or {}).items()}
    given = _named(_in_lower_case(choices(parse_overrides(overrides) | values, {})))
    if base and str(base).startswith("{"):
        chosen = not foreign and _chooses(given)  # sent by a server, whose files are not on this machine
        return _build(_upon(present(_from_json(str(base), foreign)), "config", given, foreign), chosen=chosen)
    file = config_file.read(Path(base)) if base else ConfigFile()
    places = {key: place for key, place in file.places.items() if key not in given}
    requested = given
    given = _named(laid_over(file.overrides, given))
    requested = dict(requested if file.of_fleet else given)
    if file.base:
        resolved = present(load(file.base))
        for key in config_file.OWN:
            resolved.pop(key, None)
        chosen = _chooses(given)
        return _fitting(_build(_upon(resolved, str(file.base), given), places, chosen), requested)
    given = laid_over(parse_overrides(defaults), given)
    layers = [*_layers(given), ("override", _resolved(nested_keys(given), foreign))]
    cfg = _build(layers, places, not foreign)
    return cfg if foreign else _fitting(cfg, requested)


def present(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of an earlier version with classes where they are now, and without keys that became constants.

    A key with another value than the constant stays, and is refused as unknown.
    """
    strategy = stored.get("strategy")
    params = strategy.get("params", {}) if isinstance(strategy, dict) else None
    if not (strategy and isinstance(params, dict)) or strategy.get("name") not in group_names("strategy"):
        return stored
    body = vars(StrategyConfig()) | group_file("strategy", strategy["name"])
    moved = {
        half: body[half]
        for half in ("server", "client")
        if strategy.get(half) == body[half].replace(BASELINES, "fedgraph_flwr", 1)
    }
    constants = body.get("declares", {}).get("constants", {})
    params = {key: value for key, value in params.items() if (key, value) not in constants.items()}
    return {**stored, "strategy": {**strategy, **moved, "params": params}}


def _fitting(cfg: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """Return the configuration if it reads the user's keys, and their ``num_clients`` matches the client files.

    Raises:
        FedGraphError: it does not.
    """
    for key, why in unread(cfg, given).items():
        raise FedGraphError(f"{key}={given[key]} {why}, or leave it out")
    count = len(list(Path(cfg.graph).expanduser().glob("client_*.safetensors"))) if cfg.graph else 0
    if count and "num_clients" in given and cfg.num_clients != count:
        held = f"graph={cfg.graph} holds {count} client files"
        raise FedGraphError(f"num_clients={cfg.num_clients}, but {held}: leave num_clients out, or set it to {count}")
    return cfg


def unread(cfg: RunConfig, given: Mapping[str, Any]) -> dict[str, str]:
    """Return those of a user's keys that other keys make ineffective, with the reason and what to set."""
    found = {key: why for key, terms in IDLE.items() if key in given and (why := cfg.idle(terms))}
    why = f"does not apply to graph={cfg.graph}, whose client files exist: pass it to `fedgraph-flwr partition`"
    if cfg.on_fleet:
        why = f"does not apply to engine={cfg.engine}, whose nodes have their own graphs: set another engine"
    for key in given if cfg.on_fleet or cfg.graph else ():
        section = key.partition(".")[0]
        named = cfg.on_fleet and key in ("dataset", "dataset.name")  # for its defaults
        late = section == "split" and cfg.task.name in SPLIT_BY_CLIENTS
        if section in DATA and not named and not late and given[key] != "file":
            found[key] = why
    return found


def _chooses(given: Mapping[str, Any]) -> bool:
    """Return whether overrides select another method than that of a resolved configuration."""
    return bool({"strategy", "strategy.server", "strategy.client"} & given.keys())


def _upon(resolved: dict[str, Any], source: str, given: dict[str, Any], foreign: bool = False) -> list[Layer]:
    """Return the layers of overrides on top of a resolved configuration."""
    layers = [(source, resolved)]
    selected = {group: name for group in GROUPS if isinstance(name := given.pop(group, None), str)}
    for group in ("dataset", "strategy"):
        if group in selected:
            selected = {**_wishes(group, selected[group]), **selected}
    for group in ("dataset", "partition", "model", "task", "strategy"):
        if group in selected:
            layers.append(_chosen(group, selected[group], given))
    if "protocol" in selected:
        raise FedGraphError("protocol= cannot be combined with config=: a resolved config already holds its protocol")
    return [*layers, ("override", _resolved(nested_keys(given), foreign))]


def configuration(
    overrides: Sequence[str], keys: Mapping[str, Any] | None = None, defaults: Sequence[str] = ()
) -> RunConfig:
    """Compose the configuration of a command line, including ``config=``, ``resume=``, ``evaluate=`` and ``init=``.

    Args:
        overrides: ``key=value`` overrides.
        keys: values by key, with higher precedence (see `compose`), also with ``__`` instead of the dot.
        defaults: overrides with the lowest precedence.

    Raises:
        FedGraphError: as for `compose`.
    """
    if keys is not None:
        with from_python():
            return _configuration(overrides, {key.replace("__", "."): value for key, value in keys.items()}, defaults)
    return _configuration(overrides, {}, defaults)


def _configuration(overrides: Sequence[str], keys: Mapping[str, Any], defaults: Sequence[str]) -> RunConfig:
    named = ("config", "resume", "evaluate", "init")
    given = dict(word.partition("=")[::2] for word in overrides) | {k: keys[k] for k in named if k in keys}
    key, *others = [key for key in named[1:] if given.get(key)] or [""]
    if others:
        raise FedGraphError(
            f"{key}={given[key]} and {others[0]}={given[others[0]]} cannot be combined: resume= completes a run, evaluate= scores"
            " its model, and init= trains from it: pass one"
        )
    earlier = given.get(key)
    if earlier and not (Path(earlier) / "config.yaml").is_file():
        copy = f"fedgraph-flwr runs --name CONNECTION --copy {Path(earlier).name}"
        what = f"{key}={earlier} holds no run: expected a folder with config.yaml, as of `run out=DIR`"
        raise FedGraphError(f"{what}; if a fleet's server has it, copy it first: {copy}")
    base = given.get("config") or (str(Path(earlier) / "config.yaml") if earlier else None)
    overrides = [word for word in overrides if not word.startswith("config=")]
    cfg = compose(overrides, base, defaults, {key: value for key, value in keys.items() if key != "config"})
    if earlier and base != given.get("config") and "out" not in given | dict(keys):
        cfg = dataclasses.replace(cfg, out="")  # that of the earlier run, perhaps on another machine
    if cfg.evaluate:  # nothing is trained, whatever the evaluated run started from
        cfg = dataclasses.replace(cfg, init="")
    if cfg.resume and cfg.out and Path(cfg.out).absolute() != Path(cfg.resume).absolute():
        raise FedGraphError(f"resume={cfg.resume} writes to its own folder: remove out={cfg.out}")
    return dataclasses.replace(cfg, out=cfg.resume) if cfg.resume else cfg


def from_run_config(run_config: Any, foreign: bool = False) -> RunConfig:
    """Compose the configuration of a Flower run: ``config`` (file or JSON) or group files, then keys, then ``overrides``.

    ``num-clients`` is the number of clients unless a config or the overrides set it.

    Args:
        run_config: run configuration of Flower.
        foreign: whether a server sent it to a node; then it must not name files or variables of the node.
    """
    overrides, base = str(run_config.get("overrides", "")), str(run_config.get("config", ""))
    reserved_keys = ("overrides", "config", "num-clients")
    plain = [f"{key}={value}" for key, value in run_config.items() if key not in reserved_keys and value != ""]
    if foreign and base and not base.startswith("{"):
        raise FedGraphError("the server's config= is not JSON: a node reads no file named by a server")
    try:
        given = shlex.split(overrides)
    except ValueError as error:
        raise FedGraphError(f"cannot split overrides into key=value ({error})") from error
    dataset = str(parse_overrides([*plain, *given]).get("dataset", RunConfig().dataset.name)) if foreign else ""
    if foreign and not is_own(dataset) and group_path("dataset", dataset) is None:  # nor whether this machine has one
        what = f"the server's dataset={sanitize(dataset, 80)} has no file in conf/dataset"
        raise FedGraphError(f"{what}: a node opens no imported graph for a server")
    clients = [f"num_clients={run_config['num-clients']}"] if "num-clients" in run_config else []
    return compose([*plain, *given], base or None, clients, foreign=foreign)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # without the C library, slower
    """Quotes strings that OmegaConf would read as numbers, such as 1e5, and repeats equal values instead of naming them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _quoted(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    try:
        float(text)
    except ValueError:
        return dumper.represent_str(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'")


_Dumper.add_representer(str, _quoted)


def to_yaml(cfg: RunConfig, without: Collection[str] = ()) -> str:
    """Return the resolved configuration as YAML, which repeats the run, without the sections ``without``."""
    whole = {key: value for key, value in dataclasses.asdict(cfg).items() if key not in without}
    return yaml.dump(whole, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def to_json(cfg: RunConfig) -> str:
    """Return the resolved configuration as one line of JSON, as sent to the nodes of a fleet."""
    return json.dumps(dataclasses.asdict(cfg))


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` overrides to a flat dict; values are YAML scalars or lists."""
    given: dict[str, Any] = {}
    for word in overrides:
        key, sign, value = word.partition("=")
        if not sign or not key:
            known = [group for group in ("dataset", "strategy", "model") if group_path(group, word)]
            hint = f": did you mean {known[0]}={word}?" if known else ""
            raise FedGraphError(f"'{word}' is not of the form key=value{hint}")
        try:
            given[key] = copy.deepcopy(_value(value))
        except Exception as error:
            raise FedGraphError(f"cannot parse the value of '{word}' ({first_line(error)})") from error
    return given


@lru_cache(maxsize=4096)
def _value(text: str) -> Any:
    if re.fullmatch(r"/[\w/.-]*", text, re.ASCII):  # a path: OmegaConf takes a millisecond
        return text
    return OmegaConf.to_container(OmegaConf.from_dotlist([f"v={text}"]))["v"]  # type: ignore[index,call-overload]


def plain(value: Any, key: str) -> Any:
    """Convert a Python value to a YAML value; a class or function to ``module:name``; ``key`` names it in errors.

    Raises:
        FedGraphError: it is of another kind.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):  # also a Run
        return os.fspath(value)
    if isinstance(value, type | FunctionType):  # the user's
        if not value.__qualname__.isidentifier():
            what = f"{key} got {value.__qualname__} of {value.__module__}, which has no name to import it by"
            raise FedGraphError(f"{what}: define it by class or def at the top level of a module or notebook")
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, list | tuple | range):
        return [plain(item, key) for item in value]
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy and torch
        return plain(value.tolist(), key)
    kind = type(value).__name__
    if hasattr(value, "forward"):
        how = f"pass the class itself, or a function that returns one, def make(...) -> {kind}"
        raise FedGraphError(f"{key} got an object of {kind}, but each client makes its own: {how}")
    raise FedGraphError(f"{key} must be a number, a string, a boolean, or a list of them, got a {kind}")


def nested_keys(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested keys; `config_file.dotted_keys` is the way back."""
    nested: dict[str, Any] = {}
    for key, value in dotted.items():
        *parents, last = key.split(".")
        node = nested
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise FedGraphError(f"'{key}' conflicts with '{parent}', which has the value {child!r}")
            node = child
        node[last] = value
    return nested


def _from_json(text: str, foreign: bool) -> dict[str, Any]:
    try:
        return _resolved(json.loads(text), foreign)
    except (ValueError, RecursionError) as error:
        raise FedGraphError(f"config= is not valid JSON ({first_line(error)})") from error


def _resolved(body: dict[str, Any], foreign: bool) -> dict[str, Any]:
    """Resolve ``${...}`` in the values of a layer, if there are any: OmegaConf takes milliseconds for it.

    Raises:
        FedGraphError: a reference leads nowhere, or is a server's, whose spelling (JSON, YAML or shell escapes) is parsed by now.
    """
    if "${" not in repr(body):
        return body
    if foreign:
        raise FedGraphError("the server's configuration contains '${': a node resolves no variables for a server")
    try:
        return resolved(body)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        key = getattr(error, "full_key", None) or "a value"
        fix = "refer to another key that you set in the same place, or to an environment variable as ${oc.env:NAME}"
        raise FedGraphError(f"{key}: cannot resolve its '${{...}}' ({first_line(error)}): {fix}") from error


def described(group: str) -> dict[str, dict[str, Any]]:
    """Describe the names of a group: ``about``, the first line of each file, and ``keys``, the file's values.

    ``keys`` includes the defaults of a method's ``Params``, and those of a built-in model's ``__init__``.

    Raises:
        FedGraphError: the group is unknown.
    """
    if group not in GROUPS:
        raise unknown("group", group, GROUPS)
    descriptions = {}
    for name in group_names(group):
        body = group_file(group, name)
        body = _network(body) if group == "model" else body
        keys = {key: value for key, value in body.items() if key not in ("name", "declares")}
        if group == "strategy":
            with contextlib.suppress(FedGraphError):  # a user's method whose package is not on the path
                keys = own_defaults(keys["server"], keys["client"]) | defaults(keys) | dotted_keys(keys)
        descriptions[name] = {"about": about(group, name), "keys": keys}
    return descriptions


def about(group: str, name: str) -> str:
    """Return the comment in the first line of a name's file."""
    path = group_path(group, name)
    first = path.read_text().partition("\n")[0] if path else ""
    return first.lstrip("# ") if first.startswith("#") else ""


def group_file(group: str, name: str) -> dict[str, Any]:
    """Read the file of a name in a group.

    Raises:
        FedGraphError: the file is missing or not YAML.
    """
    path = group_path(group, name)
    if path is None:
        raise unknown(group, name, [*group_names(group), *(imported_names() if group == "dataset" else ())])
    return load(path)


def _one_of(dataset: str, given: dict[str, Any]) -> Layer:
    """Return the layer of a dataset, of which ``dataset.name`` may select one if it is a collection.

    Raises:
        FedGraphError: it is not a collection.
    """
    where, layer = _group("dataset", dataset)
    if (name := given.get("dataset.name", dataset)) != dataset and "collection" not in layer["dataset"]:
        raise FedGraphError(f"dataset={dataset} and dataset.name={name} select different names: leave one out")
    return where, layer


def _in_lower_case(given: dict[str, Any]) -> dict[str, Any]:
    """Return the overrides with names of groups such as Cora and GCN in lower case, where only that has a file."""

    def other(group: str, name: Any) -> bool:
        known = group_path(group, str(name)) or (group == "dataset" and imported_path(str(name)).is_file())
        return isinstance(name, str) and not known and group_path(group, name.lower()) is not None

    return given | {group: given[group].lower() for group in GROUPS if group in given and other(group, given[group])}


_SHORT = {"strategy": "server", "dataset": "source"}
"""Groups whose name appears in results: only ``name`` of ``module:name``; the full target is stored in this key."""


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """Return the overrides, with the class name as name of an unnamed method of ``strategy.server=`` or ``client=``."""
    sides = [str(given.get(f"strategy.{side}", "")) for side in ("client", "server")]
    targets = [target for target in sides if is_own(target) and not target.startswith("fedgraph_flwr.")]
    if targets and ("strategy" not in given or group_path("strategy", str(given["strategy"]))):
        return {"strategy.name": targets[0].partition(":")[2], **given}
    return given


def _chosen(group: str, name: str, given: Mapping[str, Any]) -> Layer:
    """Return the layer of a selection as `_group` does; a method given by its classes needs no file."""
    by_class = group == "strategy" and not is_own(name) and {"strategy.server", "strategy.client"} & given.keys()
    if by_class and not group_path(group, name):
        return name, {group: {"name": name}}
    return _group(group, name)


def _group(group: str, name: str) -> Layer:
    if is_own(name) and group not in ("protocol", "task"):
        short = {"name": name.partition(":")[2], _SHORT[group]: name} if group in _SHORT else {"name": name}
        return name, {group: short}
    path = group_path(group, name)
    if group == "dataset" and path is None and _is_name(name) and (file := imported_path(name)).is_file():
        return str(file), {group: {"name": name}, **_own_defaults(file)}
    body = group_file(group, name)
    if group == "protocol":
        return str(path), body
    more = {"evaluation": {"metric": body.pop("metric")}} if group == "task" and "metric" in body else {}
    more |= {"train": body.pop("train")} if group == "task" and "train" in body else {}
    for other in (*_WISHES.get(group, ()), *([_BY_TASK] if group == "dataset" else []), "declares"):
        body.pop(other, None)
    return str(path), {group: _network(body) if group == "model" else body, **more}


def _network(body: dict[str, Any]) -> dict[str, Any]:
    """Return a model's file on top of its defaults, without importing a user's class."""
    return _over(locate("fedgraph_flwr.models:own_defaults")(str(body.get("name", ""))), body)


def _own_defaults(path: Path) -> dict[str, Any]:
    """Return defaults of an imported graph: its masks as split, and its number of clients."""
    from fedgraph_flwr.data.graph import clients_of, has_split

    clients = clients_of(path)
    return ({"split": {"kind": "public"}} if has_split(path) else {}) | ({"num_clients": clients} if clients else {})


def _own_wishes(path: Path) -> dict[str, str]:
    """Return the default partition and model of an imported graph."""
    from fedgraph_flwr.data.graph import clients_of, read_header

    if read_header(path)[1].get("kind") == "HeteroGraph":
        return {"partition": "random-edges", "model": "rgcn"}
    return {"partition": "planted" if clients_of(path) else "louvain"}


# A strategy or a task may set a default model, a dataset a default partition and model, and further defaults by task.
_RECIPE = "model_with_recipe"
_WISHES = {"strategy": ("model",), "task": ("model", _RECIPE), "dataset": ("partition", "model")}
_BY_TASK = "tasks"


def _has_recipe(dataset: str, given: Mapping[str, Any]) -> bool:
    """Return whether nodes have columns of their own records, as the user's keys or the first file of the graph say."""
    from fedgraph_flwr.data.graph import read_header

    path = Path(str(given.get("dataset.path", ""))) if dataset == "file" else imported_path(dataset)
    file = Path(str(given["graph"]), "client_0000.safetensors") if given.get("graph") else path
    if not _is_name(dataset) or not file.expanduser().is_file():
        return str(given.get("dataset.recipe") or "null") != "null"
    with contextlib.suppress(FedGraphError):  # a broken file is refused where the run reads it
        return "recipe" in read_header(file.expanduser())[1].get("own_columns", {})
    return False


def _wishes(group: str, name: str) -> dict[str, str]:
    path = group_path(group, name)
    if group == "dataset" and path is None and _is_name(name):
        return _own_wishes(file) if (file := imported_path(name)).is_file() else {}
    body = load(path) if path else {}
    return {wish: str(body[wish]) for wish in _WISHES[group] if wish in body}


def _by_task(dataset: str, task: str, given: Mapping[str, Any], chosen: Mapping[str, str]) -> list[Layer]:
    """Return the defaults that a dataset's file has for a task, as a layer.

    A run on the parties' own files does not read its dataset; a fleet may still name one, for its defaults.
    """
    fleet = given.get("engine", "inline") not in SIMULATIONS
    if given.get("graph") or (fleet and not {"dataset", "dataset.name"} & {*chosen, *given}):
        return []
    path = group_path("dataset", dataset)
    keys = load(path).get(_BY_TASK, {}).get(task) if path else None
    return [(f"{path} ({_BY_TASK}.{task})", keys)] if keys else []


def _layers(given: dict[str, Any]) -> list[Layer]:
    """Return the layers of files in order, and remove the group selections from ``given``."""
    roots = [root for folder in [conf_dir(), *reversed(own_conf_dirs())] if (root := folder / "config.yaml").is_file()]
    bodies = [load(root) for root in roots]
    defaults = {group: name for body in bodies for group, name in body.pop("defaults", {}).items()}
    chosen = {group: given.pop(group) for group in GROUPS if isinstance(given.get(group), str)}
    layers = [(str(root), body) for root, body in zip(roots, bodies, strict=True)]

    protocol_name = chosen.get("protocol", defaults["protocol"])
    protocol_path, protocol = ("", {}) if protocol_name == "none" else _group("protocol", protocol_name)
    by_protocol = protocol.pop("defaults", {})
    by_dataset = protocol.pop("datasets", {})
    by_strategy = protocol.pop("strategies", {})

    def choose(group: str, *wishes: Mapping[str, Any]) -> str:
        wished = (wish.get(group) for wish in wishes)
        return str(chosen.get(group) or next(filter(None, wished), None) or defaults[group])

    strategy = choose("strategy", by_protocol)
    named = given.get("dataset.name")  # dataset.name=NAME selects a dataset too
    dataset = choose("dataset", by_protocol, {"dataset": named} if named in group_names("dataset") else {})
    selected = _one_of(dataset, given)
    data_name = str(given.get("dataset.name") or selected[1].get("dataset", {}).get("name", dataset))
    section = data_name if data_name in by_dataset else dataset
    dataset_part = by_dataset.get(section, {})
    strategy_part = by_strategy.get(strategy, {})
    by_model = dataset_part.pop("models", {})
    own_strategies = dataset_part.pop("strategies", {})
    chosen_below = [part.pop("defaults", {}) for part in (strategy_part, dataset_part)]

    preferences = [_wishes("strategy", strategy), _wishes("dataset", dataset)]
    file = Path(str(given.get("dataset.path", ""))).expanduser() if dataset == "file" else Path()
    if file.is_file():
        preferences.append(_own_wishes(file))
    partition = choose("partition", *chosen_below, by_protocol, *preferences)
    task = choose("task", by_protocol)
    of_task = _wishes("task", task)
    by_recipe = {"model": of_task[_RECIPE]} if _RECIPE in of_task and _has_recipe(dataset, given) else {}
    model = choose("model", *chosen_below, *preferences, by_protocol, by_recipe, of_task)

    layers += [selected, _group("partition", partition), _group("model", model), _group("task", task)]
    layers += _by_task(dataset, task, given, chosen)
    if file.is_file():
        layers.append((str(file), _own_defaults(file)))
    layers.append(_chosen("strategy", strategy, given))
    if not protocol_path:
        return layers
    of_dataset = f"datasets.{section}"
    return [
        *layers,
        (protocol_path, protocol | {"protocol": protocol_name}),
        (f"{protocol_path} ({of_dataset})", dataset_part),
        (f"{protocol_path} ({of_dataset}.models.{model})", {"model": by_model.get(model, {})}),
        (f"{protocol_path} (strategies.{strategy})", strategy_part),
        (f"{protocol_path} ({of_dataset}.strategies.{strategy})", own_strategies.get(strategy, {})),
    ]


def _is_name(name: str) -> bool:
    """Return whether the name is a plain file name, without a path."""
    return Path(name).name == name and not name.startswith(".")


def _lift(node: dict[str, Any], group: str, cls: Any) -> None:
    """Move a group's keys that its dataclass does not define to its ``params``."""
    body = node.get(group, {})
    params = body.get("params") or {}
    if not isinstance(params, dict):
        raise FedGraphError(f"{group}.params must contain keys with values, got {params!r}")
    known = {f.name for f in dataclasses.fields(cls)}
    if group == "strategy":  # a method's key may have the name of a part, whose value is a section
        known -= {part for part in KEYS if not isinstance((params | body).get(part, {}), dict)}
    if extras := {key: body.pop(key) for key in list(body) if key not in known}:
        body["params"] = params | extras


_LIFTED = {**EXTENSIBLE, "attack": AttackConfig}
_NAMES = {group: getattr(RunConfig(), group).name for group in _LIFTED}


_SECTIONS = {name: part for name, part in vars(RunConfig()).items() if dataclasses.is_dataclass(part)}
"""Sections of a configuration by name."""


def _build(layers: list[Layer], places: Mapping[str, str] | None = None, chosen: bool = False) -> RunConfig:
    """Build the configuration from layers; later ones take precedence.

    Args:
        layers: source and content of each layer.
        places: file and line of the user's keys.
        chosen: whether a method is selected, so that defaults of its ``Params`` are filled in.
    """
    places, doubtful = places or {}, set[str]()
    merged: dict[str, Any] = {}
    accepted_params: dict[str, set[str]] = {group: set() for group in _LIFTED}
    for source, node in layers:
        if isinstance(node.get("attack"), str):
            node["attack"] = {"name": node["attack"]}
        _check_sections(node, source, places)
        for group, cls in _LIFTED.items():
            _lift(node, group, cls)
            unknown_here = _select(group, node, source, merged, accepted_params[group], places)
            doubtful = unknown_here if source == "override" and group == "strategy" else doubtful
        merged = _over(merged, node)
    try:
        cfg: RunConfig = instance(RunConfig, merged)
    except MisfitError as error:
        raise _explained(error, layers, places) from error
    _check_places(cfg, doubtful, places)
    if chosen:
        defaults = own_defaults(cfg.strategy.server, cfg.strategy.client)
        cfg.strategy.params = defaults | cfg.strategy.params
    return cfg


def _select(
    group: str, node: dict[str, Any], source: str, merged: dict[str, Any], accepted: set[str], places: Mapping[str, str]
) -> set[str]:
    """Prepare ``merged`` for a group's part of a layer, and add the part's additional keys to ``accepted``.

    Returns:
        The additional keys that were not accepted before.
    """
    body = node.get(group, {})
    if group == "strategy" and source != "override" and "name" in body:
        merged[group] = {key: value for key, value in merged.get(group, {}).items() if key not in METHOD}
    if group == "strategy":
        lengthen(body, merged.get(group, {}))
    before = merged.get(group, {}).get("name", _NAMES[group])
    extras, name = set(body.get("params") or {}), str(body.get("name", before))
    new = extras - accepted
    if new and source == "override" and group not in ("strategy", "attack") and not _is_code(group, name, merged):
        known, key = {f.name for f in dataclasses.fields(_LIFTED[group])} - {"params"}, min(new)
        where = places.get(f"{group}.{key}", f"override {group}.{key}")
        raise unknown(f"{group} key", key, known | accepted, where, _elsewhere(f"{group}.{key}", [(source, merged)]))
    accepted |= extras
    if "name" in body and (source != "override" or (group == "model" and name != before)):
        merged[group] = {**merged.get(group, {}), "params": {}}  # another selection starts from its own keys
    return new


def _check_sections(node: Mapping[str, Any], source: str, places: Mapping[str, str]) -> None:
    """Refuse a section that is not a dict."""
    for section, usual in _SECTIONS.items():
        if not isinstance(node.get(section, {}), dict):
            got, example = f"{node[section]!r} ({places.get(section, source)})", f"{section}.{next(iter(vars(usual)))}"
            raise FedGraphError(f"{section} must contain keys with values, such as {example}, got {got}")


def _over(below: dict[Any, Any], above: dict[Any, Any]) -> dict[Any, Any]:
    """Merge nested keys into a new dict; ``above`` takes precedence."""
    return below | {
        key: _over(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in above.items()
    }


def _explained(error: MisfitError, layers: list[Layer], places: Mapping[str, str]) -> FedGraphError:
    """Return the error for a value or key that does not fit, naming the layer that it is from."""
    key = error.key
    source = next((source for source, node in reversed(layers) if _holds(node, key)), "the composed config")
    source = places.get(key, source) if source == "override" else source
    if error.known:
        return unknown("key", key, error.known, source, _elsewhere(key, layers))
    _, hint = key_field(key)
    if get_origin(hint) is list and not isinstance(error.value, list):
        return FedGraphError(f"{key}={error.value} ({source}) must be a list, such as '{key}=[{error.value}]'")
    wanted = expected(key) or (kind_of(hint) if hint else "a number, a string, a boolean, or a list of them")
    return FedGraphError(f"{key}={error.value} ({source}): expected {wanted}")


def _elsewhere(key: str, layers: list[Layer]) -> str:
    """Return a hint with the keys that end in the same word, or only those of the method's parts; empty without any."""
    word = key.rpartition(".")[2].lower().replace("-", "_")
    used = {part for _, node in layers for part in chosen(node.get("strategy") or {})}
    names = dict.fromkeys(dotted_keys(dataclasses.asdict(RunConfig())), "")
    for _, node in layers:
        names |= {
            name.replace(".params.", "."): "" for name in dotted_keys({k: node[k] for k in _SECTIONS if k in node})
        }
    same = [name for name in names if name.rpartition(".")[2] == word and name != key]
    of_part = {name: name.split(".")[1] for name in same if name.count(".") == 2}
    if here := [name for name in same if of_part.get(name) in used]:
        return f"its name here is {' or '.join(here)}"
    methods = {name: chosen(load(path)) for name in group_names("strategy") if (path := group_path("strategy", name))}
    here = []
    for name in same:
        users = [method for method, parts in methods.items() if of_part.get(name) in parts]
        users.sort(key=lambda method: of_part[name] not in method)  # the method named after the part first
        here.append(f"{name} (strategy={users[0]})" if users else name)
    return f"its name here is {' or '.join(here)}" if here else ""


def _holds(node: Any, key: str) -> bool:
    """Return whether nested keys have a dotted key."""
    for part in key.split("."):
        names = {str(name): name for name in node} if isinstance(node, dict) else {}
        if part not in names:
            return False
        node = node[names[part]]
    return True


def _is_code(group: str, name: str, merged: Mapping[str, Any]) -> bool:
    """Return whether the selection of a group is user code, whose keys are unknown here."""
    return is_own(name) or (group == "dataset" and is_own(merged.get("dataset", {}).get("source", "")))


def _check_places(cfg: RunConfig, doubtful: set[str], places: Mapping[str, str]) -> None:
    """Check keys in a file that a method's YAML does not define; only here is the line known."""
    written_down = sorted(key for key in doubtful if f"strategy.{key}" in places)
    if unread := [key for key in written_down if key not in own_keys(cfg)]:
        raise unknown_method_key(cfg, unread[0], places[f"strategy.{unread[0]}"])


def unknown_method_key(cfg: RunConfig, key: str, where: str = "") -> FedGraphError:
    """Return the error for a key that the method of a configuration does not have, naming methods that have it."""
    holders = []
    for name in group_names("strategy"):
        body = vars(StrategyConfig()) | group_file("strategy", name)
        with contextlib.suppress(FedGraphError):  # code that cannot be imported
            if key in key_names(body) | own_defaults(body["server"], body["client"]).keys():
                holders.append(name)
    shared = {f.name for f in dataclasses.fields(StrategyConfig)} - {"params"} | key_names(vars(cfg.strategy))
    instead = f"methods with this key: {', '.join(holders)}" if holders else ""
    if isinstance(cfg.strategy.params.get(key), dict):
        choices = ", ".join(f"strategy.{choice}" for choice in CHOICES)
        instead = f"it has the keys of a part that none of {choices} chooses: set one of them to module:{key}"
    return unknown(f"strategy {cfg.strategy.name}: key", key, own_keys(cfg) | shared, where, instead)
