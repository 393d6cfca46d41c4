"""Parameters of a method outside the model: trained with it, and kept like all private state."""

import torch

from fedgraph_flwr.clients.base import GraphClient
from tests.nodes import rebuilt_clients
from tests.support import same_result

WORDS = [f"strategy.client={__name__}:Scaling", "train.optimizer_state=keep", "model.dropout=0"]


class Scaling(GraphClient):
    """Scales its logits, and counts its rounds."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = torch.nn.Parameter(torch.ones(1, dtype=self.dtype))

    def extra_parameters(self):
        return {"own/scale": self.scale}

    def logits(self, inputs):
        return super().logits(inputs) * self.scale

    def train(self):
        self.memory["rounds"] = self.memory.get("rounds", torch.zeros(1)) + 1
        return super().train()


def test_they_are_trained_stored_and_restored(run, monkeypatch, tmp_path):
    seen, train = [], Scaling.train

    def spy(client):
        seen.append((client, client.graph.client, client.scale.item(), client.optimizer))
        return train(client)

    monkeypatch.setattr(Scaling, "train", spy)
    whole = run(*WORDS)
    scales = [[scale for _, number, scale, _ in seen if number == client] for client in range(3)]
    assert all(first == 1 and len({first, second, third}) == 3 for first, second, third in scales)
    held = seen[-1][0]
    assert held.save()["own"]["scale"].equal(held.scale.detach())
    assert held.optimizer.parameters[-1] is held.scale
    half = run(*WORDS, "rounds=1", "checkpoint_every=1", f"out={tmp_path / 'half'}")
    same_result(run(*WORDS, f"resume={half.out}", f"out={half.out}"), whole)
    rebuilt_clients(monkeypatch)
    same_result(run(*WORDS), whole)
    assert [{name: float(value) for name, value in client.memory.items()} for client, *_ in seen[-3:]] == [
        {"rounds": 3}
    ] * 3
