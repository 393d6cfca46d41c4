"""The authors' form of FedDEP (Zhang et al., 2024, arXiv:2401.04336), server side: clients train each other's generators.

    propose   parameters of each client's generator, and its inputs for every node                      ``generator_rounds`` times
    judge     both to all other clients; the sum of their gradients of R for each generator                               the same
    mend      each client takes its last step and generates embeddings                                                        once
    train     FedAvg of a model that adds a linear map of generated embeddings in every layer

As in the authors' code (zkzhangke/FedDEP at cf50e38, gfl/feddep/worker.py and trainer.py), which OpenFGL copies. The server and
all clients receive an embedding of every node. Where that is not acceptable, use ``strategy=feddep``, which exchanges few means.
Leaves a client: see `feddep_authors.client`.
Cost: 2 generator_rounds + 1 exchanges before round 1; each sends M generators and all embeddings to each client.
"""

from collections.abc import Mapping
from typing import ClassVar

from feddep_authors import shared
from feddep_authors.model import LocalGenerator
from feddep_authors.shared import EMBEDDINGS, GENERATOR, GRADIENTS, Params
from fedgraph_baselines.methods.impaired import say_added
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, up_to


class FedDEPAuthors(GraphStrategy):
    """FedAvg after clients trained each other's generators."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(shared.uplink)

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Describe a generator, embeddings, or gradients of every client's generator."""
        p = self.params
        if group == EMBEDDINGS:
            return {"rows": ArrayField((up_to(LARGEST), p.latent), self.cfg.dtype)}
        made = LocalGenerator(p.latent, list(p.widths), p.neighbours, self.cfg.model.hidden, 0)
        if group == GENERATOR:
            return {name: ArrayField(tuple(t.shape), self.cfg.dtype) for name, t in made.shared.items()}
        shapes = {name: tuple(t.shape) for name, t in made.trained.items()}
        return {
            f"{i}.{name}": ArrayField(shape, self.cfg.dtype) for i in self.clients for name, shape in shapes.items()
        }

    def setup(self) -> None:
        """Train the generators, and let all clients generate."""
        if not self.params.neighbours:
            return
        gradients: dict[int, Groups] = {}
        for _ in range(self.params.generator_rounds):
            replies = self.request_all("propose", gradients)
            proposed = {reply.client: reply.groups for reply in replies}
            groups = {
                j: {
                    GENERATOR: {
                        f"{i}.{n}": array
                        for i, proposal in proposed.items()
                        if i != j
                        for n, array in proposal[GENERATOR].items()
                    },
                    EMBEDDINGS: {str(i): proposal[EMBEDDINGS]["rows"] for i, proposal in proposed.items() if i != j},
                }
                for j in proposed
            }
            total = self.request("judge", groups)[GRADIENTS]
            gradients = {i: {GRADIENTS: {}} for i in proposed}
            for key, array in total.items():
                i, _, name = key.partition(".")
                gradients[int(i)][GRADIENTS][name] = array.astype(self.cfg.dtype)
        say_added(self.request_all("mend", gradients).replies, self.cfg.strategy.name)
