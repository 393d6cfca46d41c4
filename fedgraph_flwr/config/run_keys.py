"""Types of the keys of a run, for editors and type checkers: the keyword arguments of ``fedgraph_flwr.run``."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Group = str | Mapping[str, Any]
"""Name of a file of the group, or its keys."""

Code = Group | type
"""Likewise, or your class."""

Keys = Mapping[str, Any]
"""Keys of a section."""

Place = str | os.PathLike[str]
"""Path of a file or folder."""


class RunKeys(TypedDict, total=False):
    """Keys of `RunConfig`, and ``config``; ``fedgraph-flwr keys`` describes them. Dotted keys are not listed here."""

    strategy: Code
    dataset: Group
    protocol: str
    partition: Group
    model: Code
    task: Group
    split: Keys
    train: Keys
    evaluation: Keys
    privacy: Keys
    attack: Group
    adversary: Keys
    ray: Keys
    num_clients: int
    rounds: int
    seed: int
    engine: str
    device: str
    threads: int
    stack: str | int
    client_cpus: int
    client_gpus: float
    dtype: str
    out: Place
    overwrite: bool
    config: Place
    resume: Place
    init: Place
    evaluate: Place
    checkpoint_every: int
    tracking: Sequence[str]
    tracking_clients: bool
    tracking_group: str
    graph: Place
