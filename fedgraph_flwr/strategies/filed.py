"""What clients stored for a run that resumes: each restores the last state that it stored, though it was down since."""

from collections.abc import Iterable

import numpy as np

from fedgraph_flwr.wire.trees import Tree, as_arrays


class Filed:
    """The last round after which each client stored its state.

    Args:
        rounds: by client; others stored none.
        last: round of the last checkpoint.

    Attributes:
        missing: clients that have not restored their state since the run was resumed.
    """

    def __init__(self, rounds: dict[int, int] | None = None, last: int = 0):
        self.rounds = dict(rounds or {})
        self.last = last
        self.missing: set[int] = set()

    def note(self, clients: Iterable[int], server_round: int) -> None:
        """Note that clients stored their state after a round."""
        self.rounds |= dict.fromkeys(clients, server_round)
        self.last = server_round

    def text(self, clients: Iterable[int]) -> str:
        """Name clients, and the rounds whose state they have."""
        rounds = {client: self.rounds.get(client) for client in clients}
        return ", ".join(
            f"client {client} ({f'round {stored}' if stored else 'none'})"
            for client, stored in rounds.items()
        )

    def save(self, clients: Iterable[int]) -> Tree:
        """Return those of the clients whose state is not of the last checkpoint, for `load`; 0: they have none."""
        rounds = {client: self.rounds.get(client, 0) for client in clients}
        behind = {str(client): np.array(n) for client, n in rounds.items() if n < self.last}
        return {"filed": behind} if behind else {}

    @classmethod
    def load(cls, tree: Tree, clients: Iterable[int], last: int) -> "Filed":
        """Return what a checkpoint of round ``last`` says of the clients that took part before it."""
        behind = {int(client): int(stored) for client, stored in as_arrays(tree).items()}
        rounds = {client: behind.get(client, last) for client in clients}
        return cls({client: stored for client, stored in rounds.items() if stored}, last)
