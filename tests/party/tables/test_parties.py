"""Edge tables that name accounts of other parties: what becomes an edge, what stays a foreign record, and each odd row's line."""

from dataclasses import replace

import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.data.graph import ClientGraph, read_digest, unpack_words
from fedgraph_flwr.data.pyg import client_graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_tables
from fedgraph_flwr.party.tables.parties import _plain
from fedgraph_flwr.party.tables.roles import Columns

NODES = "id,income,label,part\nA001,10,ok,train\nA002,20,fraud,train\nA003,30,ok,test\nA004,30,ok,val\n"
EDGES = """from_bank,source,to_bank,target,date,amount,ref
A,A001,A,A002,2026-01-01,1.50,r1
A,A001,B,B01,2026-01-02,100,r2
a,a 002,B ,B02,2026-01-02,100.00,R 3
A,A001,B,B01,2026-01-02,100.0,r2
B,B02,A,A003,2026-01-05,7.25,r4
C,X,B,B01,2026-01-05,7.25,r4
A,A003,,,2026-01-05,7.25,r4
A,A003,X,x9,2026-01-05,7.25,r4
"""
COLUMNS = Columns(split="part", party_columns="from_bank,to_bank", match_columns="date:date,amount:amount,ref")


@pytest.fixture
def read(tmp_path):
    """``read(edges, nodes, columns, ...)`` imports the tables as party A, and returns the graph and what was printed."""

    def imported(edges=EDGES, nodes=NODES, columns=COLUMNS, own="A", **options):
        (tmp_path / "nodes.csv").write_text(nodes)
        (tmp_path / "edges.csv").write_text(edges)
        lines = []
        treatment = replace(options.pop("treatment", Treatment(scaling="none")), say=lines.append)
        paths = tmp_path / "nodes.csv", tmp_path / "edges.csv"
        graph = from_tables(*paths, columns, treatment=treatment, own_party=own, **options)
        return graph, "\n".join(lines)

    return imported


def test_rows_with_one_own_end_are_records(read):
    graph, said = read(columns=replace(COLUMNS, edge_features=["amount"], time="date"))
    assert graph.edge_index.t().tolist() == [[0, 1]]
    assert graph.edge_attr.tolist() == [[1.5]]
    assert graph.foreign.tolist() == [[0, 1, 0, 2, 2], [0, 0, 0, 0, 1]]
    assert graph.foreign_out.tolist() == [True, True, True, False, True]
    assert unpack_words(graph.foreign_id).tolist() == ["B01", "B02", "B01", "B02", "x9"]
    keys = [key.split("\x1f") for key in unpack_words(graph.foreign_key).tolist()]
    assert keys[0] == keys[2] == ["2026-01-02", "100", "r2"]
    assert keys[1] == ["2026-01-02", "100", "r3"]  # as "R 3" and 100.00 elsewhere
    assert graph.foreign_edge_attr.view(-1).tolist() == [100, 100, 100, 7.25, 7.25]
    assert len(graph.foreign_edge_time) == 5
    assert graph.linking == {"party": "a", "parties": ["b", "x"], "form": "ids text; key date,amount,text"}
    for line in (
        "1 of 8 rows have no end at 'A': left out",
        "1 of 8 rows name no party or no account at their other end: left out",
        "1 own accounts have another spelling, such as 'a 002' for 'A002': matched",
        "1 of 8 rows join two accounts of 'A'; records with other parties: b 4, x 1",
        "a party has several spellings, counted as one: 'B' (4), 'B ' (1)",
        "1 records repeat another one (equal ends and equal date, amount, ref): matched copy by copy",
    ):
        assert line in said


def test_a_prefix_names_the_party(read):
    edges = "source,target\nA:1,A:2\nA:1,B:7\nB:7,A:2\nA:1,B:7\nplain,A:1\n"
    nodes = "id,income,label\nA:1,1,ok\nA:2,2,fraud\n"
    graph, said = read(edges, nodes, Columns(party_prefix=":"))
    assert graph.edge_index.t().tolist() == [[0, 1]]
    assert graph.foreign.tolist() == [[0, 1], [0, 0]]  # edges without data count once
    assert graph.foreign_out.tolist() == [True, False]
    assert "1 of 5 rows name no party or no account" in said
    assert "1 records repeat another one (equal ends)" in said
    both, _ = read(edges + "B:7,A:1\n", nodes, Columns(party_prefix=":"), undirected=True)
    assert both.foreign.tolist() == [[0, 1], [0, 0]]  # either direction is the same edge


def test_leading_zeros_count_unless_ids_are_numbers(read):
    nodes = NODES.replace("A00", "00")
    edges = "from_bank,source,to_bank,target\nA,1,B,007\n"
    with pytest.raises(FedGraphError, match=r"row 1 has '1'.*not an id.*\(1 rows\); .*pass id_form=number"):
        read(edges, nodes, replace(COLUMNS, match_columns=""))
    graph, said = read(edges, nodes, replace(COLUMNS, match_columns="", id_form="number"))
    assert graph.foreign.tolist() == [[0], [0]]
    assert "matched" in said
    _, said = read(edges.replace("A,1", "A,001"), nodes, replace(COLUMNS, match_columns=""))
    assert "5 account ids have leading zeros, such as '001'" in said


@pytest.mark.parametrize(
    ("change", "columns", "own", "message"),
    [
        (("A003,30", "a 001,30"), COLUMNS, "A", "ids 'A001' .row 1. and 'a 001' .row 3. are the same without spaces, case,"),
        (("", ""), COLUMNS, "D", "no row of .* names --own-party 'D' as a party: expected one of a, b, c, x"),
        (("", ""), COLUMNS, "", "need --own-party NAME"),
        (("", ""), Columns(split="part"), "A", "--own-party A needs party_columns=SOURCE,TARGET or party_prefix=SIGN"),
        (("", ""), replace(COLUMNS, party_columns="from_bank"), "A", "expected two columns"),
        (("", ""), replace(COLUMNS, party_columns="from_bank,tobank"), "A", "party column 'tobank' is unknown.*to_bank"),
        (("", ""), replace(COLUMNS, match_columns="reff"), "A", "match column 'reff' is unknown.*did you mean 'ref'"),
        (("", ""), replace(COLUMNS, match_columns="ref:amount"), "A", "row 1 has 'r1' in column 'ref', expected kind amount"),
        (("", ""), replace(COLUMNS, match_columns="ref:date"), "A", "expected kind date: correct it"),
        (("7.25", '"7,250"'), COLUMNS, "A", r"column 'amount' has '7,250', which can mean 7.25 .* or 7250 .*: pass one of these"),
        (("A,A003,X", "A,A009,X"), COLUMNS, "A", r"row 8 has 'A009' in column 'source', an account of 'A' that is not"),
    ],
)  # fmt: skip
def test_wrong_rows_are_one_error(read, change, columns, own, message):
    edges, nodes = EDGES.replace(*change), NODES.replace(*change)
    if "can mean" in message:
        edges = edges.replace("100.00", "100").replace("100.0", "100").replace("1.50", "1")
    with pytest.raises(FedGraphError, match=message) as caught:
        read(edges, nodes, columns, own)
    assert "\n" not in str(caught.value)


def test_a_decomposed_letter_is_the_same_letter(read):
    edges = "from_bank,source,to_bank,target\nA,Mu\u0308ller,B,x\n"
    nodes = "id,income,label\nM\u00fcller,1,ok\nb,2,fraud\n"
    graph, _ = read(edges, nodes, Columns(party_columns="from_bank,to_bank"))
    assert graph.foreign.tolist() == [[0], [0]]


def test_a_client_file_keeps_the_records(read, tmp_path):
    graph, _ = read()
    client_file = client_graph(graph, 0, 3)
    client_file.save(tmp_path / "a.safetensors")
    again = ClientGraph.load(tmp_path / "a.safetensors")
    assert torch.equal(again.foreign, graph.foreign)
    assert torch.equal(again.foreign_out, graph.foreign_out)
    assert again.linking == graph.linking


def test_a_pyg_object_has_no_records_but_owners_of_no_cut_edges(read):
    held = client_graph(read()[0], 0, 3).to_pyg().to_dict()
    assert not [key for key in held if key.startswith("foreign")]
    assert held["cut_out"].size(1) == len(held["cut_out_owner"]) == len(held["cut_in_owner"]) == 0


def test_a_file_without_records_has_no_field_of_them(read, tmp_path):
    graph, _ = read("source,target\nA001,A002\n", columns=Columns(split="part"), own="")
    client_graph(graph, 0, 3).save(tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    assert b"foreign" not in content
    assert b"linking" not in content


def test_the_schema_keeps_the_rule_and_the_command_says_what_is_next(tmp_path, capsys):
    (tmp_path / "n.csv").write_text(NODES)
    (tmp_path / "e.csv").write_text(EDGES)
    common = [
        "import",
        "--nodes",
        str(tmp_path / "n.csv"),
        "--edges",
        str(tmp_path / "e.csv"),
        "columns.split=part",
    ]
    common += ["--num-clients", "3", "--schema", str(tmp_path / "s.yaml")]
    rule = [
        "party_columns=from_bank,to_bank",
        "--match-columns",
        "date:date,amount:amount,ref",
        "--classes",
        "ok,fraud",
    ]
    out = ["--client", "0", "--out", str(tmp_path / "a.safetensors")]
    assert cli.main([*common, *rule, *out, "--own-party", "A"]) == 0
    assert "5 records name other parties: match them with `fedgraph-flwr link` before a run" in capsys.readouterr().out
    first = read_digest(tmp_path / "a.safetensors")
    assert cli.main([*common, *out, "--own-party", "A"]) == 0  # the rule is the schema's
    assert len(ClientGraph.load(tmp_path / "a.safetensors").foreign_out) == 5
    assert cli.main([*common, *rule, *out, "--own-party", "A"]) == 0
    assert read_digest(tmp_path / "a.safetensors") == first
    secret = ClientGraph.load(tmp_path / "a.safetensors").linking["secret"]
    assert secret == (tmp_path / ".link_secret").read_text(), "made at the first import, and read at the others"
    assert cli.main([*common, *rule, *out, "--own-party", "A", "--secret-seed", "3"]) == 0
    assert ClientGraph.load(tmp_path / "a.safetensors").linking["secret"] != secret
    assert cli.main([*common, *rule, "--own-party", "A", "--name", "x"]) == 2
    assert "--own-party A makes the file of one party" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--own-party", "A"], ["party_columns=a,b"], ["party_prefix=:"]])
def test_heterogeneous_tables_have_no_parties(option, tmp_path, capsys):
    """They would be ignored without a word."""
    (tmp_path / "n.csv").write_text(NODES)
    (tmp_path / "e.csv").write_text("source,target\n")
    args = [
        "import",
        "--nodes",
        f"person={tmp_path / 'n.csv'}",
        f"--edges=person:pays:person={tmp_path / 'e.csv'}",
        "--target",
        "person",
        "--out",
        str(tmp_path / "x"),
    ]
    assert cli.main([*args, *option]) == 2
    assert "needs nodes and edges of one type" in capsys.readouterr().err


def test_amounts_keep_all_their_decimals():
    amounts = [0.00001, 0.00004, 1.00001, 10.10, 1e16, 0.0, -0.0, -2.5]
    expected = ["0.00001", "0.00004", "1.00001", "10.1", "10000000000000000", "0", "0", "-2.5"]
    assert [_plain(amount) for amount in amounts] == expected
