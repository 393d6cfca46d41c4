"""Search on validation scores with Optuna, separately for each row and column of a table; each trial covers all seeds.

    search: {trials: 20, train.lr: "loguniform(1e-4, 1e-1)", train.local_steps: "int(1, 8)", model.hidden: "choice(16, 64)"}

The CSV rows are the only state: trial k follows from the trials before it, and the first ten are random. An interrupted search
therefore resumes with the same trials.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps.values import expand

KINDS = ("uniform", "loguniform", "int", "choice")
RANDOM = 10
"""Number of random trials before the first that depends on others; they can run in parallel."""

History = tuple[tuple[tuple[tuple[str, str], ...], float], ...]


@dataclass(frozen=True)
class Search:
    """Number of trials, and keys with their distributions: a kind of `KINDS` and its arguments."""

    trials_each: int
    keys: tuple[tuple[str, str, tuple[str, ...]], ...]

    @classmethod
    def read(cls, body: Any, where: str) -> "Search":
        """Read the section ``search`` of a file, or overrides.

        Raises:
            FedGraphError: an invalid number of trials or an invalid distribution.
        """
        given = dict(body) if isinstance(body, Mapping) else {}
        trials = given.pop("trials", 20)
        if not given or type(trials) is not int or trials < 1:
            example = "trials: 20 and train.lr: loguniform(1e-4,1e-1)"
            raise FedGraphError(f"{where}: a search needs at least 1 trial and a key, such as {example}, got {body!r}")
        return cls(trials, tuple((key, *_distribution(key, str(value), where)) for key, value in given.items()))

    def of(self, known: Callable[[str], bool]) -> "Search":
        """Return the search restricted to the defined keys."""
        return Search(self.trials_each, tuple(key for key in self.keys if known(key[0])))

    def trials(self, validation: Callable[[list[str]], float | None]) -> dict[str, list[str]]:
        """Return the overrides of every trial that is already determined, by name.

        Args:
            validation: mean validation score of a trial with these overrides; NaN: it failed, None: not run.
        """
        if not self.keys:
            return {}
        named: dict[str, list[str]] = {}
        history: History = ()
        for trial in range(self.trials_each):
            if trial >= RANDOM and len(history) < trial:
                break
            values = suggest(self.keys, history if trial >= RANDOM else (), trial)
            overrides = [f"{key}={value}" for key, value in values]
            named[", ".join(overrides)] = overrides
            if (score := validation(overrides)) is not None:
                history += ((values, score),)
        return named


def is_distribution(value: str) -> bool:
    """Whether a value is a distribution."""
    return bool(re.fullmatch(rf"({'|'.join(KINDS)})\(.*\)", value))


def _distribution(key: str, text: str, where: str) -> tuple[str, tuple[str, ...]]:
    kind, _, rest = text.strip().partition("(")
    values = tuple(expand(rest[:-1])) if is_distribution(text.strip()) else ()
    if kind == "choice" and len(values) > 1:
        return kind, values
    try:
        low, high = map(int if kind == "int" else float, values)
    except ValueError:
        low = high = 0
    if not low < high < math.inf or (kind == "loguniform" and low <= 0):
        forms = "loguniform(low,high) with low > 0, uniform(low,high), int(low,high) or choice(a,b,...)"
        raise FedGraphError(f"{where}: {key}={text} is not a distribution: expected {forms}")
    return kind, values


@functools.lru_cache(maxsize=100_000)
def suggest(
    keys: Sequence[tuple[str, str, tuple[str, ...]]], history: History, trial: int
) -> tuple[tuple[str, str], ...]:
    """Return keys and values of trial number ``trial``, given the earlier ones; random without any.

    Raises:
        FedGraphError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise FedGraphError(
            "a search needs Optuna: pip install optuna (or fedgraph-flwr[search])", "package"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {key: _space(optuna.distributions, kind, values) for key, kind, values in keys}
    samplers = optuna.samplers
    sampler = samplers.TPESampler(seed=trial, n_startup_trials=0) if history else samplers.RandomSampler(seed=trial)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for values, score in history:
        if not math.isnan(score):
            params = {key: _typed(space[key], value) for key, value in values}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=score))
    params = study.ask(space).params
    return tuple((key, f"{params[key]:.4g}" if isinstance(params[key], float) else str(params[key])) for key in space)


def _space(distributions: Any, kind: str, values: tuple[str, ...]) -> Any:
    if kind == "choice":
        return distributions.CategoricalDistribution(values)
    if kind == "int":
        return distributions.IntDistribution(*map(int, values))
    return distributions.FloatDistribution(*map(float, values), log=kind == "loguniform")


def _typed(space: Any, value: str) -> Any:
    """Clip a rounded value to the range of its distribution."""
    if hasattr(space, "choices"):
        return value
    return min(max(type(space.low)(value), space.low), space.high)
