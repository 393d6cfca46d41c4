"""What fits a user's own graph where nothing is said, and what a word of another library's is called here."""

from pathlib import Path

import pytest
import torch

import fedgraph_flwr
from fedgraph_flwr import partition
from fedgraph_flwr.config import compose, to_yaml
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.errors import KEY_ALIASES, VALUE_ALIASES, FedGraphError
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.party.tables.importing import save_dataset


def table(nodes=90, clients=0):
    """A ring of two classes, listed under so many clients."""
    y, here = torch.arange(nodes) % 2, torch.arange(nodes)
    none = torch.zeros(nodes, dtype=torch.bool)
    ends = torch.stack([here, (here + 2) % nodes])
    group = here * clients // nodes if clients else torch.zeros(0, dtype=torch.int64)
    x = torch.stack([y + 0.1 * torch.randn(nodes), torch.ones(nodes)], 1)
    return Graph(x, torch.cat([ends, ends.flip(0)], 1), y, none, none.clone(), none.clone(), 2, group=group)


def typed(people=60):
    """People of two classes who like films."""
    y, here = torch.arange(people) % 2, torch.arange(people)
    none = torch.zeros(people, dtype=torch.bool)
    likes = torch.stack([here.repeat(6), torch.randint(0, 12, (6 * people,))])
    knows = torch.stack([here.repeat(4), torch.randint(0, people, (4 * people,))])
    edges = {("person", "likes", "film"): likes, ("person", "knows", "person"): knows}
    return HeteroGraph({"person": people, "film": 12}, edges, "person", y, none, none.clone(), none.clone(), 2)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Three graphs of the user's own, by name."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    torch.manual_seed(0)
    for name, graph in (("single", table()), ("listed", table(clients=3)), ("films", typed())):
        save_dataset(graph, name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "cut", "model", "clients"),
    [("single", "louvain", "gcn", 10), ("listed", "planted", "gcn", 3), ("films", "random-edges", "rgcn", 10)],
)
def test_own_data_gets_the_cut_the_network_and_the_clients_that_fit(own, name, cut, model, clients):
    stored = own / "stored.yaml"
    stored.write_text(to_yaml(compose([])))  # of a run on the trial data, whose clients are planted
    file = f"dataset.path={own / 'data' / 'imported' / f'{name}.safetensors'}"
    for overrides, base in (([f"dataset={name}"], None), (["dataset=file", file], None), ([f"dataset={name}"], stored)):
        cfg = compose(overrides, base)
        assert (cfg.partition.name, cfg.model.name, cfg.num_clients) == (cut, model, clients), overrides
    said = compose([f"dataset={name}", "num_clients=4", "partition=random"])
    assert (said.num_clients, said.partition.name) == (4, "random")
    few = compose([f"dataset={name}", "rounds=1", f"out={own / 'run'}", *(["num_clients=3"] if clients > 3 else [])])
    assert run(few)["failures"] == {}
    assert partition.num_clients(few) == 3


def test_suggestions_know_the_users_own_data(own):
    with pytest.raises(FedGraphError, match=r"dataset 'listd' is unknown; did you mean 'listed'\?"):
        compose(["dataset=listd"])


@pytest.mark.parametrize(
    ("word", "message"),
    {
        "learning_rate=0.1": "its name here is train.lr",
        "train.learning-rate=0.1": "its name here is train.lr",
        "strategy.lr=0.1": "its name here is train.lr",
        "model.hidden_channels=8": "its name here is model.hidden",
        "epochs=5": "its name here is train.local_steps, steps per round",
        "batch=5": "its name here is train.batch_size, with train.sampler=neighbors or saint",
        "train.optim=adamw": "its name here is train.optimizer",
        "evaluation.metric=roc_auc": "its name here is auc",
        "train.loss=ce": "its name here is cross_entropy",
        "partition=iid": "its name here is random",
        "train.lrr=1": "did you mean 'train.lr'?",
    }.items(),
)
def test_usual_names_are_pointed_to_ours(word, message):
    from fedgraph_flwr.launch.checks import check_method

    with pytest.raises(FedGraphError) as caught:
        check_method(compose([word]))
    assert message in str(caught.value)


def test_every_usual_name_leads_to_a_key_that_is_there():
    stands = to_yaml(compose(["model=gat"]))
    others = {
        "the variable WANDB_PROJECT": ('environ.get("WANDB_PROJECT"', "tracking/wandb.py"),
        "the option --verbose": ("--verbose  print", "cli/run.py"),
    }
    for there in set(KEY_ALIASES.values()):
        if other := others.pop(there.split(",")[0], None):
            assert other[0] in Path(fedgraph_flwr.__path__[0], other[1]).read_text(), there
            continue
        key = there.split(",")[0].split("=")[0].split(":")[0]
        assert key == "nothing" or f"{key.rpartition('.')[2]}:" in stands, there
    assert not others
    assert not VALUE_ALIASES.keys() & set(VALUE_ALIASES.values())
