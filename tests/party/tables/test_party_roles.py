"""Parties of different kinds: a network with payments only, banks with accounts only, and what each takes part in."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.far_ends import column_names
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.data.schema import Schema
from fedgraph_flwr.partition import load

PAYMENTS = [
    "columns.edge_label=fraud",
    "edge_columns=amount",
    "columns.time=t",
    "party_columns=from_bank,to_bank",
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A network's payments, and accounts of banks A and B; B knows no balance of some."""
    folder = tmp_path_factory.mktemp("roles")
    rng = np.random.default_rng(0)
    ids = {bank: [f"{bank}{i}" for i in range(15)] for bank in "AB"}
    every = np.array([*ids["A"], *ids["B"]])
    ends = rng.choice(every, (2, 200))
    pay = pd.DataFrame({"source": ends[0], "target": ends[1], "amount": rng.lognormal(5, 1, 200).round(2)})
    pay = pay.assign(t=np.sort(rng.integers(0, 10**6, 200)), fraud=rng.choice(["no", "yes"], 200))
    pay = pay.assign(from_bank=pay.source.str[0], to_bank=pay.target.str[0])
    pay.to_csv(folder / "pay.csv", index=False)
    for bank, bank_ids in ids.items():
        frame = pd.DataFrame({"id": bank_ids, "flag": rng.choice(["yes", "no"], 15), "balance": rng.normal(9, 3, 15)})
        frame.to_csv(folder / f"{bank}.csv", index=False)
    return folder


def bring(folder, *args) -> int:
    return main(["import", *args, f"--schema={folder}/schema.yaml", "--num-clients=3"])


@pytest.fixture(scope="module")
def files(tables):
    """The three client files: the network imports again after the banks' role was added."""
    for _ in range(2):
        network = ["--role=network", f"--edges={tables}/pay.csv", "--client=0", "--split=temporal"]
        assert bring(tables, *network, f"--out={tables}/client_0000.safetensors", *PAYMENTS) == 0
        for client, bank in enumerate("AB", 1):
            bank_args = ["--role=bank", f"--own-party={bank}", f"--nodes={tables}/{bank}.csv", f"--client={client}"]
            assert bring(tables, *bank_args, f"--out={tables}/client_{client:04d}.safetensors") == 0
    return [load(tables / f"client_{i:04d}.safetensors") for i in range(3)]


def test_files_have_the_columns_of_all_roles(tables, files):
    """Second derivation from the tables: values where a party has the column, else 0 and the indicator of missing values."""
    schema = Schema.load(tables / "schema.yaml")
    assert schema.roles == {
        "network": {"node": ("named",), "node:edge:node": ("amount",)},
        "bank": {"node": ("flag", "balance")},
    }
    network, *banks = files
    pay = pd.read_csv(tables / "pay.csv")
    ids = unpack_words(network.ids)
    assert set(ids) == {*pay.source, *pay.target}
    torch.testing.assert_close(network.x, torch.tensor([[1.0, 0, 0, 1, 0, 1]]).repeat(len(ids), 1))
    assert [network.linking["parties"][i] for i in network.group.tolist()] == [word[0].lower() for word in ids]
    pairs = sorted(zip(ids[network.edge_index[0]], ids[network.edge_index[1]], network.edge_time.tolist(), strict=True))
    assert pairs == sorted(zip(pay.source, pay.target, pay.t, strict=True))
    for bank, name in zip(banks, "AB", strict=True):
        frame = pd.read_csv(tables / f"{name}.csv")
        scaled = (frame.balance - frame.balance.mean()) / frame.balance.std(ddof=0)
        expected = np.stack([frame.flag == "yes", scaled, 0 * scaled], axis=1).astype(np.float32)
        np.testing.assert_allclose(bank.x[:, [2, 4, 5]], expected, atol=1e-6)
        assert bank.x[:, [0, 1, 3]].unique(dim=0).tolist() == [[0, 1, 0]]
        assert (bank.num_nodes, bank.edge_index.shape, bank.linking["party"]) == (15, (2, 0), name.lower())
        assert bank.num_edge_features == network.num_edge_features
        assert bank.num_edge_classes == network.num_edge_classes == 2


def test_import_says_what_a_party_lacks(tables, files, capsys):
    bank_args = [
        "--role=bank",
        "--own-party=A",
        f"--nodes={tables}/A.csv",
        "--client=1",
        f"--out={tables}/other.safetensors",
    ]
    assert bring(tables, *bank_args) == 0
    text = capsys.readouterr().out
    assert "columns of other roles, absent here: named" in text
    assert (
        "role 'bank' without edges, labels of nodes, labels of edges: it takes part in link and in prediction" in text
    )


def test_a_bank_with_labels_trains(tables, files, tmp_path, capsys):
    """Labels of nodes at a party of a new role, without edges."""
    frame = pd.read_csv(tables / "A.csv").assign(label=["ok", "bad", "ok"] * 5)
    frame.to_csv(tmp_path / "A.csv", index=False)
    made = [f"--nodes={tmp_path}/A.csv", "--role=lender", "--client=0", f"--out={tmp_path}/a.safetensors"]
    assert bring(tmp_path, *made) == 0
    assert "training and scores of nodes" in capsys.readouterr().out
    graph = load(tmp_path / "a.safetensors")
    assert isinstance(graph, ClientGraph)
    assert (graph.num_classes, int(graph.train_mask.sum())) == (2, 9)


def test_statistics_by_role_are_those_of_all_rows_of_who_has_a_column(tables, tmp_path, capsys):
    """Second derivation from the tables; each party then imports once, and all have the same columns."""
    network = ["--role=network", f"--edges={tables}/pay.csv", "scales.edges.amount=log", *PAYMENTS]
    given = [network, *(["--role=bank", f"--own-party={bank}", f"--nodes={tables}/{bank}.csv"] for bank in "AB")]
    sums = [f"{tmp_path}/{i}.json" for i in range(3)]
    for args, out in zip(given, sums, strict=True):
        assert main(["import", *args, f"--statistics={out}", "--min-count=2"]) == 0
    assert main(["schema", "merge", *reversed(sums), f"--out={tmp_path}/schema.yaml"]) == 0
    schema = Schema.load(tmp_path / "schema.yaml")
    assert schema.roles == {
        "bank": {"node": ("flag", "balance")},
        "network": {"node": ("named",), "node:edge:node": ("amount",)},
    }
    balance = pd.concat([pd.read_csv(tables / f"{bank}.csv").balance for bank in "AB"])
    amount = np.log1p(pd.read_csv(tables / "pay.csv").amount)
    for column, values in (
        (schema.nodes["node"]["balance"], balance),
        (schema.nodes["node:edge:node"]["amount"], amount),
    ):
        assert column.statistics["center"] == pytest.approx(values.mean())
        assert column.statistics["spread"] == pytest.approx(values.std(ddof=0))
    assert schema.tables.party_columns == "from_bank,to_bank"
    for client, args in enumerate(given):
        args = args[:3] if client else [*network[:2], "--split=temporal"]
        assert bring(tmp_path, *args, f"--client={client}", f"--out={tmp_path}/client_{client}.safetensors") == 0
    made = [load(tmp_path / f"client_{client}.safetensors") for client in range(3)]
    assert {graph.num_features for graph in made} == {made[0].num_features}
    names = column_names(made[0])
    x = torch.cat([graph.x[:, names.index("balance")] for graph in made[1:]])
    np.testing.assert_allclose(x, (balance - balance.mean()) / balance.std(ddof=0), atol=1e-5)


def test_statistics_of_two_roles_that_differ_in_a_column_are_refused(tables, tmp_path, capsys):
    frame = pd.read_csv(tables / "B.csv").assign(balance="high")
    frame.to_csv(tmp_path / "B.csv", index=False)
    for role, table in (("bank", tables / "A.csv"), ("lender", tmp_path / "B.csv")):
        assert main(["import", f"--role={role}", f"--nodes={table}", f"--statistics={tmp_path}/{role}.json"]) == 0
    args = ["schema", "merge", *(f"{tmp_path}/{role}.json" for role in ("bank", "lender"))]
    assert main([*args, f"--schema={tmp_path}/s.yaml"]) == 2
    assert "column 'balance' has kind number in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--edges=pay.csv"], "has roles (network, bank): pass --role with one of them, or a new name"),
        (["--role=bank", "--nodes=pay.csv", "columns.id=t"], "has no column 'flag' (flag) of"),
        (["--role=network", "--data=x.pt"], "--role network needs --nodes FILE, --edges FILE or both"),
        (["--role=network"], "--role network needs --nodes FILE, --edges FILE or both"),
    ],
)
def test_wrong_roles_are_refused(tables, files, args, message, capsys):
    args = [word.replace("pay.csv", f"{tables}/pay.csv").replace("A.csv", f"{tables}/A.csv") for word in args]
    assert bring(tables, *args, "--client=0", f"--out={tables}/other.safetensors") == 2
    assert message in capsys.readouterr().err


def test_an_account_named_with_two_banks_is_refused(tables, tmp_path, capsys):
    pay = pd.read_csv(tables / "pay.csv")
    pay.loc[7, "from_bank"] = "C"
    pay.to_csv(tmp_path / "pay.csv", index=False)
    network = ["--role=network", f"--edges={tmp_path}/pay.csv", "--client=0", f"--out={tmp_path}/n.safetensors"]
    assert bring(tmp_path, *network, *PAYMENTS) == 2
    assert f"account '{pay.source[7]}' is named with two parties" in capsys.readouterr().err


def test_a_schema_without_roles_is_refused(tables, tmp_path, capsys):
    nodes = [f"--nodes={tables}/A.csv", f"--edges={tmp_path}/none.csv", "columns.label=flag"]
    (tmp_path / "none.csv").write_text("source,target\n")
    assert bring(tmp_path, *nodes, "--client=0", f"--out={tmp_path}/a.safetensors") == 0
    again = ["--role=network", f"--edges={tables}/pay.csv", "--client=1", f"--out={tmp_path}/n.safetensors"]
    assert bring(tmp_path, *again) == 2
    assert "has no roles, so --role network cannot say which of its columns this party has" in capsys.readouterr().err


@pytest.mark.parametrize(
    "method",
    [
        ["strategy=fedavg"],
        ["strategy=fedavg", "stack=8"],
        ["strategy=fedavg", "privacy.secagg=true"],
        ["strategy=scaffold"],
        ["strategy=boosting"],
        ["strategy=boosting", "strategy.mode=histogram"],
    ],
)
def test_parties_without_items_change_nothing(tables, files, method, tmp_path, caplog):
    """The model of the network and two banks without items is that of the network alone."""
    words = ["task=edges", "rounds=2", "model.hidden=4", "checkpoint_every=0", "split.kind=temporal", *method]
    graphs = tables / "graphs"
    graphs.mkdir(exist_ok=True)
    for i, graph in enumerate(files):
        graph.save(graphs / f"client_{i:04d}.safetensors")
    run = fg.run(*words, f"graph={graphs}", f"out={tmp_path}/run")
    assert set(run.summary["left_out"]) == {"1", "2"}
    if "strategy=fedavg" in method and "privacy.secagg=true" not in method:
        alone = fg.run(*words, *method[1:], f"graph={graphs}", "strategy=local", f"out={tmp_path}/alone")
        assert run.summary["metrics"] == alone.summary["metrics"]
    assert "clients without items to train on only predict with the model: 1, 2" in caplog.text
