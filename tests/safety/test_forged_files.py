"""Files that someone else wrote or a killed process left: forged logs, pickles, formulas, marks, half results, lies of peers."""

import csv
import io
import itertools
import json
import pickle
import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.data.mapped import is_trusted, mark_of, state_of, trust
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet import audit_chain
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.use.frames import as_csv
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.sweeps import rows
from tests.party.linked_banks import BANKS, banks

ODD = [None, True, -1, 2**80, 1e400, "", "x\x1b[31m\n", "=1+1", [], {}, [1], {"a": 1}, {"model": -5}, {"model": 2**70}]


def message_of(call) -> str:
    """The error message of a call; empty without one."""
    try:
        call()
    except FedGraphError as error:
        return str(error)
    return ""


# --- forged audit.jsonl -----------------------------------------------------------------------------------------------


def write_log(folder: Path, entries: list[dict]) -> None:
    """Write a log whose chain and head are right."""
    before, text = audit_chain.START, ""
    for n, entry in enumerate(entries, 1):
        before = audit_chain.next_hash(before, audit_chain.text_of({**entry, "n": n}))
        text += json.dumps({**entry, "n": n, "hash": before}, ensure_ascii=False) + "\n"
    (folder / audit_chain.LOG).write_text(text)
    head = {"n": len(entries), "hash": before, "end": len(text.encode())}
    (folder / audit_chain.HEAD).write_text(json.dumps(head))


def entry() -> dict:
    booking = {"noise_multiplier": 2.0, "sensitivity": 1e5, "releases": 1, "unit": "client", "purpose": "p"}
    sizes = {"round": 1, "exchange": 0, "received": 10, "sent": {"model": 5}}
    names = {"at": "2026-01-01T00:00:00Z", "run": "7", "strategy": "fedavg", "phase": "train", "refused": ""}
    return {**names, **sizes, "noise": booking}


def test_a_forged_log_is_read_or_refused_in_one_message(tmp_path, capsys):
    """Who may write the folder can compute the chain; the owner then reads odd values, and no escape sequence."""
    places = [*((key,) for key in entry()), *(("noise", key) for key in entry()["noise"])]
    refused = 0
    for place, odd in itertools.islice(itertools.product(places, ODD), 0, None, 3):
        forged = entry()
        (forged if len(place) == 1 else forged["noise"])[place[-1]] = odd
        write_log(tmp_path, [entry(), forged])
        code = main(["audit", str(tmp_path), "--out", str(tmp_path / "a.csv")])
        said = capsys.readouterr()
        assert code in (0, 2), (place, odd)
        assert code == 0 or len(said.err.splitlines()) == 1, (place, odd)
        assert "\x1b" not in said.out + said.err, (place, odd)
        refused += code == 2
        if not code:
            for row in csv.reader(io.StringIO((tmp_path / "a.csv").read_text())):
                assert not [cell for cell in row if cell.startswith("=")], (place, odd)
    assert refused > 30


# --- pickles ----------------------------------------------------------------------------------------------------------


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    kept = {"rounds": 1, "num_clients": 2, "strategy": "fedbn", "model.hidden": 4}
    fg.run(**kept, progress=False, out=str(folder / "run"), checkpoint_every=1)
    return folder


def test_pickles_in_the_place_of_models_are_never_loaded(trained, tmp_path):
    pickled = pickle.dumps(Bomb(tmp_path / "ran"))
    array = io.BytesIO()
    np.save(array, np.array([Bomb(tmp_path / "ran")], dtype=object), allow_pickle=True)
    paths = [path for path in trained.rglob("*") if path.suffix in (".safetensors", ".npz", ".npy", ".pt")]
    binary = {re.sub(r"\d", "", path.name): path for path in paths}.values()  # one of each kind
    assert len(binary) > 1
    for path, content in zip(binary, itertools.cycle([pickled, array.getvalue()]), strict=False):
        whole = path.read_bytes()
        path.write_bytes(content)
        for read in (lambda: load_predictor(trained / "run", 0), lambda: fg.load_run(trained / "run")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pickle, "loads", pytest.fail)
                assert len(message_of(read).splitlines()) <= 1
        path.write_bytes(whole)
    (tmp_path / "saved.pt").write_bytes(pickled)
    assert main(["import", "--data", str(tmp_path / "saved.pt"), "--out", str(tmp_path / "x.safetensors")]) == 2
    assert not (tmp_path / "ran").exists()


# --- formulas ---------------------------------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1+cmd", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", "\uff1d1", "\uff20A1"]
PLAIN = ["-5", "+41 79 123", "a=1", "1-2", "", "ä", "text\r=1+1", "text\r\n=1"]


@pytest.mark.parametrize("kind", ["str", "object", "category"])
def test_no_cell_of_an_exported_table_is_a_formula(kind):
    """By OWASP's list of first characters, in names of columns as in cells; other cells stay."""
    cells = [*FORMULAS, *PLAIN]
    text = as_csv(pd.DataFrame({"=id": pd.Series(cells).astype(kind), "score": 1.5}))
    header, *lines = list(csv.reader(io.StringIO(text, newline="")))
    assert header == ["'=id", "score"]
    safe = [f"'{cell}" for cell in FORMULAS]
    assert [line[0] for line in lines] == [cell.replace("\r\n", "\n").replace("\r", "\n") for cell in [*safe, *PLAIN]]
    for row in text.split("\r"):  # a spreadsheet starts a row at an unquoted one
        assert not row.startswith("=")


# --- the mark beside big files ----------------------------------------------------------------------------------------


def test_a_forged_mark_marks_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    path = tmp_path / "client_0000.safetensors"
    path.write_bytes(b"content")
    trust(path)
    assert is_trusted(path)
    mark, right = mark_of(path), state_of(path)
    wrong = [right[:-1], [*right, 1], [number + 1 for number in right], {"a": right}, "[" * 100_000, "1" * 100_000]
    for content in [b"", b"\xff\xfe", b"null", *((w if isinstance(w, str) else json.dumps(w)).encode() for w in wrong)]:
        mark.write_bytes(content)
        assert not is_trusted(path), content[:40]


# --- killed sweeps ----------------------------------------------------------------------------------------------------


def test_results_that_a_killed_sweep_cut_are_read_without_the_last_row(tmp_path):
    """Cut at every byte, also within a letter: no row is taken for that of another run, and the others stay."""
    whole = [
        {**dict.fromkeys(rows.FIELDS, "1"), "method": f"Mé{n}", "words": f"strategy=fedavg note=é seed={n}"}
        for n in (1, 12, 123)
    ]
    path = tmp_path / "sweep.csv"
    rows.write(path, whole)
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    ids = [rows.identity(row["method"], row["words"]) for row in whole]
    for end in range(first, len(content)):
        path.write_bytes(content[:end])
        identities = [rows.identity(row["method"], row["words"]) for row in rows.read(path)]
        assert identities == ids[: len(identities)], end
        assert len(identities) >= content[:end].count(b"\n") - 1, end


def test_a_text_in_the_place_of_a_score_is_one_error_message():
    with pytest.raises(FedGraphError, match="value 'high' of the row strategy=fedavg is not a number"):
        rows.number({"value": "high", "words": "strategy=fedavg"}, "value")


# --- lies of a peer in `link` -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    made = banks(tmp_path_factory.mktemp("tables"), accounts=8, payments=20)
    return [made.client(bank) for bank in BANKS]


def lies(arrays):
    """Other contents of one sealed message."""
    yield {}
    for name, array in arrays.items():
        yield {key: value for key, value in arrays.items() if key != name}
        yield arrays | {name: array[:-1] if array.ndim and len(array) else np.zeros(3, array.dtype)}
        yield arrays | {name: array[None]}
        yield arrays | {name: array.astype(np.float64) * np.nan}
        yield arrays | {f"{name}x": array}
        if array.size and array.dtype.kind in "iu":
            yield arrays | {name: np.full_like(array, np.iinfo(array.dtype).max)}
            yield arrays | {name: array[::-1].copy() ^ 1}


STEPS = ("introduce", "commit", "mask", "double", "prove", "agree", "match", "confirm")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_lying_peer_ends_a_link_with_one_message(step, linked):
    """Client 1 changes one message to client 0 in each of many ways: it is named, or the files are as after an honest link."""

    def run(number):
        count = itertools.count()

        class Lying(LinkParty):
            pass

        def make(self, peer):
            arrays = getattr(LinkParty, f"_make_{step}")(self, peer)
            if peer or next(count):
                return arrays
            return next(itertools.islice(lies(dict(arrays)), number, None), arrays)

        setattr(Lying, f"_make_{step}", make)
        kinds = [LinkParty, Lying, LinkParty]
        return simulate(
            [kind(graph, LinkRules(), Keyring(graph.client)) for kind, graph in zip(kinds, linked, strict=True)]
        )

    said = [message_of(partial(run, number)) for number in range(0, 21, 7)]
    assert any(said)
    for text in filter(None, said):
        assert len(text.splitlines()) == 1
        assert "client 1" in text or "clients 0 and 1" in text
