"""FedTAD (Zhu et al., IJCAI 2024, arXiv:2404.14061), server side: FedAvg, then class-wise distillation of clients' models.

    θ = Σ_i p_i θ_i                                                                                    FedAvg
    x̂ = g(z, y),  z ~ N(0, I), y balanced;  Â its nearest neighbours                           `fedgraph_baselines.models.fedtad`
    d(θ) = Σ_i Σ_c Φ_i[c] mean_{v: y_v = c} |f_θ(x̂)_v − f_{θ_i}(x̂)_v|                          logits, mean over channels
    generator: min Σ_i Σ_c Φ_i[c] CE(f_{θ_i}(x̂)_c, c) − λ1 d(θ) + λ2 n exp(−mean ‖z_a − z_b‖² ‖x̂_a − x̂_b‖₁)
    student:   min d(θ) over θ, x̂ fixed

After each average: ``epochs`` times one generator step and five student steps. The number of
clients that replied is n. The weight Φ_i[c] is client i's share of the reliability for class c over all clients
(`fedgraph_baselines.methods.fedtad`). The generator and both Adam states are kept between rounds; models run without dropout. The
generator's gradient of d passes through the student only, as in the authors' code (train_fedtad.py, line 269). A gradient
through the teachers too makes distillation harmful. On Cora (10 clients of about equal size, 20 rounds, seed 0) FedTAD then
ends at 75.9 % instead of 81.4; FedAvg ends at 81.5. Written from memory of the paper, so without its equation numbers, and
checked against the authors' code (zyl24/FedTAD 3285d54), which differs in six points:

- It builds the topology embedding from node ids of sampled walks (util/task_util.py, lines 79-105), which outweigh the features.
  Here it is the return probability, as in the paper.
- It trains the student with dropout (train_fedtad.py, line 286), and its networks drop hidden values in evaluation too, which
  includes the teachers and all scores (model.py, line 18).
- It averages models by their clients' nodes (train_fedtad.py, line 181); here ``strategy.weighting`` says by what, by default
  training nodes.
- It sets weight decay 5e-4 for generator and student (lines 85 and 86); here the key ``weight_decay``, 0 by default.
- Its λ1 weighs the cross-entropy (line 273); here it weighs d, as in the equation above. Both are 1 by default.

With 0 epochs FedTAD equals FedAvg.
Leaves a client: what FedAvg sends, and Ψ_i, once. The server reads every client's model.
Cost: the server holds n models and runs 6 · epochs · (n + 1) passes over 100 nodes per
round. Each client computes 5 E N products, once. It helps where clients know different classes well.
"""

from logging import WARNING
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_baselines.methods import fedtad
from fedgraph_baselines.methods.fedtad import NODES, NOISE, RELIABILITY, STUDENT_STEPS, teacher_weights
from fedgraph_baselines.models.fedtad import Generator, diversity, nearest_edges
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.logs import log
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.optim import Adam
from fedgraph_flwr.numerics.streams import seeded
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import DESCRIBE, Arrays, Reply, derive_seed, weighted_mean
from fedgraph_flwr.wire.trees import as_arrays, flatten, unflatten

ROUNDING = 1e-9  # relative rounding error of a sum of cosines


class FedTAD(GraphStrategy, method=fedtad):
    """FedAvg with distillation; `memory` contains the generator and the moments of both optimisers."""

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require that the server receives all parameters of the model."""
        values = {name for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
        if missing := values - model.shared(cfg.strategy.shared, cfg.strategy.private).keys():
            what = f"strategy={cfg.strategy.name} runs clients' models on the server, but {min(missing)} is private"
            raise FedGraphError(f"{what}: leave out strategy.shared and strategy.private")

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Check that Ψ_i has a value per class and sums to at most the number of training nodes, as no cosine exceeds 1."""
        if phase != DESCRIBE:
            return
        sums, classes, nodes = reply.metrics[RELIABILITY], reply.metrics["num_classes"], reply.metrics["num_train"]
        if len(sums) != classes or sum(sums) > nodes * (1 + ROUNDING):
            what = f"client {reply.client} replied to phase '{phase}' with {RELIABILITY} of {len(sums)} classes"
            expected = f"{classes} classes and at most its {nodes} training nodes"
            raise FedGraphError(f"{what} that sum to {sum(sums):g}, expected {expected}")

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return θ after distillation."""
        replies = reduced.replies
        mean = weighted_mean([reply.arrays for reply in replies], self.weights(reduced.clients))
        if not self.params.epochs:
            return mean
        with seeded(derive_seed(self.cfg.seed, "distillation", self.server_round)):
            return self.distilled(mean, replies)

    def distilled(self, mean: Arrays, replies: list[Reply]) -> Arrays:
        """Distil the teachers' logits on generated nodes into θ; return the mean if the result is not finite."""
        student, teachers = self.network(mean), [self.network(reply.arrays) for reply in replies]
        share = self.teacher_weights([reply.client for reply in replies])
        made = Generator(NOISE, self.num_features(), self.agreed("num_classes")).to(self.dtype)
        if "generator" in self.memory:
            made.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in self.memory["generator"].items()})
        makes = self.optimizer("maker", made.parameters())
        learns = self.optimizer("learner", student.parameters())
        for _ in range(self.params.epochs):
            z, y = self.noise()
            makes.zero_grad()
            self.generator_loss(made(z, y), z, y, student, teachers, share).backward()
            makes.step()
            x = made(z, y).detach()
            inputs = self.inputs(x, student)
            with torch.no_grad():
                teacher_logits = [teacher(inputs) for teacher in teachers]
            for _ in range(STUDENT_STEPS):
                learns.zero_grad()
                disagreement(student(inputs), teacher_logits, y, share).backward()
                learns.step()
        if not all(bool(parameter.isfinite().all()) for net in (student, made) for parameter in net.parameters()):
            log(
                WARNING,
                "round %d: distillation produced NaN or infinite values; using the average without distillation",
                self.server_round,
            )
            return mean
        self.memory = as_arrays(
            {
                "generator": made.state_dict(),
                "maker": unflatten(makes.state()),
                "learner": unflatten(learns.state()),
            }
        )
        trained = student.state_dict()
        return {name: trained[name].numpy().copy() for name in mean}

    def teacher_weights(self, clients: list[int]) -> Tensor:
        """Return Φ [clients, C] of these clients, normalised over all connected clients."""
        known = sorted(self.clients)
        sums = torch.tensor([self.clients[client].description[RELIABILITY] for client in known], dtype=torch.float64)
        return teacher_weights(sums)[[known.index(client) for client in clients]].to(self.dtype)

    def generator_loss(
        self, x: Tensor, z: Tensor, y: Tensor, student: Model, teachers: list[Model], share: Tensor
    ) -> Tensor:
        """Return the generator's loss for its nodes [n, F], their noise z and classes y, and Φ [clients, C]."""
        inputs = self.inputs(x, student)
        teacher_logits = [teacher(inputs) for teacher in teachers]
        known = sum(
            (
                by_class(F.cross_entropy(logits, y, reduction="none"), y, weights)
                for logits, weights in zip(teacher_logits, share, strict=True)
            ),
            x.new_zeros(()),
        )
        apart = disagreement(student(inputs), [logits.detach() for logits in teacher_logits], y, share)
        return known - self.params.lam1 * apart + self.params.lam2 * len(teachers) * diversity(z, x)

    def noise(self) -> tuple[Tensor, Tensor]:
        """Draw z [n, noise] and y [n]; class counts differ by at most one."""
        classes = self.agreed("num_classes")
        n = max(NODES, classes)
        return torch.randn(n, NOISE, dtype=self.dtype), torch.arange(n) % classes

    @property
    def dtype(self) -> torch.dtype:
        """Type of all parameters."""
        return torch.float64 if self.cfg.dtype == "float64" else torch.float32

    def network(self, arrays: Arrays) -> Model:
        """Return the model with these parameters, without dropout."""
        model = self.build_model().to(self.dtype)
        model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, strict=False)
        return model.eval()

    def inputs(self, x: Tensor, model: Model) -> Any:
        """Return the model's inputs for generated nodes [n, F], differentiable in x."""
        n = x.size(0)
        edges, classes = nearest_edges(x, self.params.neighbours), self.agreed("num_classes")
        graph = Graph(x, edges, torch.full((n,), -1), **unsplit(n), num_classes=classes)
        return model.prepare(graph, dtype=self.dtype)

    def optimizer(self, name: str, parameters: Any) -> Adam:
        """Return Adam with the moments of the last round."""
        made = Adam(parameters, lr=self.params.lr, weight_decay=self.params.weight_decay)
        if name in self.memory:
            made.load_state(flatten(self.memory[name]))
        return made


def by_class(values: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """Return Σ_c Φ[c] mean_{v: y_v = c} values_v; values and y [n], Φ [C]."""
    count = torch.bincount(y, minlength=share.numel()).clamp(min=1).to(values)
    return share @ (values.new_zeros(share.numel()).index_add(0, y, values) / count)


def disagreement(student: Tensor, teachers: list[Tensor], y: Tensor, share: Tensor) -> Tensor:
    """Return d(θ) from logits [n, C] of the student and of each teacher, y [n] and Φ [clients, C]."""
    apart = [
        by_class((student - logits).abs().mean(1), y, weights) for logits, weights in zip(teachers, share, strict=True)
    ]
    return torch.stack(apart).sum()
