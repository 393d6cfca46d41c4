"""FedAvg of NVFlare's recipe on clients' files, in its simulator; the same file is the script of each client.

NVFLARE/bin/python benchmarks/peers/nvflare_job.py CLIENTS OUT ROUNDS SEED
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

HIDDEN, DROPOUT, LR, DECAY, STEPS = 64, 0.5, 0.01, 5e-4, 3
"""The values of ``model=gcn model.hidden=64`` and of ``train`` in conf/config.yaml."""


class Net(nn.Module):
    """Two layers of PyG's ``GCNConv``."""

    def __init__(self, features: int = 1433, classes: int = 7):
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.first = GCNConv(features, HIDDEN, cached=True)
        self.second = GCNConv(HIDDEN, classes, cached=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits [N, C]."""
        h = torch.relu(self.first(x, edge_index))
        return self.second(F.dropout(h, DROPOUT, self.training), edge_index)


def client(folder: Path, out: Path, seed: int) -> None:
    """Take part: score the received model, train it, and send it."""
    import nvflare.client as flare

    torch.set_num_threads(1)
    flare.init()
    site = flare.get_site_name()
    torch.manual_seed(seed)
    arrays = {name: torch.from_numpy(array) for name, array in np.load(folder / f"{site}.npz").items()}
    x, edge_index, y = (arrays[name] for name in ("x", "edge_index", "y"))
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=DECAY)
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        model.eval()
        with torch.no_grad():
            right = (model(x, edge_index).argmax(dim=1) == y).double()
        scores = [float(right[arrays[name]].mean()) for name in ("val", "test")]
        with (out / f"{site}.txt").open("a") as file:
            file.write(f"{scores[0]} {scores[1]}\n")
        model.train()
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x, edge_index)[arrays["train"]], y[arrays["train"]]).backward()
            optimizer.step()
        params = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        weight = {"NUM_STEPS_CURRENT_ROUND": int(arrays["train"].sum())}
        flare.send(flare.FLModel(params=params, metrics={"accuracy": scores[0]}, meta=weight))


def job(folder: Path, out: Path, rounds: int, seed: int) -> None:
    """Run the recipe in the simulator, one thread for each client."""
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.recipe import SimEnv

    torch.manual_seed(seed)
    clients = len(list(folder.glob("site-*.npz")))
    recipe = FedAvgRecipe(
        name="cora",
        model=Net(),
        min_clients=clients,
        num_rounds=rounds + 1,
        train_script=__file__,
        train_args=f"--client {folder} {out} {seed}",
    )
    recipe.execute(SimEnv(num_clients=clients, num_threads=clients, workspace_root=str(out / "nvflare")))


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "--client":
        client(Path(words[1]), Path(words[2]), int(words[3]))
    else:
        job(Path(words[0]), Path(words[1]), int(words[2]), int(words[3]))
