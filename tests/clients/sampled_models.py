"""Models that train on batches, and what the tests of batches do with them."""

import functools
from pathlib import Path
from typing import Any

import torch

from fedgraph_flwr import models
from fedgraph_flwr.clients.chosen_parts import ChosenParts
from fedgraph_flwr.config import ModelConfig
from fedgraph_flwr.launch.checks import client_class
from tests.methods.small_runs import by_default

ROOT = Path(__file__).parents[2]


SAMPLED = ["train.sampler=neighbors", "train.batch_size=4"]


IN_PARTS = {"fedomd": ("strategy.cmd_nodes=train",)}
"""What a method that samples needs beside the sampler."""


EVERY = [*SAMPLED, "train.fanout=[-1,-1]"]


MODELS: dict[str, dict[str, Any]] = {
    "gcn": {},
    "sage": {},
    "sage head": {"head": True},
    "acm": {},
    "projected_gcn": {},
    "decoupled": {"hops": 2},
    "mlp": {},
    "gat": {"heads": 2},
    "gatv2": {"heads": 2},
    "transformer": {"heads": 2},
    "gine": {},
    "pna": {"residual": True},
    "gine both": {"reverse": True, "edge_updates": True, "residual": True, "norm": "layer"},
    "gatv2 both": {"reverse": True, "edge_updates": True, "heads": 2},
    "pna both": {"reverse": True},
    "transformer updates": {"edge_updates": True, "heads": 2},
    "fedomd": {},
    "fedspa": {},
}


def built(name, graph, layers=2, **more):
    torch.manual_seed(1)
    cfg = ModelConfig(name.split()[0], hidden=8, layers=layers, dropout=0.0, params=MODELS[name] | more)
    kind = models.network(cfg)
    return models.build(cfg, 5, 3, 2 if kind.capabilities.reads_edges else 0).double()


def grads(logits, model):
    model.zero_grad()
    torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 3).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@functools.cache
def samples(strategy):
    """Whether a method declares that it trains on batches, with its own model."""
    cfg = by_default(strategy)
    declared = client_class(cfg).capabilities.samples and all(
        part.capabilities.samples for part in ChosenParts(cfg.strategy).all
    )
    return declared and models.probe(cfg.model).sampled_hops is not None


WORDS = [*SAMPLED, "train.fanout=[3,2]", "train.local_steps=2"]
