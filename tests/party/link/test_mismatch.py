"""A link that finds nothing names the likely cause, and its exit code is 3."""

import logging

import pandas as pd
import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.files import record_keys
from fedgraph_flwr.party.link.mismatch import causes, facts, kinds_of
from fedgraph_flwr.party.link.rules import LinkRules, NothingShared
from tests.party.linked_banks import BANKS, KEY, Banks, banks

REVERSED = {"from_bank": "to_bank", "to_bank": "from_bank", "source": "target", "target": "source"}


def changed(book: pd.DataFrame, mistake: str) -> pd.DataFrame:
    """Return a bank's book with a usual mistake."""
    later = (pd.to_datetime(book["date"]) + pd.Timedelta(days=1)).dt.strftime("%Y-%m-%d")
    wrong = {
        "reversed": lambda: book.rename(columns=REVERSED)[book.columns],
        "dates": lambda: book.assign(date=later),
        "cents": lambda: book.assign(amount=(book["amount"] * 100).astype(int)),
        "reference": lambda: book.assign(ref="e2e-" + book["ref"]),
        "reversed and cents": lambda: changed(changed(book, "reversed"), "cents"),
    }
    return wrong[mistake]()


def saved(made: Banks, folder) -> list[str]:
    """Write the client files of all banks."""
    for client, bank in enumerate(BANKS):
        made.client(bank).save(folder / f"client_{client:04d}.safetensors")
    return [str(folder / f"client_{client:04d}.safetensors") for client in range(len(BANKS))]


MISTAKES = {
    "reversed": ["source and target are exchanged"],
    "dates": ["dates are one day"],
    "cents": ["amounts are in"],
    "reference": ["match column 3 (text) differs"],
    "reversed and cents": ["source and target are exchanged", "; and amounts are in"],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_link_of_files_finds_the_cause(tmp_path, capsys, mistake):
    made = banks(tmp_path, accounts=8, payments=40)
    made.books["B"] = changed(made.books["B"], mistake)
    files = saved(made, tmp_path / "graphs")
    assert cli.main(["link", "--simulate", *files, "--out", str(tmp_path / "linked")]) == 3
    out, error = capsys.readouterr()
    assert "error: client 1 shares no record with any party that its records name" in error
    assert "client 0 shares no" not in error  # it shares with client 2
    for name in "ac":
        lines = [line for line in error.splitlines() if f"('{name}')" in line]
        assert any(all(text in line for text in MISTAKES[mistake]) for line in lines)
    assert f"error: nothing was written to {tmp_path / 'linked'}: correct that import" in error
    assert "use: fedgraph-flwr run" not in out
    assert not (tmp_path / "linked").exists()


def test_the_number_of_a_cause_is_that_of_a_join(tmp_path):
    made = banks(tmp_path, accounts=8, payments=40)
    sides = []
    for bank in "AB":
        book = made.books[bank]
        book = book[
            ((book.from_bank == "A") & (book.to_bank == "B")) | ((book.from_bank == "B") & (book.to_bank == "A"))
        ]
        sides.append(book.assign(copy=book.sort_values("time").groupby(KEY).cumcount()))
    expected = len(sides[0].merge(sides[1], on=[*KEY, "copy"]))
    made.books["B"] = changed(made.books["B"], "dates")
    a, b = (made.client(bank) for bank in "AB")
    keys = [
        record_keys(graph, (graph.foreign[1] == graph.linking["parties"].index(name)).nonzero().view(-1).numpy(), name)
        for graph, name in ((a, "b"), (b, "a"))
    ]
    kinds = kinds_of(a.linking["form"])
    assert kinds == ["date", "amount", "text"]
    mismatches = causes(keys[0], keys[1], kinds)
    assert (mismatches[0].equal, mismatches[0].text.partition(":")[0]) == (
        expected,
        "dates are one day earlier at the first",
    )
    assert causes([], keys[1], kinds) == []
    text = facts(keys[0], "a", kinds)
    outgoing = int((sides[0].from_bank == "A").sum())
    assert text.startswith(f"{outgoing} records go out and {len(sides[0]) - outgoing} come in, dates from 2026-01-")
    assert not any(word in text for word in sides[0]["source"])


def test_books_that_have_nothing_in_common_say_so(tmp_path, capsys):
    made = banks(tmp_path, accounts=8, payments=40)
    made.books["B"] = made.books["B"].assign(date="2025-06-01", amount=7, ref="x")
    files = saved(made, tmp_path / "graphs")
    assert cli.main(["link", "--simulate", *files, "--dry-run"]) == 3
    error = capsys.readouterr().err
    assert "no usual cause explains it (source and target exchanged" in error
    assert "its log" not in error  # there is no node that has one


def test_nodes_of_a_fleet_log_what_to_compare(run, tmp_path, monkeypatch, caplog):
    """The server learns that client 1 shares nothing; the node's log has its own numbers, and no id."""
    made = banks(tmp_path, accounts=8, payments=20)
    made.books["B"] = changed(made.books["B"], "reversed")
    saved(made, tmp_path / "graphs")
    (policy := tmp_path / "policy.yaml").write_text(
        "min_nodes: 0\nlink: {match: [payments], min_shared: 1, hours: 0}\n"
    )
    call = InlineGrid._call

    def node(self, message):
        client = message.metadata.dst_node_id - 1
        settings = {"graph": tmp_path / f"graphs/client_{client:04d}.safetensors", "policy": policy}
        self.contexts[client + 1].node_config = {key: str(path) for key, path in settings.items()}
        node_clients.forget(self.run_id)
        return call(self, message)

    monkeypatch.setattr(InlineGrid, "_call", node)
    with caplog.at_level(logging.WARNING), pytest.raises(NothingShared) as caught:
        run(f"graph={tmp_path / 'graphs'}", *link_overrides(LinkRules()))
    assert caught.value.exit_code == 3
    assert "client 1 shares no record with any party" in str(caught.value)
    assert "client 0 shares" not in str(caught.value)
    assert "its log has what to compare" in str(caught.value)
    lines = [record.getMessage() for record in caplog.records if "go out and" in record.getMessage()]
    assert len(lines) == 2
    assert all("Usual causes: source and target exchanged" in line for line in lines)
    assert not any(word in line for line in lines for word in made.nodes["B"]["id"])
    assert (tmp_path / "graphs" / "linked_client_0001.safetensors").is_file()
