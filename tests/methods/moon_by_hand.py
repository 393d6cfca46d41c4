"""MOON's loss in NumPy, differentiated numerically."""

import numpy as np

from tests.methods.regression import DECAY, LR

MU, TAU = 0.7, 0.4


def hidden(p, x):
    return np.maximum(x @ p["layers.0.weight"] + p["layers.0.bias"], 0)


def contrast_by_hand(z, to, away):
    def sim(a, b):
        sizes = (np.maximum(np.sqrt((v * v).sum(1)), 1e-8) for v in (a, b))  # all of a node's features may be 0
        return (a * b).sum(1) / np.prod(list(sizes), axis=0)

    near, far = np.exp(sim(z, to) / TAU), np.exp(sim(z, away) / TAU)
    return -np.log(near / (near + far)).mean()


def loss(p, x, labels, to, away):
    z = hidden(p, x)
    logits = z @ p["head.weight"] + p["head.bias"]
    supervised = (np.log(np.exp(logits).sum(1)) - (logits * labels).sum(1)).mean()
    return supervised + MU * contrast_by_hand(z, to, away)


def step(p, *rest):
    """One step of SGD with weight decay along central differences."""
    new = {}
    for name, values in p.items():
        slope = np.zeros_like(values)
        for at in np.ndindex(values.shape):
            two = []
            for shift in (1e-6, -1e-6):
                moved = {n: a.copy() for n, a in p.items()}
                moved[name][at] += shift
                two.append(loss(moved, *rest))
            slope[at] = (two[0] - two[1]) / 2e-6
        new[name] = values - LR * (slope + DECAY * values)
    return new
