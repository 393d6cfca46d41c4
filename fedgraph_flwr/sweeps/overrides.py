"""Parse a sweep from the command line: ``strategy=fedavg,fedprox train.lr=0.01,0.003 seed=0..4 tune=train.lr``.

Methods are columns, with the values of the ``strategy.`` keys that they define. Other keys with several values are rows. Values
tuned on validation nodes are shown in their cell.
"""

import contextlib
import hashlib
import itertools
import shlex
from collections.abc import Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import configuration
from fedgraph_flwr.config.composition import plain
from fedgraph_flwr.config.config_file import dotted_keys
from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.config.schema import IDLE
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.evaluation.verdict import MARGIN
from fedgraph_flwr.logs import log
from fedgraph_flwr.sweeps.search import Search, is_distribution
from fedgraph_flwr.sweeps.spec import SELECTING, Sweep, knows, seeds_of
from fedgraph_flwr.sweeps.values import expand

FOLDER = Path("sweeps")
"""Default folder of the results of a sweep without a file."""


def parse_sweep(
    overrides: Sequence[str],
    out: Path | None = None,
    trials: int = 0,
    baseline: str = "",
    baselines: bool = True,
    margin: float = MARGIN,
) -> Sweep:
    """Parse overrides with several values.

    Args:
        overrides: ``key=value,value``; ``tune=key,key`` names keys that are tuned on validation nodes.
        out: folder of the results; default: `FOLDER`.
        trials: number of trials of a search over the keys with a distribution.
        baseline: reference column of differences.
        baselines: whether to add Majority and Local.
        margin: points within which an interval of a difference counts as level.

    Raises:
        FedGraphError: an invalid override, or an invalid combination.
    """
    given = _given(overrides, trials)
    tuned = given.pop("tune", [])
    seeds = given.pop("seed", ["0"])
    searched = {key: values[0] for key, values in given.items() if is_distribution(values[0])}
    free = {key: values for key, values in given.items() if key not in (*tuned, *searched)}
    methods = _methods(free)
    fixed = {key: values for key, values in free.items() if not key.startswith("strategy.") and key != "strategy"}
    varied = {key: values for key, values in fixed.items() if len(values) > 1}
    common = [f"{key}={values[0]}" for key, values in fixed.items() if key not in varied]
    data = _data(common, varied)
    names = ", ".join(dict.fromkeys(methods))
    shown = ", ".join(map(column_name, methods))
    hashed = sorted(f"{key}={values}" for key, values in given.items())
    key = hashlib.sha256("\n".join([*hashed, *tuned]).encode()).hexdigest()[:8]
    return Sweep(
        name="-".join([*names.replace(",", "").split(), *([data] if data not in names else []), key])[-80:].lstrip("-"),
        folder=out or FOLDER,
        made=f"fedgraph-flwr sweep {shlex.join([*overrides, *_options(trials, baseline, baselines, margin)])}",
        title=f"{shown} on {data or ', '.join(varied['dataset'])}",
        common=common,
        settings=_named(varied) if varied else {data: []},
        methods=methods,
        baselines=baselines,
        grid=_named({key: given[key] for key in tuned}, whole=True) if tuned else {},
        search=Search.read({"trials": trials, **searched}, "--search") if trials else None,
        seeds=seeds_of(seeds, "seed="),
        baseline=baseline,
        margin=margin,
        figure=_axis(varied),
    )


def _options(trials: int, baseline: str, baselines: bool, margin: float) -> list[str]:
    """Return the options of the command line."""
    options = [*(["--search", str(trials)] if trials else []), *(["--baseline", baseline] if baseline else [])]
    options += [] if margin == MARGIN else ["--margin", f"{margin:g}"]
    return [*options, *([] if baselines else ["--no-baselines"])]


def _given(overrides: Sequence[str], trials: int) -> dict[str, list[str]]:
    """Return the values of each key.

    Raises:
        FedGraphError: an invalid override, a tuned key with one value, or a search without trials or without a key.
    """
    given: dict[str, list[str]] = {}
    for word in overrides:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise FedGraphError(f"'{word}' is neither key=value nor a YAML file")
        values = expand(value)
        if key in given:
            _check_replaced(key, given[key], values)
        given[key] = values
        if len(set(given[key])) < len(given[key]):
            raise FedGraphError(f"'{word}' contains a value twice: list each value once")
    if single := [key for key in given.get("tune", []) if len(given.get(key, [])) < 2]:
        raise FedGraphError(f"tune={single[0]} needs several values of the key: pass {single[0]}=A,B")
    if any(is_distribution(values[0]) for values in given.values()) != bool(trials):
        example = "--search 20 'train.lr=loguniform(1e-4,1e-1)'"
        raise FedGraphError(f"a search needs a number of trials and a key with a distribution: {example}")
    return given


def _check_replaced(key: str, before: list[str], values: list[str]) -> None:
    """Note that the last value of a key counts, as in a run.

    Raises:
        FedGraphError: one of the two has several values.
    """
    several = ",".join(dict.fromkeys([*before, *values]))
    if len(before) > 1 or len(values) > 1:
        raise FedGraphError(f"{key} is given twice, once with several values: pass {key}={several} once")
    if before != values:
        log(INFO, "%s=%s replaces %s=%s; to run both, pass %s=%s", key, values[0], key, before[0], key, several)


def given_values(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return Python values as the texts of overrides: ``A,B`` for a list, a range or an array; nested keys become dotted.

    Raises:
        FedGraphError: a value is no number, text, boolean, class or function.
    """
    texts = {}
    for key, value in dotted_keys(keys).items():
        many = value.tolist() if hasattr(value, "tolist") else value
        values = list(many) if isinstance(many, list | tuple | range) else [many]
        texts[key] = ",".join(_text(key, entry) for entry in values)
    return texts


def _text(key: str, value: Any) -> str:
    value = plain(value, key)
    if isinstance(value, list):
        return f"[{','.join(_text(key, entry) for entry in value)}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _methods(given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the columns: strategies, each with the ``strategy.`` keys that it defines."""
    strategies = [f"strategy={name}" for name in given.get("strategy", [])]
    above = [f"{key}={given[key][0]}" for key in ("config", "protocol") if key in given]
    keys = [key for key in given if key.startswith("strategy.")]
    columns: dict[str, list[str]] = {}
    choices = {key: given[key] for key in keys if key in SELECTING}
    for strategy, parts in itertools.product(
        [[word] for word in strategies] or [[]], _named(choices, whole=True).values()
    ):
        chosen = [*strategy, *parts]
        name = configuration([*above, *chosen]).strategy.name
        known = {key: given[key] for key in keys if key not in choices and knows([*above, *chosen], key)}
        varied = [word.removeprefix("strategy.") for word in parts if len(given[word.partition("=")[0]]) > 1]
        columns |= _columns(", ".join([name, *varied]), chosen, known)
    for key in keys:
        if not any(word.startswith(f"{key}=") for how in columns.values() for word in how):
            raise unknown("key", key, ["strategy.KEY of one of the methods"], "which no method defines")
    return columns


def _columns(name: str, strategy: list[str], known: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the columns of one strategy: one per combination of the values of the keys that it defines."""
    several = {key.removeprefix("strategy."): values for key, values in known.items() if len(values) > 1}
    single = [f"{key}={values[0]}" for key, values in known.items() if len(values) == 1]
    return {
        f"{name}, {label}" if label else name: [*strategy, *single, *(f"strategy.{word}" for word in overrides)]
        for label, overrides in _named(several, whole=True).items()
    }


def _named(values: Mapping[str, Sequence[str]], whole: bool = False) -> dict[str, list[str]]:
    """Return the overrides of every combination by name: only the value if there is one key, unless ``whole``."""
    named = {}
    for row in itertools.product(*values.values()):
        words = [f"{key}={value}" for key, value in zip(values, row, strict=True)]
        named[row[0] if len(row) == 1 and not whole else ", ".join(words)] = words
    return named


def _axis(varied: Mapping[str, Sequence[str]]) -> str | bool:
    """Return the key of the x axis, if exactly one key varies and its values are numbers."""
    if len(varied) == 1:
        with contextlib.suppress(ValueError):
            [(key, values)] = varied.items()
            return key if list(map(float, values)) else False
    return False


def _data(common: Sequence[str], varied: Mapping[str, Sequence[str]]) -> str:
    """Return the name of the dataset of all runs; empty if there are several."""
    if "dataset" in varied or "graph" in varied:
        return ""
    given = dict(word.partition("=")[::2] for word in common)
    if "graph" in given:
        return Path(given["graph"]).name
    if given.get("dataset.path"):
        return Path(given["dataset.path"]).stem
    # without the keys of networks, which a strategy may bring, and those that only a crossed choice may read
    plain_words = [word for word in common if not word.startswith("model.") and word.partition("=")[0] not in IDLE]
    return configuration(plain_words).data_name
