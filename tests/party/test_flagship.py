"""The path of a bank's desk, all features crossed: tables of linked banks, a run, and each command on tomorrow's file.

    task              accounts, payments
    model             network, trees (of linked accounts: with columns of their payments), blend of both
    banks             linked, not linked
    time              dates, hours
    place             simulation, fleet (each party's own node, whose messages pass through protobuf)
    command           run, predict, alerts, explain, drift, worth, export, the exported scorer, init, forget

Half of the settings of the first, third, fourth and fifth line are run, such that each three of them meet in all ways, with every
model and command. A refusal is a failure.
"""

import contextlib
import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.partition import load
from fedgraph_flwr.party.forget import without
from tests.nodes import party_nodes

BANKS, EACH, DAYS = ("a", "b"), 40, 30
SETTINGS = [
    setting
    for setting in itertools.product(
        ("accounts", "payments"), ("linked", "apart"), ("dates", "hours"), ("simulation", "fleet")
    )
    if sum(word in ("payments", "apart", "hours", "fleet") for word in setting) % 2 == 0
]


def tables(folder: Path, form: str, task: str) -> pd.DataFrame:
    """Write both banks' tables of accounts, and return the payments of 30 days, the last two of which are tomorrow's."""
    rng, count = np.random.default_rng(0), 12 * DAYS
    bank, account = rng.integers(2, size=(2, count)), rng.integers(EACH, size=(2, count))
    ends = [[f"{BANKS[b]}{n}" for b, n in zip(bank[k], account[k], strict=True)] for k in (0, 1)]
    seconds = 1_767_225_600 + np.sort(rng.permutation(DAYS * 86_400)[:count])
    amount = rng.lognormal(3, 1, count).round(2)
    rows = pd.DataFrame({"ref": [f"p{i}" for i in range(count)], "source": ends[0], "target": ends[1]})
    rows["from_bank"], rows["to_bank"] = ([BANKS[b].upper() for b in side] for side in bank)
    text = "%Y-%m-%d" if form == "dates" else "%Y-%m-%d %H:%M:%S"
    rows["at"] = pd.to_datetime(seconds, unit="s").strftime(text)
    rows["amount"], rows["fraud"] = amount, np.where(amount * rng.random(count) > 12, "yes", "no")
    for name in BANKS:
        ids = [f"{name}{n}" for n in range(EACH)]
        label = np.where(rng.random(EACH) < 0.4, "mule", "ok")
        part = np.array(["train", "train", "val", "test"])[np.arange(EACH) % 4]
        people = pd.DataFrame({"id": ids, "age": rng.integers(18, 90, EACH)})
        people = people.assign(label=label, part=part) if task == "accounts" else people
        people.to_csv(folder / f"{name}.csv", index=False)
    return rows


def mine(rows: pd.DataFrame, bank: str) -> pd.DataFrame:
    """The rows that a bank's book has."""
    return rows[(rows[["from_bank", "to_bank"]] == bank.upper()).any(axis=1)]


class Table:
    """Commands of one setting, and what failed."""

    def __init__(self, setting: Sequence[str]):
        self.setting, self.failures = setting, list[str]()

    def go(self, of: str, command: str, *words: object, codes: Sequence[int] = (0,)) -> bool:
        """Run a command; list it if it fails."""
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = main([command, *map(str, words)])
            problem = "" if code in codes else f"exit code {code}"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            last = [line for line in output.getvalue().splitlines() if "rror" in line][-1:]
            self.failures.append(f"{' '.join(self.setting)}: {command} of {of}: {problem} {' '.join(last)[:400]}")
        return not problem


def imported(folder: Path, rows: pd.DataFrame, table: Table) -> Path:
    """Import the books of both banks, and link them or not."""
    last = [f"2026-01-{day:02d}" for day in (16, 22)]
    for number, bank in enumerate(BANKS):
        mine(rows, bank).to_csv(folder / f"{bank}_pay.csv", index=False)
        words = ["--nodes", folder / f"{bank}.csv", "--edges", folder / f"{bank}_pay.csv", "--own-party", bank.upper()]
        if "accounts" in table.setting:
            words += ["columns.label=label", "--classes", "ok,mule", "columns.split=part"]
        else:
            words += ["columns.edge_label=fraud", "edge_classes=no,yes"]
            words += ["--split", "temporal", "--until", ",".join(last)]
        words += ["columns.time=at", "--scaling", "none"]
        words += ["columns.edge_id=ref", "edge_columns=amount", "columns.amount=amount"]
        words += ["party_columns=from_bank,to_bank", "--match-columns", "at:date,amount:amount"]
        words += ["features=payments", "windows=2,7"]
        words += ["--schema", folder / "schema.yaml", "--secret-seed", "1", "--client", number, "--num-clients", "2"]
        table.go("tables", "import", *words, "--out", folder / f"files/client_{number:04d}.safetensors")
    if "apart" in table.setting:
        return folder / "files"
    files = sorted((folder / "files").glob("client_*.safetensors"))
    table.go("tables", "link", "--simulate", *files, "--share", "age:exact", "--out", folder / "linked")
    return folder / "linked"


KEYS = {
    "network": ["strategy=fedavg", "model.hidden=4", "rounds=1"],
    "trees": ["strategy=boosting", "strategy.trees=4", "strategy.min_data_in_leaf=2", "rounds=1"],
}
MODELS = (*KEYS, "blend")


def keys_of(setting: Sequence[str]) -> dict[str, list[str]]:
    """Keys of each model; trees of linked accounts also read the largest columns of their payments."""
    more = ["strategy.edge_columns=true"] if {"accounts", "linked"} <= {*setting} else []
    return KEYS | {"trees": [*KEYS["trees"], *more]}


def stored(folder: Path) -> set[Path]:
    """Folders of runs in which bank A's node stored a model."""
    return {file.parents[1] for file in folder.glob("state_0/**/model_last.safetensors")}


def failures(setting: Sequence[str], folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """Return the commands of a setting that fail."""
    task, _, form, place = setting
    table = Table(setting)
    rows = tables(folder, form, task)
    days = rows["at"].str[:10]
    graph = imported(folder, rows[days < "2026-01-29"], table)
    mine(rows[days >= "2026-01-29"], "a").drop(columns="fraud").to_csv(folder / "day.csv", index=False)
    keys = ["task=nodes"] if task == "accounts" else ["task=edges", "split.kind=ratio"]
    keys += [f"graph={graph}", "num_clients=2", "seed=0", "--quiet", "--no-report"]
    fleet = place == "fleet"
    (folder / "policy.yaml").write_text("tasks: [nodes, edges]\nmin_nodes: 0\nmax_share: 1.0\n")
    if fleet:
        party_nodes(patch, sorted(graph.glob("client_*.safetensors")), folder / "policy.yaml", folder)
    given, runs = dict[str, list[object]](), []
    for model, model_keys in keys_of(setting).items():
        before = stored(folder)
        table.go(model, "run", *keys, *model_keys, f"out={folder / model}")
        state = sorted(stored(folder) - before)
        given[model] = [*state] if fleet else [folder / model, "--client", 0]
        runs.append(state[0] if fleet and state else folder / model)
        table.go(model, "run", *keys, *model_keys, f"init={folder / model}", f"out={folder / model}-next")
    blended = runs
    table.go("blend", "blend", *blended, "--out", folder / "blend")
    given["blend"] = [folder / "blend"] if fleet else [folder / "blend", "--client", 0]
    client = [] if fleet else ["--client", 0]
    clusters = ["--metric", "accuracy", "--clusters", "item"]
    table.go("trees", "worth", *runs, *client, *clusters)
    table.go("blend", "worth", folder / "blend", *runs, *client, *clusters)
    new = ["--nodes", folder / "a.csv", "--edges", folder / "day.csv"]
    for model in MODELS:
        out = folder / f"of_{model}"
        out.mkdir()
        if not table.go(model, "predict", *given[model], *new, "--out", out / "p.csv"):
            continue
        table.go(model, "alerts", *given[model], "--cost", "20,1")
        table.go(model, "alerts", *given[model], *new, "--reasons", 1, "--explained", 1, "--out", out / "a.csv")
        item = "a3" if task == "accounts" else pd.read_csv(out / "p.csv")["edge"].iloc[0]
        table.go(model, "explain", *given[model], *new, "--items", item, "--out", out / "r.csv")
        table.go(model, "drift", *given[model], *new, "--out", out / "d.csv", codes=(0, 3))
        if table.go(model, "export", *given[model], "--out", out / "exported"):
            file = sorted(graph.glob("client_*.safetensors"))[0]
            table.go(model, "predict", out / "exported", "--graph", file, *new, "--out", out / "e.csv")
        if (out / "e.csv").is_file():
            pd.testing.assert_frame_equal(
                *(pd.read_csv(out / name).iloc[:, :-1] for name in ("p.csv", "e.csv")), check_exact=False, atol=1e-4
            )
    for model, model_keys in keys_of(setting).items():
        if not fleet:
            table.go(model, "forget", folder / model, "--party", "B", "--out", folder / f"{model}-without")
            continue
        left = without([load(path) for path in sorted(graph.glob("client_*.safetensors"))], 1)[0]
        left.save(folder / "left" / "client_0000.safetensors")
        party_nodes(patch, [folder / "left" / "client_0000.safetensors"], folder / "policy.yaml", folder / "again")
        alone = [word for word in keys if not word.startswith(("graph=", "num_clients="))]
        table.go(
            model,
            "run",
            *alone,
            *model_keys,
            f"graph={folder / 'left'}",
            "num_clients=1",
            f"out={folder / model}-without",
        )
    return table.failures


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=" ".join)
def test_every_command_serves_every_setting(setting, tmp_path, monkeypatch):
    pytest.importorskip("captum")
    pytest.importorskip("lightgbm")
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    failed_commands = failures(setting, tmp_path, monkeypatch)
    assert not failed_commands, "\n".join([f"{len(failed_commands)} commands fail:", *failed_commands])


def test_each_three_features_meet_in_all_ways():
    for chosen in itertools.combinations(range(4), 3):
        assert len({tuple(setting[place] for place in chosen) for setting in SETTINGS}) == 8
