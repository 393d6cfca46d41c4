"""A drill plants the patterns of its plan in copies of books, both halves alike, and counts which of them are found."""

import json
import sys
from itertools import pairwise

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import yaml

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.drill.plan import KINDS, USUAL, Plan, common_period
from fedgraph_flwr.party.drill.planting import check_folder, plant, read_book
from fedgraph_flwr.party.drill.report import ALL, MOST, RANDOM, Scored, bounds, read_slots, recall, report
from fedgraph_flwr.party.link.files import record_keys

DAY, START, DAYS = 86_400, "2026-01-01", 40
EACH = 90


def plan(**keys):
    """A plan of two banks, with changed keys."""
    given = {"seed": 3, "parties": ["a", "b"], "start": START, "days": DAYS, "counts": [1, 1, 1], "size": [4, 5]}
    return Plan(**{**given, "within": 1.5, **keys})


def books(folder, hours=True, prefix="", ends=("a", "b")):
    """Two banks' tables and party files, without labels, the bank in columns or before each id; return the files."""
    rng = np.random.default_rng(0)
    count = 1000
    bank, number = rng.integers(2, size=(2, count)), rng.integers(EACH, size=(2, count))
    letters = np.array(list(ends))
    time = pd.Timestamp(START) + pd.to_timedelta(rng.integers(0, DAYS * DAY, count), unit="s")
    table = pd.DataFrame(
        {
            "from_bank": letters[bank[0]],
            "payer": [f"{letters[b]}{n:03d}" for b, n in zip(bank[0], number[0], strict=True)],
            "to_bank": letters[bank[1]],
            "payee": [f"{letters[b]}{n:03d}" for b, n in zip(bank[1], number[1], strict=True)],
            "booked": time.strftime("%Y-%m-%d %H:%M:%S" if hours else "%Y-%m-%d"),
            "amount": rng.lognormal(5, 1, count).round(2),
            "ref": [f"E{i}" for i in range(count)],
        }
    )
    files = []
    named = {bank: table[bank].to_numpy() for bank in ("from_bank", "to_bank")}
    if prefix:
        for end, bank in (("payer", "from_bank"), ("payee", "to_bank")):
            table[end] = table.pop(bank) + prefix + table[end]
    rule = {"party_prefix": prefix} if prefix else {"party_columns": ["from_bank", "to_bank"]}
    for client, letter in enumerate(ends):
        place = folder / f"bank_{letter}"
        place.mkdir(parents=True)
        mask = (named["from_bank"] == letter) | (named["to_bank"] == letter)
        table[mask].to_csv(place / "payments.csv", index=False)
        ids = [f"{letter}{prefix}{letter}{n:03d}" if prefix else f"{letter}{n:03d}" for n in range(EACH)]
        pd.DataFrame({"id": ids}).to_csv(place / "accounts.csv", index=False)
        party = {
            "party": letter,
            "client": client,
            "nodes": "accounts.csv",
            "edges": "payments.csv",
            "columns": {"id": "id", "source": "payer", "target": "payee", "time": "booked", "amount": "amount"},
            **rule,
            "match": {"booked": "date", "amount": "amount", "ref": "text"},
            "features": "payments",
        }
        (place / "party.yaml").write_text(yaml.safe_dump(party))
        files.append(place / "party.yaml")
    return files


def content(folder):
    """Bytes of all files below a folder."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def graph_of(pattern):
    """The pattern's payments as a directed graph."""
    return nx.DiGraph([(t.source, t.target) for t in pattern.transfers])


def claimed(kind, g):
    """Whether a graph is of a kind, by other means than the code that made it."""
    into, out = sorted(dict(g.in_degree()).values()), sorted(dict(g.out_degree()).values())
    k = len(g)
    if kind == "fan_in":
        return into == [0] * (k - 1) + [k - 1] and out == [0] + [1] * (k - 1)
    if kind == "fan_out":
        return claimed("fan_in", g.reverse())
    if kind == "cycle":
        return nx.is_isomorphic(g, nx.cycle_graph(k, create_using=nx.DiGraph))
    if kind == "scatter_gather":
        [first], [last] = ([n for n, d in degrees if d == 0] for degrees in (g.in_degree(), g.out_degree()))
        middle = {*g} - {first, last}
        return {*g.successors(first)} == middle == {*g.predecessors(last)} and g.size() == 2 * len(middle)
    layers = [len(layer) for layer in nx.topological_generations(g)]
    complete = nx.complete_multipartite_graph(*layers[:2])
    depth = {"bipartite": 2, "stack": 3}[kind]
    pairs = complete.size() + (layers[1] * layers[2] if depth == 3 else 0)
    return len(layers) == depth and g.size() == pairs


def test_patterns_have_the_graph_times_and_amounts_that_they_claim():
    made = plan(counts=[3, 2, 2], size=[4, 8])
    assert {p.kind for p in made.patterns} == {*USUAL}
    for p in made.patterns:
        assert claimed(p.kind, graph_of(p)), p.kind
        times = [t.time for t in p.transfers]
        begin, end = made.periods[p.stage]
        assert begin <= min(times) <= max(times) < end
        assert max(times) - min(times) <= made.within * DAY
        assert len({t.reference for t in p.transfers}) == len(p.transfers)
        for t in p.transfers:  # what leaves a member comes after what it received, and is less
            before = [u for u in p.transfers if u.target == t.source]
            if before and p.kind != "cycle":
                assert t.time >= max(u.time for u in before) - 1
                out = sum(u.cents for u in p.transfers if u.source == t.source)
                assert out <= sum(u.cents for u in before) + len(before)
    cycle = next(p for p in made.patterns if p.kind == "cycle").transfers
    assert [t.time for t in cycle] == sorted(t.time for t in cycle)
    assert all(0.89 < second.cents / first.cents < 1 for first, second in pairwise(cycle))


def test_one_seed_gives_one_plan_and_the_file_keeps_it(tmp_path):
    made = plan()
    made.save(tmp_path / "plan.yaml")
    again = Plan.load(tmp_path / "plan.yaml")
    assert (again.digest, again.patterns) == (plan().digest, made.patterns)
    digests = {made.digest, *(plan(**keys).digest for keys in ({"seed": 4}, {"dates": True}, {"hold_out": ["cycle"]}))}
    assert len(digests) == 4


def test_dates_are_whole_days():
    assert all(t.time % DAY == 0 for p in plan(dates=True).patterns for t in p.transfers)


def test_a_kind_that_is_held_out_is_in_the_test_only_and_moves_no_other():
    def drawn(made):
        return {
            (p.number, p.stage): [t._replace(reference="") for t in p.transfers]
            for p in made.patterns
            if p.kind == kind
        }

    held = plan(hold_out=["cycle"])
    kind = "cycle"
    assert {stage for _, stage in drawn(held)} == {2}
    assert drawn(held) == {key: value for key, value in drawn(plan()).items() if key[1] == 2}
    kind = "stack"
    assert drawn(held) == drawn(plan())


def test_share_that_crosses():
    assert all(len({*p.parties}) == 1 for p in plan(cross=0.0).patterns)
    assert any(len({*p.parties}) == 2 for p in plan(cross=1.0).patterns)


@pytest.fixture(scope="module", params=[(True, ""), (False, ""), (True, ":")], ids=["hours", "dates", "prefix"])
def planted(request, tmp_path_factory):
    """The plan, both banks' copies, and the bytes of the originals before and after."""
    folder = tmp_path_factory.mktemp("drill")
    hours, prefix = request.param
    files = books(folder / "books", hours, prefix)
    before = content(folder / "books")
    made = plan(dates=not hours)
    places = [folder / name for name in "ab"]
    for client, (file, place) in enumerate(zip(files, places, strict=True)):
        plant(made, read_book(file), place, client, 1)
    return made, places, before, content(folder / "books")


def test_originals_stay(planted):
    _, _, before, after = planted
    assert before == after


def test_both_halves_agree_without_accounts_of_the_other(planted):
    made, places, *_ = planted
    a, b = (pd.read_csv(place / "drill_payments.csv", dtype=str) for place in places)
    a, b = (table[table["drill"] == made.label].set_index("payment") for table in (a, b))
    both = a.index.intersection(b.index)
    same = ["from_party", "to_party", "time", "amount", "match_0", "match_1", "match_2"]
    pd.testing.assert_frame_equal(a.loc[both, same], b.loc[both, same])
    crossing = [t.reference for p in made.patterns for t in p.transfers if p.parties[t.source] != p.parties[t.target]]
    assert {*both} == {*crossing}
    assert len(both) > 10
    for table, letter in ((a, "a"), (b, "b")):
        for end, party in (("source", "from_party"), ("target", "to_party")):
            mine = table[party] == letter
            assert table.loc[mine, end].str.match(f"({letter}:)?{letter}\\d\\d\\d$").all()
            assert table.loc[~mine, end].str.startswith(made.label).all()


def test_planted_records_match_like_real_ones(planted):
    made, places, *_ = planted
    graphs = [ClientGraph.load(place / f"client_{client:04d}.safetensors") for client, place in enumerate(places)]
    keys = [
        {*record_keys(graph, np.arange(graph.foreign.size(1)), name)} for graph, name in zip(graphs, "ba", strict=True)
    ]
    crossing = sum(p.parties[t.source] != p.parties[t.target] for p in made.patterns for t in p.transfers)
    shared = keys[0] & keys[1]
    assert sum(made.label.encode() in key for key in shared) == crossing
    assert keys[0] == keys[1]  # these books have no payment of one side
    graphs[0].linking["aliases"] = [["0", 1]]
    with pytest.raises(FedGraphError, match="pairs of a record's number and a name"):
        record_keys(graphs[0], np.arange(3), "b")


def test_accounts_are_ordinary_and_take_one_slot(planted):
    made, places, *_ = planted
    for letter, place in zip("ab", places, strict=True):
        slots = pd.read_csv(place / "drill_slots.csv", dtype=str)
        wanted = sum(p.parties.count("ab".index(letter)) for p in made.patterns)
        assert slots["account"].is_unique
        assert len(slots) == wanted
        table = pd.read_csv(place / "drill_payments.csv", dtype=str).query("drill == 'ordinary'")
        count = pd.concat([table["source"], table["target"]]).value_counts()
        count = count[count.index.str.startswith(letter)]
        low, high = count.quantile([0.1, 0.9])
        assert count[slots["account"]].between(low, high).all()


def test_what_is_held_out_moves_no_account(tmp_path):
    [file, _] = books(tmp_path / "books")
    slots = []
    for name, held in (("all", []), ("held", ["cycle"])):
        plant(plan(hold_out=held), read_book(file), tmp_path / name, 0, 1)
        table = pd.read_csv(tmp_path / name / "drill_slots.csv", dtype=str).drop(columns="name")
        slots.append({tuple(row) for row in table.itertuples(index=False)})
    assert slots[1] < slots[0]
    assert {(kind, stage) for _, _, kind, stage in slots[0] - slots[1]} <= {
        ("cycle", "training"),
        ("cycle", "validation"),
    }


def test_recall_by_hand():
    """Six test payments of one party, three of the other; of kinds 0 and 1 there are three and two planted payments."""
    first = Scored(np.array([9.0, 8, 7, 6, 5, 4]), np.array([-1, 0, -1, 0, 1, -1]))
    second = Scored(np.array([1.0, 3, 2]), np.array([0, 1, -1]))
    table = recall({"m": [first, second]}, {0: "cycle", 1: "stack"}, 2).set_index("kind")
    # alerts: 9 (ordinary) and 8 (pattern 0); 3 (pattern 1) and 2 (ordinary)
    assert table.loc["cycle", ["payments", "found", "patterns", "patterns_found"]].tolist() == [3, 1, 1, 1]
    assert table.loc["stack", ["payments", "found", "patterns", "patterns_found"]].tolist() == [2, 1, 1, 1]
    assert table.loc[ALL, ["payments", "found", "recall", "alerts", "test"]].tolist() == [5, 2, 0.4, 4, 9]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"counts": [1, 1, 100_000_000]}, "from 1 to 1000"),
        ({"amount": 1e300}, "amount"),
        ({"days": 10**9}, "days"),
        ({"parties": ["a", "=1+1"]}, "starts with a letter"),
        ({"parties": ["../x", "b"]}, "starts with a letter"),
        ({"parties": ["a\n", "b"]}, "starts with a letter"),
        ({"parties": ["a", "b" * 65]}, "up to 64"),
    ],
)
def test_a_plan_of_another_party_is_not_trusted(values, message, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps({"parties": ["a", "b"], "start": "2026-01-01"} | values))
    with pytest.raises(FedGraphError, match=message):
        Plan.load(path)


def test_refusals(tmp_path):
    files = books(tmp_path / "books", hours=False)
    made, book = plan(dates=True), read_book(files[0])
    cases = [
        (lambda: plant(plan(), book, tmp_path / "x", 0, 1), "dates without hours"),
        (lambda: plant(plan(dates=True, counts=[9, 9, 9]), book, tmp_path / "x", 0, 1), "ordinary ones of 90"),
        (lambda: plant(plan(dates=True, parties=["b", "c"]), book, tmp_path / "x", 0, 1), "does not name party 'a'"),
        (lambda: plant(plan(dates=True, days=60), book, tmp_path / "x", 0, 1), "days that all tables have"),
        (lambda: check_folder(tmp_path, [book]), "holds the original"),
        (lambda: check_folder(files[0].parent, [book]), "holds the original"),
        (lambda: plan(parties=["a", "A "]), "different names"),
        (lambda: plan(within=9), "do not fit"),
        (lambda: plan(hold_out=list(USUAL)), "leaves no pattern"),
        (lambda: plan(kinds=["circle"]), "circle"),
        (lambda: plan(start="monday"), "first day"),
        (lambda: common_period([(0, DAY), (9 * DAY, 10 * DAY)]), "no common day"),
        (lambda: report([], [tmp_path], [0], 1), "plan"),
    ]
    for call, message in cases:
        with pytest.raises(FedGraphError, match=message):
            call()
    party = yaml.safe_load(files[0].read_text())
    for role, message in (("time", "times of payments"), ("amount", "amounts of payments")):
        columns = {key: name for key, name in party["columns"].items() if key != role}
        files[0].write_text(yaml.safe_dump(party | {"columns": columns}))
        with pytest.raises(FedGraphError, match=message):
            read_book(files[0])
    files[0].write_text(yaml.safe_dump({key: value for key, value in party.items() if key != "party_columns"}))
    with pytest.raises(FedGraphError, match="which party has the accounts"):
        read_book(files[0])
    other = plan(dates=True, seed=9)
    for number, drill_plan in enumerate((made, other)):
        drill_plan.save(tmp_path / str(number) / "plan.yaml")
    with pytest.raises(FedGraphError, match="one plan at all"):
        report([], [tmp_path / "0", tmp_path / "1"], [0, 1], 1)


def test_digests_of_other_plans_are_refused(tmp_path, capsys):
    files = books(tmp_path / "books")
    words = ["a", "b", f"start={START}", f"days={DAYS}", "seed=3"]
    assert main(["drill", "plan", *words, "--out", str(tmp_path / "plan.yaml")]) == 0
    made = Plan.load(tmp_path / "plan.yaml")
    assert made.digest[:16] in capsys.readouterr().out
    given = [
        "drill",
        "plant",
        str(files[0].parent),
        "--plan",
        str(tmp_path / "plan.yaml"),
        "--out",
        str(tmp_path / "a"),
    ]
    assert main([*given, "--digest", "0" * 16]) == 2
    assert "the parties hold different plans" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert main([*given, "--alerts", "5"]) == 2
    assert "--alerts has no effect on `drill plant`" in capsys.readouterr().err
    assert main([*given, "seed=4"]) == 2
    assert "seed=4 has no effect on `drill plant`, whose plan is made" in capsys.readouterr().err
    for word, message in (("sed=3", "plan key 'sed' is unknown"), ("days=x", "plan.days"), ("kinds=ring", "kind")):
        assert main(["drill", "plan", *words, "--out", str(tmp_path / "other.yaml"), word]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_drill_without_lightgbm_writes_nothing(tmp_path, monkeypatch, capsys):
    """It planted and linked first, and then named a key that a drill has not."""
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert main(["drill", str(tmp_path / "a.yaml"), "--out", str(tmp_path / "out")]) == 2
    assert "drill compares trees of LightGBM: pip install 'fedgraph-flwr[trees]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_drill_from_books_to_recall(tmp_path, capsys, caplog):
    files = books(tmp_path / "books")
    before, out = content(tmp_path / "books"), tmp_path / "drill"
    words = ["seed=3", "--alerts", "15", "counts=[4,1,2]", "size=[4,5]", "hold_out=[cycle]"]
    words += ["kinds=[cycle,fan_out,bipartite]", "--out", str(out)]
    assert main(["drill", *(str(file.parent) for file in files), *words]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert content(tmp_path / "books") == before
    made = Plan.load(out / "plan.yaml")
    crossing = [(p, t) for p in made.patterns for t in p.transfers if p.parties[t.source] != p.parties[t.target]]
    linked = [ClientGraph.load(out / "linked" / f"client_{client:04d}.safetensors") for client in range(2)]
    assert sum(int((graph.cut_out_edge_y == 1).sum()) for graph in linked) == len(crossing)
    table = pd.read_csv(out / "recall.csv")
    test = [p for p in made.patterns if p.stage == 2]
    planted = {kind: sum(len(p.transfers) for p in test if p.kind == kind) for kind in made.kinds}
    for _, rows in table.groupby("method"):
        assert rows.set_index("kind")["payments"].to_dict() == planted | {ALL: sum(planted.values())}
    methods = ["rule on one column", "own trees", "federated trees", "pooled trees", RANDOM, MOST]
    assert list(table["method"].unique()) == methods
    assert (table["drill"] == made.label).all()
    assert table.query("kind == 'fan_out' and method == 'own trees'")["recall"].item() > 0.4  # 0.13 by chance
    assert "cycle (held out)" in shown
    one = ["drill", "report", str(out / "runs/own"), str(out / "runs/federated"), "--planted", str(out / "party_0")]
    assert main([*one, "--client", "0", "--alerts", "15", "--out", str(tmp_path / "a.csv")]) == 0
    assert main(["predict", str(out / "runs/federated"), "--client", "0", "--out", str(tmp_path / "p.csv")]) == 0
    assert "a drill planted (class drill-" in caplog.text
    alone = pd.read_csv(tmp_path / "a.csv").query("kind == 'all'").set_index("method")
    payers = sum(p.parties[t.source] == 0 for p in test for t in p.transfers)
    assert alone["payments"].tolist() == [payers] * 5
    every = table.query("kind == 'all'").set_index("method")
    assert every["found"][RANDOM] < every["found"]["federated trees"] <= every["found"][MOST]


@pytest.mark.parametrize("text", ["account,pattern\na,one\n", "account\na\n", "", "account,pattern\na,1,2,3\nb\n"])
def test_a_damaged_list_of_slots_is_named(tmp_path, text):
    (tmp_path / "drill_slots.csv").write_text(text)
    with pytest.raises(FedGraphError, match=r"drill_slots.csv is damaged \(.*plant the drill again"):
        read_slots(tmp_path)


def test_random_alerts_and_the_most_that_a_budget_allows_are_those_of_many_draws():
    """Expected recall and patterns at random agree with 4,000 draws; at best, all alerts are planted payments."""
    rng = np.random.default_rng(0)
    patterns = [rng.permutation(np.concatenate([np.full(37, -1), [0, 0, 0, 1, 2, 2]])), np.array([-1, -1, 0, 1, 1])]
    parties = [Scored(np.zeros(pattern.size), pattern) for pattern in patterns]
    kinds = {0: "cycle", 1: "stack", 2: "stack", 3: "fan_in"}
    table = bounds(parties, kinds, 4).set_index(["kind", "method"])
    drawn = [np.concatenate([rng.permutation(pattern)[:4] for pattern in patterns]) for _ in range(4000)]
    for kind, numbers in (("cycle", [0]), ("stack", [1, 2]), (ALL, [0, 1, 2])):
        row = table.loc[kind, RANDOM]
        assert row.found == pytest.approx(np.mean([np.isin(pattern, numbers).sum() for pattern in drawn]), rel=0.05)
        seen = np.mean([np.unique(pattern[np.isin(pattern, numbers)]).size for pattern in drawn])
        assert row.patterns_found == pytest.approx(seen, rel=0.05)
    assert table.loc[ALL, MOST].found == 4 + 3
    assert table.loc[ALL, MOST].patterns_found == 3
    assert "fan_in" not in table.index.get_level_values("kind"), "no payment of it is in the test"


def test_all_kinds_of_patterns_can_be_planned():
    plan = Plan(parties=["a", "b"], start="2026-01-01", days=60, kinds=list(KINDS))
    assert {pattern.kind for pattern in plan.patterns} == {*KINDS}
    gathered = graph_of(next(pattern for pattern in plan.patterns if pattern.kind == "gather_scatter"))
    [middle] = [account for account in gathered if gathered.in_degree(account) and gathered.out_degree(account)]
    sources, targets = {*gathered.predecessors(middle)}, {*gathered.successors(middle)}
    assert {*gathered} == {middle} | sources | targets
    assert sources.isdisjoint(targets)
    assert gathered.size() == len(sources) + len(targets)
    path = next(pattern for pattern in plan.patterns if pattern.kind == "random")
    assert [(step.source, step.target) for step in path.transfers] == [(k, k + 1) for k in range(len(path.transfers))]


@pytest.mark.slow
def test_a_drill_takes_the_books_of_all_parties(tmp_path, capsys):
    """A corrected payment is in the copy as corrected, once; the books stay as they are."""
    files = books(tmp_path / "banks")
    for file in files:
        tables = file.parent / "accounts.csv", file.parent / "payments.csv"
        party = yaml.safe_load(file.read_text())
        file.write_text(yaml.safe_dump(party | {"columns": party["columns"] | {"edge_id": "ref"}}))
        words = ["book", "new", tmp_path / "books" / file.parent.name, "--party-file", file, *tables]
        assert main([str(word) for word in words]) == 0
    fixed = pd.read_csv(tables[1]).query("from_bank == 'b' and to_bank == 'b'").iloc[[0]].assign(amount=123.45)
    fixed.to_csv(tmp_path / "fixed.csv", index=False)
    words = ["book", "add", tmp_path / "books" / "bank_b", tmp_path / "fixed.csv", "--known", "2026-02-09"]
    assert main([str(word) for word in words]) == 0
    before, out = {p: p.read_bytes() for p in (tmp_path / "books").rglob("*.csv")}, tmp_path / "drill"
    words = ["drill", "--books", str(tmp_path / "books"), "seed=3", "counts=[2,1,1]", "size=[4,5]", "kinds=[fan_out]"]
    assert main([*words, "--alerts", "15", "--out", str(out)]) == 0, capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in before}
    copy = pd.read_csv(out / "party_1" / "drill_payments.csv")
    assert len(copy) == len(pd.read_csv(tables[1])) + (copy["drill"] != copy["drill"].iloc[0]).sum()
    same = copy.query(f"source == '{fixed.payer.item()}' and target == '{fixed.payee.item()}'")
    assert same["amount"].tolist().count(123.45) == 1
    assert pd.read_csv(tables[1]).set_index("ref")["amount"][fixed.ref.item()] not in same["amount"].tolist()
    assert {"own trees", "federated trees", RANDOM, MOST} <= {*pd.read_csv(out / "recall.csv")["method"]}
