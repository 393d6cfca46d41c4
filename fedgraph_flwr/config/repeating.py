"""The overrides of a configuration: what one would type to compose it again."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedgraph_flwr.config.composition import GROUPS, compose, group_path, unread
from fedgraph_flwr.config.config_file import OWN, dotted_keys
from fedgraph_flwr.config.schema import RunConfig
from fedgraph_flwr.errors import FedGraphError


def overrides_of(cfg: RunConfig) -> list[str] | None:
    """Return few overrides that compose this configuration, without its folder; None if they do not."""
    chosen = [word for word in _chosen(cfg) if not unread(cfg, dict([word.split("=", 1)]))]
    try:
        for word in list(chosen):  # a dataset or a method may choose the others, as may the defaults
            fewer = [other for other in chosen if other != word]
            chosen = fewer if _composed(fewer) == _composed(chosen) else chosen
        usual, wanted = _composed(chosen), _keys(cfg)
        changed = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in wanted.items()
            if usual.get(key) != value
        ]
        words = [*chosen, *(word.replace(".params.", ".", 1) for word in changed)]
        return words if _composed(words) == wanted else None
    except FedGraphError:
        return None


def unusual(cfg: RunConfig, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from those that this package gives the same dataset, model, task and method, by key.

    Args:
        cfg: the configuration.
        written: what it was read from, nested: a value that was read as another counts as written.
    """
    given = dotted_keys(dataclasses.asdict(cfg)) | dotted_keys(written)
    try:
        usual = dotted_keys(dataclasses.asdict(compose(_chosen(cfg))))
    except FedGraphError:  # what was chosen needs other values than the usual ones
        usual = dotted_keys(dataclasses.asdict(RunConfig()))
    named = {
        key: value
        for group in GROUPS
        for key in (group, f"{group}.name")
        if (value := given.get(key)) not in (None, "none")
    }
    return named | {key: given.get(key) for key in usual.keys() | given.keys() if given.get(key) != usual.get(key)}


def _chosen(cfg: RunConfig) -> list[str]:
    """Return the overrides that select what has a file in this package."""
    chosen = []
    for group in GROUPS:
        part = getattr(cfg, group)
        name = part if isinstance(part, str) else part.name
        if name != "none" and group_path(group, name):
            chosen.append(f"{group}={name}")
    return chosen


def _composed(words: Sequence[str]) -> dict[str, Any]:
    return _keys(compose(words))


def _keys(cfg: RunConfig) -> dict[str, Any]:
    keys = dotted_keys(dataclasses.asdict(cfg))
    skipped = {*OWN, *unread(cfg, keys)}
    return {key: value for key, value in keys.items() if key not in skipped}
