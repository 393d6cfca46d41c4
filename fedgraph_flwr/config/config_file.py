"""User configuration file: the keys of a YAML file as overrides, each with its line.

    extends: base.yaml                     # or a list; the keys below take precedence
    strategy: {name: fedspa, folds: 2}     # same as strategy=fedspa strategy.folds=2
    train: {lr: 0.05}

A resolved configuration (a run's ``config.yaml``) is not a list of overrides: composition starts from it.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.config.schema import DatasetConfig, ModelConfig, PartitionConfig, StrategyConfig, TaskConfig
from fedgraph_flwr.errors import FedGraphError, first_line, no_yaml, sanitize

_CHOSEN = (StrategyConfig, ModelConfig, DatasetConfig, PartitionConfig, TaskConfig)
CHOICES: dict[str, Any] = {cls.group: cls for cls in _CHOSEN}
"""The groups of which a file is chosen by name."""

EXTENSIBLE = {group: cls for group, cls in CHOICES.items() if "params" in {f.name for f in fields(cls)}}
"""Groups whose files add keys to the schema's."""

OWN = ("out", "overwrite", "resume", "evaluate")
"""Keys of one run's folder, which a run that repeats it, or starts from it, chooses for itself."""


@dataclass
class ConfigFile:
    """Content of a configuration file and of those that it extends.

    Attributes:
        overrides: value by dotted key; the key of a group is its selected name.
        places: file and line by dotted key.
        base: resolved configuration below the overrides, if any.
        of_fleet: whether the overrides are all keys of a fleet's run, which no user chose one by one.
    """

    overrides: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    base: Path | None = None
    of_fleet: bool = False

    def upon(self, below: "ConfigFile") -> "ConfigFile":
        """Return these overrides on top of others."""
        kept = laid_over(below.overrides, self.overrides)
        return ConfigFile(kept, below.places | self.places, self.base or below.base, self.of_fleet or below.of_fleet)


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge overrides; if another name of a group is selected, drop the keys that only the previous one defines."""
    kept = dict(below)
    for group, schema in CHOICES.items():
        if above.get(group, below.get(group)) != below.get(group):
            shared = {f"{group}.{f.name}" for f in fields(schema)}
            kept = {key: v for key, v in kept.items() if not key.startswith(f"{group}.") or key in shared}
    return kept | dict(above)


def choices(overrides: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Normalise overrides: ``group.name`` as the selection, ``params`` as keys of the group.

    Raises:
        FedGraphError: a group is selected twice, or its selection is not a name.
    """
    renamed: dict[str, Any] = {}
    for key, value in overrides.items():
        group, _, rest = key.partition(".")
        if group in CHOICES and rest == "name":
            if overrides.get(group, value) == value:
                key = group
            elif group != "dataset":  # `dataset=tu dataset.name=PROTEINS` selects from a collection
                named = f"{group}={overrides[group]} and {key}={value}"
                raise FedGraphError(f"{named} select different names: leave one out")
        elif group in CHOICES and rest.startswith("params."):
            key = f"{group}.{rest.removeprefix('params.')}"
        elif key == "attack":
            key = "attack.name"
        if key in (*CHOICES, "protocol") and not isinstance(value, str):
            where = places.get(key) or places.get(f"{key}.name") or "override"
            raise FedGraphError(f"{key} must be a name or keys with values, got {value!r} ({where})")
        renamed[key] = value
    return renamed


def is_resolved(body: Mapping[str, Any], groups: Iterable[str] = EXTENSIBLE) -> bool:
    """Return whether the content is a complete configuration, as `composition.to_yaml` writes it, of some groups."""
    return all(isinstance(body.get(group), Mapping) and "params" in body[group] for group in groups)


def read(path: Path, seen: tuple[Path, ...] = ()) -> ConfigFile:
    """Read a file and those that it extends.

    Raises:
        FedGraphError: a file is missing or not YAML, or extends itself.
    """
    content = load(path)
    if is_resolved(content):
        return ConfigFile(base=path)
    if of_fleet := is_resolved(content, ("strategy", "model")):  # a run whose nodes alone know their data
        content = {key: value for key, value in content.items() if key not in OWN}
    lines = {key.replace(".params.", "."): line for key, line in lines_of(path.read_text()).items()}
    chain = (*seen, path.resolve())
    others = content.pop("extends", None) or []
    others = [others] if isinstance(others, str) else others
    where, below = f"{path}, line {lines.get('extends')}: extends:", ConfigFile()
    if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
        raise FedGraphError(f"{where} must be a file or a list of files, got {others!r}")
    for other in others:
        file = path.parent / Path(other).expanduser()
        if file.resolve() in chain:
            raise FedGraphError(f"{where} {other} is circular: remove it")
        if not file.is_file():
            raise FedGraphError(f"{where} {other}, but {file} does not exist")
        below = read(file, chain).upon(below)
    content_keys = dotted_keys(content)
    places = {key: f"{path}, line {line}" for key, line in lines.items()}
    return ConfigFile(choices(content_keys, places), places, of_fleet=of_fleet).upon(below)


def load(path: Path) -> dict[str, Any]:
    """Read a YAML file with keys and values, and resolve its ``${...}``.

    Raises:
        FedGraphError: the file is missing or has other content.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise FedGraphError(f"no such config file: {path}") from error
    return copy.deepcopy(_loaded(path, stat.st_mtime_ns, stat.st_size))


MAX_NODES = 100_000
"""Most values of a YAML file, with each alias (``*name``) counted as all values that it stands for."""


def check_aliases(text: str) -> str:
    """Return a YAML text whose aliases stand for at most `MAX_NODES` values; OmegaConf has a limit of its own.

    Raises:
        yaml.YAMLError: it has more, or is invalid.
    """
    waiting, seen = [yaml.compose(text)] if "&" in text else [], 0
    while waiting:
        node, seen = waiting.pop(), seen + 1
        if seen > MAX_NODES:
            raise yaml.YAMLError(f"its aliases stand for more than {MAX_NODES:,} values: write them out")
        entries = node.value if isinstance(node, yaml.CollectionNode) else ()
        waiting += [child for entry in entries for child in (entry if isinstance(entry, tuple) else (entry,))]
    return text


MAX_BITS = 1024
"""Most bits of an integer of a YAML file; Python refuses to print much larger ones."""


def parse_yaml(text: str, loader: Any = yaml.SafeLoader) -> Any:
    """Parse a YAML text.

    Raises:
        yaml.YAMLError: it is invalid, too deeply nested, or has too many values, a huge number or an impossible date.
    """
    try:
        return _of_short_numbers(yaml.load(check_aliases(text), Loader=loader))
    except RecursionError as error:
        raise yaml.YAMLError("its values are nested too deeply") from error
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise yaml.YAMLError(sanitize(error)) from error


def _of_short_numbers(tree: Any) -> Any:
    """Return parsed YAML; values of aliases are as many as `check_aliases` lets through.

    Raises:
        yaml.YAMLError: it has an integer of more than `MAX_BITS`.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting += [*node, *node.values()]
        elif isinstance(node, list | tuple | set):
            waiting += node
        elif isinstance(node, int) and node.bit_length() > MAX_BITS:
            raise yaml.YAMLError(f"it has an integer of {node.bit_length():,} bits, expected at most {MAX_BITS:,}")
    return tree


class _Texts(yaml.BaseLoader):
    """Leaves scalars as texts, and refuses a key that comes twice, of which the last would count."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(values) < len(node.value):
            names = [str(key.value) for key, _ in node.value]
            repeated = next(name for name in names if names.count(name) > 1)
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{repeated[:80]}' comes twice", node.start_mark
            )
        return values


def load_texts(path: Path, what: str) -> Any:
    """Read a YAML file whose scalars stay texts: ``no`` may be a class name. ``what`` is what the file should be, for errors.

    Raises:
        FedGraphError: it is missing or not YAML.
    """
    try:
        return parse_yaml(path.read_text(), _Texts)
    except yaml.YAMLError as error:
        raise FedGraphError(f"{no_yaml(path, error)}, so it cannot be read as {what}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FedGraphError(f"{path} cannot be read as {what} ({getattr(error, 'strerror', error)})") from error


@lru_cache(maxsize=512)
def _loaded(path: Path, changed: int, size: int) -> dict[str, Any]:
    """Read the version of a file that changed at a time; a process composes many configurations from the same files."""
    try:
        loaded = OmegaConf.load(path)
    except yaml.YAMLError as error:
        raise FedGraphError(no_yaml(path, error)) from error
    except Exception as error:
        raise FedGraphError(f"{path} is not valid YAML ({first_line(error)})") from error
    try:
        body = _of_short_numbers(resolved(loaded) if isinstance(loaded, DictConfig) else {"": None})
    except yaml.YAMLError as error:
        raise FedGraphError(no_yaml(path, error)) from error
    except OmegaConfBaseException as error:
        raise FedGraphError(f"{path}: {str(error).splitlines()[0]}") from error
    if body and all(value is None for value in body.values()):  # OmegaConf reads a single value as a key without one
        raise FedGraphError(f"{path} must contain keys with values, such as rounds: 20, got a list or a single value")
    return body


def resolved(body: Mapping[str, Any] | DictConfig) -> dict[str, Any]:
    """Return nested keys as plain dicts and lists, with every ``${...}`` resolved."""
    return OmegaConf.to_container(body if isinstance(body, DictConfig) else OmegaConf.create(dict(body)), resolve=True)  # type: ignore[return-value]


def dotted_keys(body: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested keys to dotted ones; skip groups without a value."""
    dotted: dict[str, Any] = {}
    for key, value in body.items():
        if isinstance(value, Mapping):
            dotted |= dotted_keys(value, f"{prefix}{key}.")
        elif value is not None or prefix:
            dotted[f"{prefix}{key}"] = value
    return dotted


def lines_of(text: str) -> dict[str, int]:
    """Return the line of every dotted key of a YAML text, and of every ``key=value`` in a value."""
    lines: dict[str, int] = {}

    def walk(node: Any, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                lines[f"{prefix}{key.value}"] = key.start_mark.line + 1
                walk(value, f"{prefix}{key.value}.")
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                walk(item, prefix)
        elif node and "=" in node.value:  # none of an empty text
            for word in node.value.split():
                lines.setdefault(word, node.start_mark.line + 1)

    walk(yaml.compose(text), "")
    return lines
