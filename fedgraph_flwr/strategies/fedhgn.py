"""FedHGN: schema-weight decoupling and coefficients alignment (Fu & King, IJCAI 2023, arXiv:2305.09729), Algorithm 1.

    (θ_c, v) ← Σ_{k ∈ S_t} (N_k / N_{S_t}) (θ_c^k, v^k)                                       line 8
    β^k is kept as client k sent it; for k ∉ S_t the former one stays                          line 9

Bases v and common weights θ_c are averaged by training nodes; coefficients β are collected and sent to the other clients as
unordered pools, shuffled anew for every receiver, round and name (a name is one kind of type in one layer).

| exchange          | down                       | up, floats                                      |
|-------------------|----------------------------|-------------------------------------------------|
| describe          |                            | N_k, number of classes, index                   |
| tell_coefficients |                            | β^k: T_k B (``first_pool: initial``)            |
| train             | v, θ_c, pools: B Σ_{k'} T_k' | v^k, θ_c^k, β^k: T_k B, N_k, loss, scores       |
| evaluate          | v, θ_c                     | scores (once, at the end)                       |

T_k counts the types of client k over all names. The server learns it; a client learns the sum over the others.
Ablations (Table 4) by ``strategy.shared`` and ``private_schema: false``: with ``coefficients`` among the shared, their rows
are averaged over the clients that hold the type.

The authors' program starts with a zero vector in place of each client's coefficients, which pulls all of them to 0 in
round 1; ``first_pool: zeros`` does the same, ``initial`` collects the real ones, ``empty`` waits for the first round.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import Message

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.messages import TRAIN, Arrays, Reply, derive_seed
from fedgraph_flwr.methods.coefficients import COEFFICIENTS, POOL, ROWS, TELL, Params, shuffled_pool
from fedgraph_flwr.strategies.base import GraphStrategy, GroupsFor


class FedHGN(GraphStrategy):
    """Averages what names no type; collects and shuffles the rest.

    Attributes:
        coefficients: β [T_k, B] by client and name, as last sent.
        rows: where the schema is shared, the numbers of each client's types, [T_k] by name.
    """

    Params: ClassVar[type] = Params

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.coefficients: dict[int, Arrays] = {}
        self.rows: dict[int, Arrays] = {}
        averaged = [prefix for prefix in self.cfg.strategy.shared if f"{COEFFICIENTS}.".startswith(prefix)]
        if averaged and self.params.private_schema:
            raise FedGraphError(
                f"strategy.shared holds '{averaged[0]}': averaging coefficients needs strategy.private_schema=false"
            )

    def num_features(self) -> Any:
        """No types: the shapes of v and θ_c depend on none, unless the schema is shared."""
        return [0, 0] if self.params.private_schema else super().num_features()

    def setup(self) -> None:
        """Collect the initial coefficients, and where the schema is shared, who holds which types."""
        if self.params.first_pool != "initial" and self.params.private_schema:
            return
        for reply in self.ask(TELL):
            self.rows[reply.client] = reply.groups.get(ROWS, {})
            if self.params.first_pool == "initial":
                self.coefficients[reply.client] = reply.groups[COEFFICIENTS]

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Each client's pools: fresh permutations of what the others have sent."""
        if not self.params.align:
            return {}
        names = [name.removeprefix("bases.") for name in arrays if name.startswith("bases.")]
        if self.params.first_pool == "zeros" and self.server_round == 1:
            zeros = {name: np.zeros((1, arrays[f"bases.{name}"].shape[0]), np.float32) for name in names}
            return {POOL: zeros} if len(self.clients) > 1 else {}
        names = list(next(iter(self.coefficients.values()), {}))
        return {client: {POOL: {name: self._pool(client, name) for name in names}} for client in self.cohort}

    def _pool(self, client: int, name: str) -> np.ndarray:
        seed = derive_seed(self.cfg.seed, POOL, self.server_round, client, name)
        return shuffled_pool(self.coefficients, client, name, np.random.default_rng(seed))

    def aggregate(self, arrays: Arrays, replies: list[Reply]) -> Arrays:
        """Lines 8 and 9; shared coefficients row by row over the clients that hold the type."""
        for reply in replies:
            self.coefficients[reply.client] = reply.groups[COEFFICIENTS]
        mean = super().aggregate(arrays, replies)
        for name in mean:
            if name.startswith(f"{COEFFICIENTS}."):
                mean[name] = self._over_holders(arrays[name], name, replies)
        return mean

    def _over_holders(self, former: np.ndarray, name: str, replies: list[Reply]) -> np.ndarray:
        """Σ_{k holds t} N_k β_t^k / Σ_{k holds t} N_k for every type t; the former row where nobody does."""
        total, weight = np.zeros(former.shape), np.zeros(len(former))
        for reply, n in zip(replies, self.weights(replies), strict=True):
            rows = self.rows[reply.client][name.removeprefix(f"{COEFFICIENTS}.")]
            total[rows] += n * reply.arrays[name][rows]
            weight[rows] += n
        held = weight > 0
        mixed = former.copy()
        mixed[held] = total[held] / weight[held, None]
        return mixed

    def _checked(self, phase: str, message: Message, sender: str) -> Reply:
        """A reply with coefficients must hold finite vectors of the right length, under the names that are known."""
        reply = super()._checked(phase, message, sender)
        if phase in (TRAIN, TELL):
            sent = reply.groups.get(COEFFICIENTS)
            if sent is None:
                raise FedGraphError(f"{sender} sent no coefficients")
            known = next(iter(self.coefficients.values()), sent)
            if sent.keys() != known.keys():
                raise FedGraphError(f"{sender} sent coefficients of {sorted(sent)}, expected {sorted(known)}")
            for name, beta in sent.items():
                width = next(iter(known.values())).shape[1]
                if beta.ndim != 2 or beta.shape[1] != width or not np.isfinite(beta).all():
                    raise FedGraphError(
                        f"{sender} sent coefficients '{name}' of shape {beta.shape}, expected [T, {width}]"
                    )
        return reply

    def server_state(self) -> dict[str, torch.Tensor]:
        """The collected coefficients and rows."""
        groups = {COEFFICIENTS: self.coefficients, ROWS: self.rows}
        return {
            f"{group}/{client}/{name}": torch.from_numpy(np.ascontiguousarray(array))
            for group, known in groups.items()
            for client, named in known.items()
            for name, array in named.items()
        }

    def load_server_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take back what `server_state` gave."""
        self.coefficients, self.rows = {}, {}
        for key, tensor in state.items():
            group, client, name = key.split("/")
            known = self.coefficients if group == COEFFICIENTS else self.rows
            known.setdefault(int(client), {})[name] = tensor.numpy()
