"""Tables of three banks, linked, train to the same bits as the partition of the whole graph: inline, on Ray and on a fleet."""

import itertools
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.far_ends import with_shares
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline, run_ray
from fedgraph_flwr.partition.clients import cut, pool
from fedgraph_flwr.party.use.predict import load_node, load_predictor
from tests.engine.fleet import Fleet
from tests.party.linked_banks import BANKS, banks
from tests.support import Finished

FORMS = [
    ["fedgcn"],
    ["fedavg", "model=sage"],
    ["fedstruct", "strategy.features=degree"],
    ["fedstruct"],
    ["fedstruct", "strategy.prune=5"],
    ["fedstruct_a"],
    ["fedstruct_private"],
    ["fedsage_true"],
]
forms = pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=() if form == ["fedgcn"] else pytest.mark.slow, id=" ".join(form)) for form in FORMS],
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of client files: from the banks' CSV files by `import` and `link`, and cut from the whole graph."""
    place = tmp_path_factory.mktemp("between")
    made = banks(place, accounts=60, payments=500, data=False)
    names = [str(place / f"{bank}.safetensors") for bank in BANKS]
    for bank, name in zip(BANKS, names, strict=True):
        made.client(bank).save(name)
    share = ["income", "age:exact"]
    assert cli.main(["link", "--simulate", *names, "--share", ",".join(share), "--out", str(place / "linked")]) == 0
    linked = [ClientGraph.load(place / f"linked/client_{client:04d}.safetensors") for client in range(3)]
    starts = [0, *np.cumsum([graph.num_nodes for graph in linked]).tolist()]
    parts = [torch.arange(a, b) for a, b in itertools.pairwise(starts)]
    (place / "partitioned").mkdir()
    for graph in with_shares(cut(made.whole(linked), parts), share, floor=1, seed=0):
        graph.save(place / f"partitioned/client_{graph.client:04d}.safetensors")
    return place


@pytest.fixture
def train(folders, tmp_path, monkeypatch):
    """``train("linked", "strategy", "key=value", ...)``: a short run on one of the folders."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))

    count = itertools.count()

    def run(folder, method, *overrides, engine=run_inline):
        defaults = [
            f"graph={folders / folder}",
            f"strategy={method}",
            "rounds=3",
            "model.hidden=8",
            "checkpoint_every=0",
        ]
        defaults += ["engine=ray", "ray.actors=2"] if engine is run_ray else []
        cfg = with_folder(compose([*defaults, *overrides, f"out={tmp_path / 'runs' / str(next(count))}"]))
        return Finished(cfg, engine(cfg))

    return run


def assert_same_run(actual, expected):
    """The same parameters, scores and predictions of every client, bit for bit."""
    assert actual.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert np.array_equal(actual.arrays[name], array), name
    assert actual.summary["metrics"] == expected.summary["metrics"]
    for client in range(3):
        predictor, wanted = (load_predictor(run.out, client) for run in (actual, expected))
        assert torch.equal(predictor.predict(predictor.client_graph).logits, wanted.predict(wanted.client_graph).logits)


@pytest.mark.slow
def test_linked_files_are_the_partition(folders):
    for client in range(3):
        name = f"client_{client:04d}.safetensors"
        linked_graph, wanted = (ClientGraph.load(folders / folder / name) for folder in ("linked", "partitioned"))
        assert linked_graph.cut_out.size(1) > 50
        for f in fields(wanted):
            if isinstance(tensor := getattr(wanted, f.name), Tensor) and f.name not in ("far_name", "book", "book_ids"):
                assert torch.equal(getattr(linked_graph, f.name), tensor), f.name


@forms
def test_a_run_on_linked_files_is_that_of_the_partition(form, train):
    assert_same_run(train("linked", *form), train("partitioned", *form))


@pytest.mark.slow
@pytest.mark.xdist_group("one ray")
@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("form", [["fedgcn"], ["fedavg", "model=sage"], ["fedstruct"], ["fedsage_true"]], ids=" ".join)
def test_ray_gives_the_bits_of_the_inline_engine(form, train):
    assert_same_run(train("linked", *form, engine=run_ray), train("partitioned", *form))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Files of banks that share customers, which `link` made one node of several clients."""
    place = tmp_path_factory.mktemp("shared")
    made = banks(place, accounts=60, payments=0, data=False)
    rng, first = np.random.default_rng(0), made.nodes[BANKS[0]].head(10).assign(id=[f"S{i}" for i in range(10)])
    for bank, table in made.nodes.items():  # the first ten customers are at all banks; payments join others of one bank
        table.loc[table.index[:10]] = first.to_numpy()
        source, target = np.unique(rng.integers(10, len(table), size=(2, 240)), axis=1)
        ids = table["id"].to_numpy()
        made.books[bank] = _book(made.books[bank], bank, ids[source], ids[target])
    names = [str(place / f"{bank}.safetensors") for bank in BANKS]
    for bank, name in zip(BANKS, names, strict=True):
        made.client(bank).save(name)
    overrides = ["link", "--simulate", *names, "--match", "ids", "--entities", "overlap", "--min-shared", "1"]
    assert cli.main([*overrides, "--out", str(place / "linked")]) == 0
    return place


def _book(like, bank, source, target):
    """Payments within one bank, with the columns of its book."""
    import pandas as pd

    values = {"from_bank": bank, "to_bank": bank, "source": source, "target": target}
    defaults = {"date": "2026-01-01", "amount": "1", "ref": [f"{bank}{i}" for i in range(len(source))]}
    table = pd.DataFrame({**defaults, **values})
    return table.reindex(columns=like.columns, fill_value="1")


@pytest.mark.slow
@pytest.mark.xdist_group("one ray")
@pytest.mark.usefixtures("one_ray")
def test_fedgl_shares_nodes_on_linked_files_to_the_same_bits(shared, train, monkeypatch):
    linked = [ClientGraph.load(shared / f"linked/client_{client:04d}.safetensors") for client in range(3)]
    assert sum(graph.num_nodes for graph in linked) == linked[0].num_global_nodes + 20
    (shared / "partitioned").mkdir()
    for graph in cut(pool(linked), [graph.node_id for graph in linked]):
        graph.save(shared / f"partitioned/client_{graph.client:04d}.safetensors")
    overrides = ["strategy.every=1"]
    runs = [train(shared / folder, "fedgl", *overrides) for folder in ("linked", "partitioned")]
    assert_same_run(*runs)
    assert_same_run(train(shared / "linked", "fedgl", *overrides, engine=run_ray), runs[0])


@pytest.mark.fleet
@pytest.mark.faults
def test_a_fleet_gives_the_bits_of_the_inline_engine_and_its_parties_predict(folders, train, tmp_path):
    """Three SuperNodes with linked files; then each party predicts its own nodes from its state folder alone.

    CI compares FedGCN's and FedStruct's bits in `tests.engine.test_between_page`.
    """
    machines = Fleet(tmp_path, folders / "linked")
    try:
        machines.start()
        for number, form in enumerate(FORMS):
            fixed = ["num_clients=3", "rounds=2", "model.hidden=8", "checkpoint_every=0"]
            run = machines.run(tmp_path / f"fleet{number}", f"strategy={form[0]}", *fixed, *form[1:])
            inline = train("partitioned", *form, *fixed)
            for name, array in inline.arrays.items():
                assert np.array_equal(run.arrays[name], array), (form, name)
            assert run.summary["metrics"] == inline.summary["metrics"], form
            for client in range(3):
                predictor, wanted = load_node(tmp_path / f"state_{client}"), load_predictor(inline.out, client)
                assert predictor.name == form[0]
                assert torch.equal(
                    predictor.predict(predictor.client_graph).logits, wanted.predict(wanted.client_graph).logits
                ), form
    finally:
        machines.stop()
