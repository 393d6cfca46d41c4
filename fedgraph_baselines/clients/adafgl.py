"""AdaFGL client (Li et al., ICDE 2024, arXiv:2401.11750): FedAvg, then local branches on a graph corrected by the FedAvg model.

    P̂ = softmax(f_θ(X, A))                                            θ the model of stage 1, the knowledge extractor
    R_uv = 1[cos(P̂_u, P̂_v) > τ],  u ≠ v;   A' = α A + (1 − α) R        the corrected graph
    X̃ = [X, Â'X, .., Â'^K X],   Â' = D'^{-1/2} (A' + I) D'^{-1/2}
    L = CE(Z) + MSE(Z, P̂) + Σ_j CE(O_j)                               Z, O_1..O_3 of `fedgraph_baselines.models.adafgl`
    Y = s (softmax Z + P̂) / 2 + (1 − s) Σ_j softmax(O_j) / 3
    s: accuracy on half of the training nodes of k steps of label propagation from the other half

s is the homophily confidence: it is high if edges join nodes of one class. The paper does not number its equations. The authors
published two implementations: xkLi-Allen/AdaFGL at 1ea2b20, called the authors' code here, and OpenFGL at a8f1ada. Differences:

- P̂ is a softmax in the paper. Both implementations apply a second softmax to it: main.py, line 51, then `getre_scale`
  (models/my_model.py, line 323), and again to predict. Rows become more alike: two one-hot rows of 7 classes have cosine 0.78
  instead of 0. Unsure rows of different classes can pass τ = 0.999. The default follows the paper, ``softmaxes=2`` both
  implementations.
- The paper and OpenFGL train both branches and blend them by s, the default. The authors' code trains one branch, by s ≥ 0.9
  (models/my_model.py, line 61): ``choose_from=0.9``.
- F of the signed propagation has three layers (models/my_model.py, lines 42 and 134), as here by default: ``message_layers``.
- The mean that recentres Q is over all N² pairs in both implementations (models/my_model.py, line 169), over the entries of A'
  here.
- ``negatives``: weights of unlike pairs, see `fedgraph_baselines.models.adafgl`.
- Both implementations propagate labels from nodes outside all masks, which are not read here. They also add the known labels
  again in each step. This scales the propagated values and hardly changes a class.
- The authors' code shares one PReLU slope per branch and uses a ChebNet extractor. Here each layer has a slope, and ``model=`` is
  the extractor.

Ours: confident predictions would give N² / C similar pairs. Each node therefore keeps only its ``alike`` most similar ones, and
Q has only the entries of A'. Pairs are searched in blocks of rows. With fewer than two training nodes s is 1/2.
Leaves the client: what FedAvg sends, in stage 1. In stage 2 it sends no array.
Cost: X̃ has (K + 1) F columns. A step of stage 2 evaluates four MLPs and E' C products. It helps where clients' graphs differ in
homophily.
"""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_baselines.methods import adafgl
from fedgraph_baselines.methods.adafgl import BETA, CONFIDENCE_STEPS, EXTRACTOR, STAGE, STEPS
from fedgraph_baselines.models.adafgl import Branches
from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase
from fedgraph_flwr.clients.client_part import assign, copied
from fedgraph_flwr.clients.descent import begin_training
from fedgraph_flwr.clients.replies import check_model
from fedgraph_flwr.clients.requirements import one_type
from fedgraph_flwr.clients.scoring import infer
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.layers import gcn_adjacency, proper_adjacency
from fedgraph_flwr.models.structure_learner import top_k
from fedgraph_flwr.numerics.sparse import Pattern, SmoothedRows, SparseMatrix, row_sums
from fedgraph_flwr.numerics.streams import own_stream, seeded
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree


def corrected(edges: sp.csr_matrix, alike: sp.csr_matrix, alpha: float) -> sp.csr_matrix:
    """Return A' from A and R, both [N, N] without loops; zero entries are removed."""
    mixed = sp.csr_matrix(alpha * edges + (1 - alpha) * alike)
    mixed.eliminate_zeros()
    mixed.sort_indices()
    return mixed


def normalised(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return D^{-1/2} (M + I) D^{-1/2}, where D has the row sums."""
    loops = matrix + sp.identity(matrix.shape[0], format="csr")
    scale = sp.diags(1 / np.sqrt(row_sums(loops)))
    return sp.csr_matrix(scale @ loops @ scale)


class AdaFGLClient(GraphClient, method=adafgl, requires=(one_type,)):
    """FedAvg's client, which trains `branches` once it has the extractor.

    Attributes:
        branches: the client's own MLPs.
    """

    calls_base: ClassVar[frozenset[str]] = frozenset({"train"})
    predicts_with: ClassVar[tuple[str, ...]] = (EXTRACTOR, "branches")

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        p, net = self.params, self.cfg.model
        with seeded(derive_seed(self.cfg.seed, "branches")):
            self.branches = Branches(
                self.graph.num_features,
                self.graph.num_classes,
                hidden=net.hidden,
                steps=STEPS,
                dropout=net.dropout,
                beta=BETA,
                negatives=p.negatives,
                message_layers=p.message_layers,
            ).to(self.device, self.dtype)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of θ and of the branches; those of the inactive stage have no gradient."""
        return [*super().parameters(), *self.branches.parameters()]

    @phase
    def extractor(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Store θ, the model of stage 1."""
        arrays = groups.get(EXTRACTOR, {})
        check_model(self, arrays)
        self.memory = {EXTRACTOR: {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}}
        self.load(self.memory)
        return {}, {}

    # --- the corrected graph ------------------------------------------------------------------------------------------

    @cached_property
    def knowledge(self) -> Tensor:
        """P̂ [N, C], the predictions of the extractor."""
        return infer(self).softmax(1)

    @property
    def compared(self) -> Tensor:
        """P̂ [N, C] for the comparison of nodes and the final prediction: with ``softmaxes=2``, its softmax."""
        return self.knowledge.softmax(1) if self.params.softmaxes == 2 else self.knowledge

    @cached_property
    def pairs(self) -> tuple[Pattern, Tensor, SparseMatrix]:
        """Pattern of A', values of R on it [E'], and Â'."""
        n = self.graph.num_nodes
        edges = proper_adjacency(self.graph.edge_index, n)
        unit = F.normalize(self.compared, dim=1)
        near = top_k(unit, unit, self.params.alike)
        close = (unit[near.row] * unit[near.col]).sum(1) > self.params.threshold
        row, col = (index[close].cpu().numpy() for index in (near.row, near.col))
        alike = sp.csr_matrix((np.ones(row.size), (row, col)), shape=(n, n))
        alike = sp.csr_matrix(alike.maximum(alike.T))
        mixed = corrected(edges, alike, self.params.alpha)
        rows, columns = mixed.tocoo().coords
        values = np.asarray(alike[rows, columns]).ravel() if rows.size else np.zeros(0)
        pattern = Pattern(torch.from_numpy(rows.astype(np.int64)), torch.from_numpy(columns.astype(np.int64)), n)
        matrix = SparseMatrix(normalised(mixed), self.dtype).to(self.device)
        return pattern.to(self.device), torch.from_numpy(values).to(self.device, self.dtype), matrix

    @cached_property
    def smooth(self) -> tuple[Any, Any]:
        """X and X̃, each in the format with the fastest product."""
        x, step = self.model.features(self.graph.x, self.dtype).to(self.device), self.pairs[2]
        if isinstance(x, SparseMatrix):
            return x, SmoothedRows(x, step, STEPS)
        blocks = [x]
        for _ in range(STEPS):
            blocks.append(step @ blocks[-1])
        return x, torch.cat(blocks, 1)

    @cached_property
    def homophily(self) -> float:
        """Homophily confidence s, in 0..1."""
        n, classes = self.graph.num_nodes, self.graph.num_classes
        if self.num_train < 2:
            return 0.5
        rng = own_stream(self.cfg.own_seed, self.graph.client, "confidence")
        order = self.train_nodes[torch.randperm(self.num_train, generator=rng).to(self.device)]
        known, held_out = order[: self.num_train // 2], order[self.num_train // 2 :]
        first = torch.full((n, classes), 1 / classes, dtype=torch.float64, device=self.device)
        first[known] = F.one_hot(self.y[known], classes).double()
        matrix = SparseMatrix(gcn_adjacency(self.graph.edge_index, n), torch.float64).to(self.device)
        y = first
        for _ in range(CONFIDENCE_STEPS):
            y = 0.5 * first + 0.5 * (matrix @ y)
        return float((y[held_out].argmax(1) == self.y[held_out]).double().mean())

    # --- stage 2 ------------------------------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """Share of the homophilous branch in the prediction: s, or 0 or 1 if one branch is chosen."""
        chosen = self.params.choose_from
        return float(self.homophily >= chosen) if chosen else self.homophily

    def like(self) -> Tensor:
        """Return Z [N, C]."""
        return self.branches.homophilous(self.smooth[1])

    def unlike(self) -> list[Tensor]:
        """Return O_1..O_3, each [N, C]."""
        x, smooth = self.smooth
        pairs, alike, _ = self.pairs
        return self.branches.heterophilous(x, smooth, pairs, alike)

    def loss(self) -> Tensor:
        """Return L in stage 2, or only the chosen branch's terms if ``choose_from`` is set."""
        if self.stage != STAGE:
            return super().loss()
        blend, parts = not self.params.choose_from, []
        if blend or self.share == 1:
            z = self.like()
            parts.append(self.task_loss(z) + F.mse_loss(z, self.knowledge))
        if blend or self.share == 0:
            parts.append(torch.stack([self.task_loss(o) for o in self.unlike()]).sum())
        return torch.stack(parts).sum()

    def train(self) -> float:
        """Train the model in stage 1 with the configured parts, the branches in stage 2 without them.

        Raises:
            FedGraphError: the client never received the extractor.
        """
        if self.stage != STAGE:
            return super().train()
        if EXTRACTOR not in self.memory:
            raise FedGraphError(
                f"client {self.graph.client} has no extractor (the model of stage 1), which stage 2 needs:"
                " its state was lost; keep the node's --state folder across restarts"
            )
        self.branches.train()
        loss = float(self.descend(begin_training(self)).detach())
        self.memory["branches"] = copied(self.branches.state_dict())
        return loss

    def predict(self) -> Tensor:
        """Return log Y [N, C] once the branches have trained, before that the logits of the current model."""
        if "branches" not in self.memory:
            return super().predict()
        self.branches.eval()
        with torch.no_grad():
            like = (self.like().softmax(1) + self.compared) / 2
            unlike = torch.stack([o.softmax(1) for o in self.unlike()]).mean(0)
            blend = self.share * like + (1 - self.share) * unlike
            return blend.clamp(min=torch.finfo(self.dtype).tiny).log()

    def load(self, tree: Tree) -> None:
        """Restore θ and the branches."""
        super().load(tree)
        for name in ("knowledge", "pairs", "smooth"):
            self.__dict__.pop(name, None)
        assign(self.shared, self.memory.get(EXTRACTOR, {}))
        assign(self.branches.state_dict(), self.memory.get("branches", {}))
