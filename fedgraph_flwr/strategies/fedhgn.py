"""FedHGN: schema-weight decoupling and coefficients alignment (Fu & King, IJCAI 2023, arXiv:2305.09729), Algorithm 1.

    (θ_c, v) ← Σ_{k ∈ S_t} (N_k / N_{S_t}) (θ_c^k, v^k)                                       line 8
    β^k is kept as client k sent it; for k ∉ S_t the previous one is kept                      line 9

Bases v and common weights θ_c are averaged by training nodes. Coefficients β are collected and sent
to the other clients as unordered pools. Pools are shuffled for every receiver, round and name (a
name is one kind of type in one layer).

| exchange          | down                       | up, floats                                      |
|-------------------|----------------------------|-------------------------------------------------|
| describe          |                            | N_k, number of classes, index                   |
| tell_coefficients |                            | β^k: T_k B (``first_pool: initial``)            |
| train             | v, θ_c, pools: B Σ_{k'} T_k' | v^k, θ_c^k, β^k: T_k B, N_k, loss, scores       |
| evaluate          | v, θ_c                     | scores (once, at the end)                       |

T_k counts the types of client k over all names. The server learns it; a client learns the sum over
the others. With ``privacy.secagg`` the server learns only sums of v and θ_c. Coefficients are not
masked, as the method needs each client's. Ablations (Table 4) by ``strategy.shared`` and
``private_schema: false``: with ``coefficients`` among the shared, their rows are averaged over the
clients that hold the type.

Reproduced: the paper's Table 3 on the published AIFB graphs, with FedHGN above FedAvg in all six
rows (`fedhgn_table3`). Not
reproduced: RE K=3, and the gain over Local. Half the rows have such a gain, and none if Local's
clients stop together. The order in Table 4 does not reproduce either: averaging only coefficients
(C) is better in six of six rows. Our explanation: few types receive a task gradient (13 of 104 at
RE K=3), and alignment moves the other types towards unused values. In addition, 83 validation nodes
are too few to select rounds reliably.

The authors' code starts with a zero vector for each client's coefficients, which pulls all of them
to 0 in round 1. Use ``first_pool: zeros`` to do the same. With ``initial`` the real ones are
collected, and ``empty`` waits for the first round.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import coefficients
from fedgraph_flwr.methods.coefficients import COEFFICIENTS, POOL, ROWS, TELL, shuffled_pool
from fedgraph_flwr.models import Model, probe
from fedgraph_flwr.models.hetero import HeteroModel
from fedgraph_flwr.strategies.base import GraphStrategy, GroupsFor
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays, Reply, derive_seed, weighted_mean
from fedgraph_flwr.wire.reply_schema import ArrayField, Axis, up_to
from fedgraph_flwr.wire.trees import Tree, as_arrays

MAX_TYPES = 2**16
"""Maximum number of types of a kind at one client."""


class FedHGN(GraphStrategy, method=coefficients):
    """FedAvg of parameters that no type owns; coefficients are collected, shuffled and forwarded.

    Attributes:
        coefficients: β [T_k, B] by client and name, as last received.
        rows: with a shared schema, the numbers of each client's types, [T_k] by name.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.coefficients: dict[int, Arrays] = {}
        self.rows: dict[int, Arrays] = {}

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Refuse averaged coefficients with private schemas."""
        averaged = [
            prefix for prefix in cfg.strategy.shared if f"{COEFFICIENTS}.".startswith(prefix)
        ]
        if averaged and cfg.strategy.private_schema:
            raise FedGraphError(
                f"strategy.shared contains '{averaged[0]}', but coefficients of private schemas cannot be averaged:"
                " set strategy.private_schema=false"
            )

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Describe coefficients β [T, B] by the names of the model's weights, for a client with T types, or these types."""
        if group == ROWS:
            return {
                name: ArrayField((up_to(MAX_TYPES),), "int64", 0, MAX_TYPES)
                for name in self.names
            }
        return self._vectors(None if phase == TELL else client)

    def _vectors(self, client: int | None) -> dict[str, ArrayField]:
        """Describe the coefficients; the number of types must not change after a client's first reply."""
        known = self.coefficients.get(-1 if client is None else client, {})
        types: dict[str, Axis] = {
            name: len(known[name]) if name in known else up_to(MAX_TYPES) for name in self.names
        }
        return {
            name: ArrayField((axis, self.model.num_bases), self.cfg.dtype)
            for name, axis in types.items()
        }

    def facts(self, phase: str) -> dict[str, int]:
        """Return the number of rows of each shared parameter."""
        return {name: len(array) for name, array in self.arrays.items()}

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Check with a shared schema that a client's rows are distinct types of the schema."""
        for name, rows in reply.groups.get(ROWS, {}).items():
            types = facts.get(f"{COEFFICIENTS}.{name}", MAX_TYPES)
            count = len(reply.groups[COEFFICIENTS][name])
            if len(rows) != count or (np.diff(rows) <= 0).any() or (rows >= types).any():
                raise FedGraphError(
                    f"client {reply.client} replied to phase '{phase}' with type numbers {ROWS}/{name} {list(rows)[:5]},"
                    f" expected distinct ascending numbers below {types}, one per row of its coefficients"
                )

    @cached_property
    def model(self) -> HeteroModel:
        """The model without types: names and lengths of coefficients do not depend on them."""
        return probe(self.cfg.model)  # type: ignore[return-value]

    @property
    def names(self) -> list[str]:
        """Names of the weights that have coefficients."""
        return list(self.model.coefficients)

    def num_features(self) -> Any:
        """Return no types, since the shapes of v and θ_c do not depend on them, unless the schema is shared."""
        return [0, 0] if self.cfg.strategy.private_schema else super().num_features()

    def setup(self) -> None:
        """Collect the initial coefficients, and with a shared schema the types of each client."""
        if self.params.first_pool != "initial" and self.cfg.strategy.private_schema:
            return
        for reply in self.request(TELL):
            self.rows[reply.client] = reply.groups.get(ROWS, {})
            if self.params.first_pool == "initial":
                self.coefficients[reply.client] = reply.groups[COEFFICIENTS]

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Send each client's pools: new permutations of the other clients' coefficients."""
        if not self.params.align:
            return {}
        names = [name.removeprefix("bases.") for name in arrays if name.startswith("bases.")]
        if self.params.first_pool == "zeros" and self.server_round == 1:
            zeros = {
                name: np.zeros((1, arrays[f"bases.{name}"].shape[0]), np.float32)
                for name in names
            }
            return {POOL: zeros} if len(self.clients) > 1 else {}
        names = list(next(iter(self.coefficients.values()), {}))
        return {
            client: {POOL: {name: self._pool(client, name) for name in names}}
            for client in self.cohort
        }

    def _pool(self, client: int, name: str) -> np.ndarray:
        seed = derive_seed(self.cfg.seed, POOL, self.server_round, client, name)
        return shuffled_pool(self.coefficients, client, name, np.random.default_rng(seed))

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Run lines 8 and 9; average rows of shared coefficients over the clients that hold the type."""
        for reply in reduced:
            self.coefficients[reply.client] = reply.groups[COEFFICIENTS]
        if MODEL in reduced:
            return reduced[MODEL]
        mean = weighted_mean(reduced.each(MODEL), self.weights(reduced.clients))
        for name in mean:
            if name.startswith(f"{COEFFICIENTS}."):
                mean[name] = self._over_holders(arrays[name], name, reduced.replies)
        return mean

    def _over_holders(
        self, previous: np.ndarray, name: str, replies: list[Reply]
    ) -> np.ndarray:
        """Return Σ_{k holds t} N_k β_t^k / Σ_{k holds t} N_k for each type t; the previous row if no client holds t."""
        total = np.zeros(previous.shape)
        weight = np.zeros(len(previous))
        for reply, n in zip(
            replies, self.weights([reply.client for reply in replies]), strict=True
        ):
            rows = self.rows[reply.client][name.removeprefix(f"{COEFFICIENTS}.")]
            total[rows] += n * reply.arrays[name][rows]
            weight[rows] += n
        held = weight > 0
        mixed = previous.copy()
        mixed[held] = total[held] / weight[held, None]
        return mixed

    def save(self) -> Tree:
        """Return the collected coefficients and rows."""
        return {COEFFICIENTS: self.coefficients, ROWS: self.rows}

    def load(self, tree: Tree) -> None:
        """Restore the state that `save` returned."""
        known = {group: as_arrays(tree.get(group, {})) for group in (COEFFICIENTS, ROWS)}
        self.coefficients = {
            int(client): named for client, named in known[COEFFICIENTS].items()
        }
        self.rows = {int(client): named for client, named in known[ROWS].items()}
