"""Scores of many clients' models at once: equal to `metrics.Scored.score` of each, up to rounding.

A client's nodes of a split are a segment, as of `curves.Curves`: ``val`` and ``test`` of the first client, then of the next.

Letters: M clients, S = 2 M segments, K nodes in them, C classes.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.evaluation.curves import OF_RANKS, Curves, chances, margin, means_of_rows, surprise
from fedgraph_flwr.evaluation.metrics import AT_THRESHOLD, MAJORITY, OF_CLASS, SPLITS, Scored


class Segments:
    """Scored nodes of all clients, prepared once for all models.

    Args:
        scored: scored nodes of each client, with one part each.
    """

    def __init__(self, scored: Sequence[Scored]):
        self.scored = scored
        segments = [client.parts[0][split] for client in scored for split in SPLITS]
        self.rows = [np.concatenate([client.parts[0][split].rows for split in SPLITS]) for client in scored]
        self.y = np.concatenate([nodes.y for nodes in segments])
        self.count = np.array([nodes.y.size for nodes in segments])
        self.start = np.cumsum(self.count) - self.count
        self.of = np.repeat(np.arange(len(segments)), self.count)
        self.majority = np.array([nodes.majority if nodes.y.size else np.nan for nodes in segments])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum values [K] within each segment: [S]."""
        return np.bincount(self.of, values, len(self.count))

    def by_class(self, labels: np.ndarray, classes: int, chosen: np.ndarray | None = None) -> np.ndarray:
        """Count the selected nodes of each segment by label: [S, C]."""
        cells = self.of * classes + labels
        cells = cells if chosen is None else cells[chosen]
        return np.bincount(cells, minlength=len(self.count) * classes).reshape(-1, classes)

    def score(self, logits: Sequence[Tensor], metrics: Sequence[str]) -> list[dict[str, list[float]]]:
        """Return the scores of each client's model.

        Args:
            logits: [N, C] of each client.
            metrics: names from `metrics.wanted`, without custom metrics.
        """
        outputs = np.concatenate(
            [tensor.detach().cpu().numpy()[rows] for tensor, rows in zip(logits, self.rows, strict=True)]
        )
        classes = outputs.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 gives NaN for missing nodes
            values = self._of_guesses(outputs.argmax(axis=1), classes)
            values["count"], values[MAJORITY] = self.count.astype(float), self.majority
            values["loss"] = self.sums(surprise(outputs, self.y)) / self.count
            if classes == 2:
                values |= self._of_margin(margin(outputs))
            else:
                values |= self._of_chances(outputs, [name for name in OF_RANKS if name in metrics])
            for name in (name for name in metrics if name.startswith(chance.PREFIX)):
                levels = [client.chance(0, split, name, classes) for client in self.scored for split in SPLITS]
                values[name] = np.array(levels)
        columns = [values[name].tolist() for name in ("count", "loss", *metrics)]
        keys = [[f"{split}-{name}" for name in ("count", "loss", *metrics)] for split in SPLITS]
        scores: list[dict[str, list[float]]] = []
        for first in range(0, len(self.count), len(SPLITS)):
            of_client = enumerate(keys, start=first)
            scores.append(
                {key: [column[s]] for s, names in of_client for key, column in zip(names, columns, strict=True)}
            )
        return scores

    def _of_guesses(self, guess: np.ndarray, classes: int) -> dict[str, np.ndarray]:
        """Return the scores that need only predicted classes, [S] each."""
        hits, held = self.by_class(self.y, classes, guess == self.y), self.by_class(self.y, classes)
        f1 = 2 * hits / (held + self.by_class(guess, classes))
        return {
            "accuracy": hits.sum(axis=1) / self.count,
            "macro_f1": means_of_rows(f1),
            "balanced_accuracy": means_of_rows(hits / held),
            **{f"{OF_CLASS}{c}": f1[:, c] for c in range(classes)},
        }

    def _of_margin(self, scores: np.ndarray) -> dict[str, np.ndarray]:
        """Return the ranking scores for two classes, [S] each."""
        curves = Curves(scores, self.y == 1, self.count)
        best = curves.best().reshape(-1, len(SPLITS))[:, SPLITS.index("val")]
        return {
            "auc": curves.area(),
            "average_precision": curves.precision(),
            AT_THRESHOLD: curves.f1(np.repeat(best, len(SPLITS))),
        }

    def _of_chances(self, outputs: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the mean over classes of one-against-rest ranking scores, [S]."""
        if not names:
            return {}
        curves = [Curves(of, self.y == c, self.count) for c, of in enumerate(chances(outputs).T)]
        return {name: means_of_rows(np.stack([OF_RANKS[name](curve) for curve in curves], axis=1)) for name in names}
