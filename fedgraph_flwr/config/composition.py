"""Composition of a configuration from YAML groups and a user's ``key=value`` words.

Later wins: dataclass defaults, ``conf/config.yaml``, the chosen group files (dataset, partition, model, strategy), the
protocol with its ``datasets:`` (where ``models:`` sizes a model for that dataset) and ``strategies:`` sections, then the user's
``key=value`` overrides. A group is chosen by the user, else by the protocol, else by the dataset (for the model: the strategy's
and the dataset's own go before the protocol's), else by ``config.yaml``. After composition OmegaConf is gone: the rest of the
program sees dataclasses.
"""

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.config import written
from fedgraph_flwr.config.schema import AttackConfig, RunConfig, StrategyConfig
from fedgraph_flwr.config.written import CHOICES, Written, choices, flat, laid_over, load
from fedgraph_flwr.errors import FedGraphError, unknown

GROUPS = ("dataset", "partition", "model", "strategy", "protocol")


def conf_dir() -> Path:
    """The folder of the YAML groups: beside the packages in a checkout or bundle, inside them when installed."""
    package = Path(__file__).parents[1]
    beside = package.parent / "conf"
    return beside if (beside / "config.yaml").is_file() else package / "_conf"


def group_names(group: str) -> list[str]:
    """The names a group accepts, such as the strategies."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def compose(
    overrides: Sequence[str] = (),
    base: Path | str | None = None,
    defaults: Sequence[str] = (),
    keys: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Compose a configuration.

    Args:
        overrides: ``key=value`` words, as on the command line.
        base: a file of words as a person writes them (`written`), below the overrides; or a resolved configuration to start
            from instead of the group files: a run's ``config.yaml``, or JSON.
        defaults: words below both, unless there is a resolved configuration.
        keys: values by key, over the overrides: nested, dotted, or both.

    Raises:
        FedGraphError: an unknown key or name, a wrong type or an impossible value.
    """
    given = choices(_parse(overrides) | _values(keys or {}), {})
    if base and str(base).startswith("{"):
        return _build(_upon(_from_json(str(base)), "config", given))
    said = written.read(Path(base)) if base else Written()
    places = {key: place for key, place in said.places.items() if key not in given}
    given = laid_over(said.words, given)
    if said.base:
        resolved = load(said.base)
        for key in ("out", "resume"):  # of the run that is repeated
            resolved.pop(key, None)
        return _build(_upon(resolved, str(said.base), given), places)
    given = laid_over(_parse(defaults), given)
    return _build([*_layers(given), ("override", OmegaConf.create(_nest(given)))], places)


def _upon(resolved: DictConfig, source: str, given: dict[str, Any]) -> list[tuple[str, DictConfig]]:
    """The layers of words upon a resolved configuration."""
    layers = [(source, resolved)]
    selected = {group: name for group in GROUPS if isinstance(name := given.pop(group, None), str)}
    for group in ("dataset", "strategy"):
        if group in selected:
            selected = {**_wishes(group, selected[group]), **selected}
    for group in ("dataset", "partition", "model", "strategy"):
        if group in selected:
            layers.append(_group(group, selected[group]))
    if "protocol" in selected:
        raise FedGraphError("protocol= cannot be combined with config=: a resolved config already holds its protocol")
    return [*layers, ("override", OmegaConf.create(_nest(given)))]


def configuration(
    words: Sequence[str], keys: Mapping[str, Any] | None = None, defaults: Sequence[str] = ()
) -> RunConfig:
    """The configuration that the words of a command line mean, ``config=`` and ``resume=`` included.

    Args:
        words: ``key=value``.
        keys: values by key, over the words (see `compose`).
        defaults: words below all.

    Raises:
        FedGraphError: as `compose`.
    """
    keys = keys or {}
    given = dict(word.partition("=")[::2] for word in words) | {k: keys[k] for k in ("config", "resume") if k in keys}
    base = given.get("config") or (str(Path(given["resume"]) / "config.yaml") if given.get("resume") else None)
    words = [word for word in words if not word.startswith("config=")]
    cfg = compose(words, base, defaults, {key: value for key, value in keys.items() if key != "config"})
    if cfg.resume and cfg.out and Path(cfg.out).absolute() != Path(cfg.resume).absolute():
        raise FedGraphError(f"resume={cfg.resume} goes on in its own folder: leave out={cfg.out} away")
    return dataclasses.replace(cfg, out=cfg.resume) if cfg.resume else cfg


def from_run_config(run_config: Any, foreign: bool = False) -> RunConfig:
    """The configuration of a Flower run: ``config`` (a file or JSON), else the group files, then ``overrides``.

    ``num-clients`` is the number of clients unless a config or the overrides say otherwise.

    Args:
        run_config: of the run.
        foreign: whether it came from elsewhere, as a server's does to a node: it names no file, and reads no variable, here.
    """
    told, base = str(run_config.get("overrides", "")), str(run_config.get("config", ""))
    if foreign and base and not base.startswith("{"):
        raise FedGraphError("the server's config= is no JSON: a node reads no file that a server names")
    if foreign and ("${" in base or "${" in told):
        raise FedGraphError("the server's configuration holds '${': a node resolves nothing for a server")
    try:
        words = shlex.split(told)
    except ValueError as error:
        raise FedGraphError(f"overrides cannot be read as words ({error})") from error
    clients = [f"num_clients={run_config['num-clients']}"] if "num-clients" in run_config else []
    return compose(words, base or None, clients)


def to_yaml(cfg: RunConfig) -> str:
    """The resolved configuration as YAML, from which the run is repeated."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(cfg)))


def to_json(cfg: RunConfig) -> str:
    """The resolved configuration on one line, as it goes to the nodes of a fleet."""
    return json.dumps(dataclasses.asdict(cfg))


def _parse(words: Sequence[str]) -> dict[str, Any]:
    """``key=value`` words to a flat dict; values are YAML scalars or lists."""
    given: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise FedGraphError(f"'{word}' is not of the form key=value")
        try:
            given[key] = OmegaConf.to_container(OmegaConf.from_dotlist([f"v={value}"]))["v"]  # type: ignore[index,call-overload]
        except Exception as error:
            raise FedGraphError(f"'{word}': the value cannot be read ({_first_line(error)})") from error
    return given


def _values(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Python's values by dotted key, as YAML would give them."""
    return {key: _plain(value, key) for key, value in flat(keys).items()}


def _plain(value: Any, key: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | range):
        return [_plain(item, key) for item in value]
    if hasattr(value, "tolist"):  # NumPy's and torch's numbers and arrays
        return _plain(value.tolist(), key)
    raise FedGraphError(
        f"{key} must be a number, a word, true or false, or a list of them, got a {type(value).__name__}"
    )


def _nest(dotted: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in dotted.items():
        *parents, last = key.split(".")
        node = nested
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise FedGraphError(f"'{key}' goes below '{parent}', which has the value {child!r}")
            node = child
        node[last] = value
    return nested


def _from_json(text: str) -> DictConfig:
    try:
        return OmegaConf.create(json.loads(text))
    except (ValueError, RecursionError, OmegaConfBaseException) as error:
        raise FedGraphError(f"config= is no valid JSON ({_first_line(error)})") from error


def described(group: str) -> dict[str, dict[str, Any]]:
    """What may be chosen of a group, by name: ``about``, the first line of its file, and ``keys``, what the file says.

    Raises:
        FedGraphError: no such group.
    """
    if group not in GROUPS:
        raise unknown("group", group, GROUPS)
    found = {}
    for name in group_names(group):
        first = (conf_dir() / group / f"{name}.yaml").read_text().partition("\n")[0]
        said = {
            key: value for key, value in _container(group_file(group, name)).items() if key not in ("name", "declares")
        }
        found[name] = {"about": first.lstrip("# ") if first.startswith("#") else "", "keys": said}
    return found


def group_file(group: str, name: str) -> DictConfig:
    """What the file of a name in a group holds.

    Raises:
        FedGraphError: there is none, or it is no YAML.
    """
    path = conf_dir() / group / f"{name}.yaml"
    if not (_is_name(name) and path.is_file()):
        raise unknown(group, name, group_names(group))
    return load(path)


def _container(body: DictConfig) -> dict[str, Any]:
    return {str(key): value for key, value in OmegaConf.to_container(body).items()}  # type: ignore[union-attr]


def _group(group: str, name: str) -> tuple[str, DictConfig]:
    if group == "model" and ":" in name:
        return name, OmegaConf.create({group: {"name": name}})
    if not _is_name(name):
        raise unknown(group, name, group_names(group))
    path = conf_dir() / group / f"{name}.yaml"
    if name not in group_names(group):
        from fedgraph_flwr.data.root import imported_path

        if group == "dataset" and (own := imported_path(name)).is_file():
            return str(own), OmegaConf.create({group: {"name": name}, **_own_split(own)})
    body = group_file(group, name)
    if group == "protocol":
        return str(path), body
    for other in (*_WISHES.get(group, ()), "declares"):
        body.pop(other, None)
    return str(path), OmegaConf.create({group: body})


def _own_split(path: Path) -> dict[str, Any]:
    """A user's own graph is split by its own masks, where it has some, unless a protocol or the user says otherwise."""
    from fedgraph_flwr.data.graph import has_split

    return {"split": {"kind": "public"}} if has_split(path) else {}


# A strategy may name the model it brings, a dataset the partition and the model that suit it.
_WISHES = {"strategy": ("model",), "dataset": ("partition", "model")}


def _wishes(group: str, name: str) -> dict[str, str]:
    path = conf_dir() / group / f"{name}.yaml"
    body = load(path) if _is_name(name) and path.is_file() else {}
    return {wish: str(body[wish]) for wish in _WISHES[group] if wish in body}


def _layers(given: dict[str, Any]) -> list[tuple[str, DictConfig]]:
    """The files that apply, in order; takes the group choices out of ``given``."""
    root = conf_dir() / "config.yaml"
    config = load(root)
    defaults = config.pop("defaults")
    chosen = {group: given.pop(group) for group in GROUPS if isinstance(given.get(group), str)}
    layers = [(str(root), config)]

    protocol_name = chosen.get("protocol", defaults.protocol)
    protocol_path, protocol = (
        ("", OmegaConf.create({})) if protocol_name == "none" else _group("protocol", protocol_name)
    )
    by_protocol = protocol.pop("defaults", OmegaConf.create({}))
    by_dataset = protocol.pop("datasets", OmegaConf.create({}))
    by_strategy = protocol.pop("strategies", OmegaConf.create({}))

    def choose(group: str, *preferences: Any) -> str:
        return str(chosen.get(group) or next((p for p in preferences if p), None) or defaults[group])

    strategy = choose("strategy", by_protocol.get("strategy"))
    dataset = choose("dataset", by_protocol.get("dataset"))
    dataset_part = by_dataset.get(dataset, OmegaConf.create({}))
    strategy_part = by_strategy.get(strategy, OmegaConf.create({}))
    by_model = dataset_part.pop("models", OmegaConf.create({}))
    chosen_below = [part.pop("defaults", OmegaConf.create({})) for part in (strategy_part, dataset_part)]

    own = [_wishes("strategy", strategy), _wishes("dataset", dataset)]
    partition = choose("partition", *(c.get("partition") for c in (*chosen_below, by_protocol, *own)))
    model = choose("model", *(c.get("model") for c in (*chosen_below, *own, by_protocol)))

    layers += [_group("dataset", dataset), _group("partition", partition), _group("model", model)]
    if dataset == "file" and (file := Path(str(given.get("dataset.path", ""))).expanduser()).is_file():
        layers.append((str(file), OmegaConf.create(_own_split(file))))
    layers.append(_group("strategy", strategy))
    if protocol_path:
        protocol["protocol"] = protocol_name
        layers.append((protocol_path, protocol))
        layers.append((f"{protocol_path} (datasets.{dataset})", dataset_part))
        own_size = OmegaConf.create({"model": by_model.get(model, OmegaConf.create({}))})
        layers.append((f"{protocol_path} (datasets.{dataset}.models.{model})", own_size))
        layers.append((f"{protocol_path} (strategies.{strategy})", strategy_part))
    return layers


def _is_name(name: str) -> bool:
    """Whether this names a file of a folder, and leads nowhere else."""
    return Path(name).name == name and not name.startswith(".")


def _lift(node: dict[str, Any], group: str, cls: Any) -> None:
    """Move a group's keys that its dataclass does not know into its ``params``."""
    body = node.get(group)
    if isinstance(body, dict):
        if not isinstance(body.get("params") or {}, dict):
            raise FedGraphError(f"{group}.params must hold keys and values, got {body['params']!r}")
        known = {f.name for f in dataclasses.fields(cls)}
        own = {key: body.pop(key) for key in list(body) if key not in known}
        if own:
            body["params"] = {**(body.get("params") or {}), **own}
        for key in known & set(body.get("params") or {}) - {"name"}:  # a stored configuration of before it had a field
            body[key] = body["params"].pop(key)


_LIFTED = {**CHOICES, "attack": AttackConfig}


_SECTIONS = {
    name: [key.name for key in dataclasses.fields(section)]
    for name, section in vars(RunConfig()).items()
    if dataclasses.is_dataclass(section)
}
"""The keys of each section of a configuration."""


def _build(layers: list[tuple[str, DictConfig]], places: Mapping[str, str] | None = None) -> RunConfig:
    """The configuration of layers, later ones over earlier ones; ``places`` says where the user's words stand."""
    places, doubtful = places or {}, set()
    merged = OmegaConf.structured(RunConfig)
    accepted_params: dict[str, set[str]] = {group: set() for group in _LIFTED}
    for source, layer in layers:
        node = OmegaConf.to_container(layer, resolve=True)
        if not isinstance(node, dict):
            raise FedGraphError(f"{source} must hold keys and values")
        if isinstance(node.get("attack"), str):
            node["attack"] = {"name": node["attack"]}
        for section, keys in _SECTIONS.items():
            if not isinstance(node.get(section, {}), dict):
                told = f"got {node[section]!r} ({places.get(section, source)})"
                raise FedGraphError(f"{section} must hold keys with their values, such as {section}.{keys[0]}, {told}")
        for group, cls in _LIFTED.items():
            _lift(node, group, cls)  # type: ignore[arg-type]
            body = node[group] if isinstance(node.get(group), dict) else {}
            own, name = set(body.get("params") or {}), str(body.get("name", merged[group].name))
            if source == "override" and group == "strategy":
                doubtful = own - accepted_params[group]
            elif source == "override" and group != "attack" and not (group == "model" and ":" in name):
                for key in own - accepted_params[group]:
                    known = {f.name for f in dataclasses.fields(cls)} - {"params"}
                    where = places.get(f"{group}.{key}", f"override {group}.{key}")
                    raise unknown(f"{group} key", key, known | accepted_params[group], where)
            accepted_params[group] |= own
            if "name" in body and (source != "override" or (group == "model" and name != merged[group].name)):
                merged[group].params = {}  # another choice of the group starts from its own keys
        try:
            merged.merge_with(node)  # in place: a copy of the whole for every layer takes half of the time
        except OmegaConfBaseException as error:
            raise _explain(error, source, places) from error
    try:
        cfg: RunConfig = OmegaConf.to_object(merged)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise _explain(error, "the composed config", places) from error
    _check_places(cfg, doubtful, places)
    return cfg


def _check_places(cfg: RunConfig, doubtful: set[str], places: Mapping[str, str]) -> None:
    """Check a method's keys that no YAML of it names, where they stand in a file: its line is known only here."""
    written_down = {key for key in doubtful if f"strategy.{key}" in places}
    if written_down:
        from fedgraph_flwr.lookup import own_keys  # the method's classes take a second to import

        for key in sorted(written_down - (accepted := own_keys(cfg))):
            shared = {f.name for f in dataclasses.fields(StrategyConfig)} - {"params"}
            raise unknown(f"strategy {cfg.strategy.name}: key", key, accepted | shared, places[f"strategy.{key}"])


def _explain(error: OmegaConfBaseException, source: str, places: Mapping[str, str]) -> FedGraphError:
    key = str(error.full_key or error.key or "?")
    source = places.get(key, source) if source == "override" else source
    cls = error.object_type
    if type(error).__name__ in ("ConfigKeyError", "ConfigAttributeError") and dataclasses.is_dataclass(cls):
        parent = key.rpartition(".")[0]
        return unknown(
            "key", key, [f"{parent}.{f.name}" if parent else f.name for f in dataclasses.fields(cls)], source
        )
    return FedGraphError(f"{key} ({source}): {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
