"""Types of the keys of a run, for editors and type checkers: the keyword arguments of ``fedgraph_flwr.run``.

`python -m benchmarks.generated` writes this file. ``fedgraph-flwr keys`` describes the keys. Dotted keys are not listed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

Group = str | Mapping[str, Any]
"""Name of a file of the group, or its keys."""

Code = Group | type | Callable[..., Any]
"""Likewise, or your class or function."""

Function = str | Callable[..., Any]
"""Name, or your function or class."""

Place = str | os.PathLike[str]
"""Path of a file or folder."""


class SplitKeys(TypedDict, total=False):
    """Keys of ``split``."""

    kind: str
    scope: str
    train: float
    val: float
    test: float
    folds: int
    fold: int
    resample: bool
    until: Sequence[int]
    step: str | None
    stratify: bool
    min_train: int


class TaskKeys(TypedDict, total=False):
    """Keys of ``task``."""

    name: str
    loss: str
    positive_weights: Sequence[float]
    between: bool
    disjoint: float
    negatives: int
    candidates: int
    decoder: str
    batch_size: int
    margin: float
    temperature: float
    pool: str


class TrainKeys(TypedDict, total=False):
    """Keys of ``train``."""

    optimizer: str
    lr: float
    weight_decay: float
    momentum: float
    local_steps: int
    local_steps_by_client: Sequence[int]
    optimizer_state: str
    loss: str
    class_weights: str
    focal_gamma: float
    sampler: str
    batch_size: int
    fanout: Sequence[int]
    fanout_back: Sequence[int]
    local_epochs: int
    stable_draws: bool
    clusters: int
    clusters_per_batch: int


class EvaluationKeys(TypedDict, total=False):
    """Keys of ``evaluation``."""

    metric: Function
    metrics: Sequence[Function]
    average: str
    select: str
    monitor: str
    every: int
    clients: str | int
    patience: int
    min_delta: float
    trained: bool
    full: bool
    min_items: int
    confusion: bool


class PrivacyKeys(TypedDict, total=False):
    """Keys of ``privacy``."""

    dp: str
    noise_multiplier: float
    clipping_norm: float
    clipping_norms: Mapping[str, float]
    clipping_quantile: float
    clipping_rate: float
    clipping_count_noise: float
    delta: float
    epsilon_budget: float
    scores: str
    secagg: bool
    reveal: Sequence[str]
    secagg_threshold: float
    secagg_bits: int
    coordinator: str
    max_update: float
    unit: str
    rows: int
    batch: int
    look_back: int


class RayKeys(TypedDict, total=False):
    """Keys of ``ray``."""

    address: str
    actors: int
    live_clients: int
    aggregate: bool


class AdversaryKeys(TypedDict, total=False):
    """Keys of ``adversary``."""

    kind: Function
    clients: Sequence[int]
    strength: float | None
    target: int
    rate: float
    trigger: int


class RunKeys(TypedDict, total=False):
    """Keys of a run, and ``config``."""

    dataset: Code
    split: SplitKeys
    partition: Code
    model: Code
    task: TaskKeys | str
    train: TrainKeys
    strategy: Code
    evaluation: EvaluationKeys
    privacy: PrivacyKeys
    attack: Code
    ray: RayKeys
    adversary: AdversaryKeys
    protocol: str
    num_clients: int
    parties: Sequence[str]
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
    agreement: str
    weights: Sequence[int]
    graph: Place
