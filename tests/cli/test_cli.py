"""The command line as a user meets it: help, exit codes, one-sentence errors, a run from nothing to a report."""

import io
import json
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import COMMANDS, GROUPS, main
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.party.party_file import PartyFile
from tests.conftest import client_graph
from tests.support import PATIENCE, assert_same_arrays, recorded_messages, wait_for

TWO_BLOCKS = [
    "dataset=csbm",
    "dataset.clients=2",
    "dataset.nodes=60",
    "dataset.nodes_per_client=[30,30]",
    "num_clients=2",
]


@pytest.fixture
def clients(tmp_path):
    folder = tmp_path / "clients"
    for index, size in enumerate((12, 16, 20)):
        client_graph(index, size).save(folder / f"client_{index:04d}.safetensors")
    return [f"graph={folder}", "num_clients=3", "model.hidden=8"]


def _final(folder):
    return {name: t.numpy() for name, t in read_tensors(folder / "model_final.safetensors")[0].items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "override"),
    [
        (["--rounds", "20"], "rounds=20"),
        (["--lr=0.1"], "train.lr=0.1"),
        (["--strategy", "fedprox", "rounds=2"], "strategy=fedprox"),
        (["--local-steps", "3", "--quiet"], "train.local_steps=3"),
        (["--seed"], "seed=VALUE"),
    ],
)
def test_an_option_that_is_a_key_suggests_the_override(options, override, capsys):
    assert main(["run", *options]) == 2
    assert capsys.readouterr().err.strip().endswith(f"; keys are set without dashes: {override}")


def test_an_option_that_is_no_key_suggests_nothing(capsys):
    assert main(["run", "--quieter"]) == 2
    assert capsys.readouterr().err.strip().endswith("unrecognized arguments: --quieter")


def test_help_has_colours_on_a_terminal_only(monkeypatch):
    """Also where the user asks for none, as https://no-color.org says, the text is the plain one."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def shown(stream):
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["run", "--help"]) == 0
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, coloured = shown(io.StringIO()), shown(Terminal())
    assert "\x1b" not in plain
    assert re.search(r"\x1b\[1m\w+:\x1b\[0m\n", coloured), "a heading"
    assert "\x1b[36m--quiet\x1b" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal()) == plain


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    assert all(f"\n{group}\n" in out for group in GROUPS)
    assert all(f"  {name:<12}{about}\n" in out for name, (_, about) in COMMANDS.items())


def test_the_help_of_import_lists_every_key_that_no_option_names(capsys):
    assert main(["import", "--help"]) == 0
    out = capsys.readouterr().out
    options = {
        "party",
        "client",
        "nodes",
        "edges",
        "schema",
        "out",
        "outcomes",
        "role",
        "classes",
        "undirected",
        "split",
        "until",
    }
    others = {"match", "share", "agreement", "edge_kinds", "edge_scales"}
    for key in {field.name for field in fields(PartyFile)} - options - others:
        assert key in out, key
    assert "--time-column" not in out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run", "strategy=fedavgg"], "did you mean 'fedavg'"),
        (["run", "rounds=none"], "rounds"),
        (["run", "graph=/nowhere"], "/nowhere"),
        (["run", "train.lrr=1"], "did you mean 'train.lr'"),
        (["run", "engine=rai"], "did you mean 'ray'"),
        (["run", "engine=ray", "out=/proc/nowhere", *TWO_BLOCKS], "/proc/nowhere"),
        (["run", "out=/proc/nowhere", *TWO_BLOCKS], "/proc/nowhere"),
        (["run", "resume=/nowhere"], "/nowhere holds no run"),
        (["run", *TWO_BLOCKS, "partition=random", "num_clients=61"], "num_clients=61 exceeds the 60 nodes"),
        (["run", *TWO_BLOCKS, "partition=louvain", "num_clients=50"], "groups of nodes: lower num_clients"),
        (["run", *TWO_BLOCKS, "split.train=0"], "client 0 has 30 nodes, none for training"),
        (["partition", *TWO_BLOCKS, "split.train=0"], "client 0 has 30 nodes, none for training"),
        (["datasets", "coar"], "did you mean 'cora'"),
        (["run", "trian.lr=0.1"], "did you mean 'train'"),
        (["run", "strategy=fedavg", "strategy.mu=1"], "methods with this key: fedhero, fednova, fedprox, moon"),
        (["run", "train.xyzzy=3"], "is unknown (override) (`fedgraph-flwr keys` lists all)"),
        (["rnu"], "did you mean 'run'"),
        (["train"], "fedgraph-flwr run strategy=fedavg"),
        (["report", "/nowhere"], "/nowhere holds no run"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(overrides, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    assert main(overrides) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=fedomd", "model.ortho=maybe"], "model.ortho (model=fedomd) must be true or false, got 'maybe'"),
        (["strategy=fedomd", "model.newton_steps=-3"], "model.newton_steps must be >= 1, got -3"),
        (["strategy=fedspa", "model.profile=[plain]"], "model.profile (model=fedspa) must be a string, got ['plain']"),
        (["strategy=fedomd", "model=gcn"], "strategy=fedomd needs model=fedomd, got model=gcn: set model=fedomd"),
        (["strategy=fedomd", "strategy.beta=inf"], "strategy.beta must be >= 0 and finite, got inf"),
    ],
)
def test_a_wrong_key_of_a_network_is_told_before_any_client_starts(
    overrides, message, clients, tmp_path, capsys, caplog, monkeypatch
):
    with recorded_messages(monkeypatch) as messages:
        assert main(["run", *clients, *overrides, f"out={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message} [")
    assert not messages
    assert not caplog.records
    assert not (tmp_path / "out").exists()


def test_help_of_every_command_needs_no_torch():
    code = "import sys; from fedgraph_flwr.cli.app import COMMANDS, GROUPS, main\n"
    code += "for command in ['--help', *COMMANDS]: main([command, '--help'])\n"
    code += "sys.exit(' '.join({'torch', 'scipy', 'pandas'} & {*sys.modules}) or 0)"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, stdout=subprocess.DEVNULL, check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_code_2(clients, tmp_path, capsys):
    assert main(["run", *clients, "device=cuda", f"out={tmp_path / 'out'}"]) == 2
    assert "this node has no GPU that PyTorch can use; set device=auto or device=cpu" in capsys.readouterr().err
    assert main(["run", *clients, "device=auto", "rounds=1", f"out={tmp_path / 'out'}", "--quiet", "--no-report"]) == 0


def test_unknown_command_is_code_2():
    assert main(["trian"]) == 2


def test_run_leaves_what_it_promises(clients, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", *clients, "rounds=4", f"out={out}", "checkpoint_every=2"]) == 0
    printed = capsys.readouterr().out
    assert "test accuracy" in printed
    assert "report.html" in printed.replace("\n", "")
    for name in ("config.yaml", "rounds.jsonl", "summary.json", "model_final.safetensors", "model_best.safetensors"):
        assert (out / name).stat().st_size > 0
    page = (out / "report.html").read_text()
    assert f"reaches <b>{100 * json.loads((out / 'summary.json').read_text())['test_accuracy']:.1f} %</b>" in page
    summary = json.loads((out / "summary.json").read_text())
    assert 0 <= summary["test_accuracy"] <= 1
    assert summary["peak_rss_mb"] > 50
    assert summary["versions"]["flwr"]


def test_a_stored_configuration_repeats_the_run(clients, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    assert main(["run", *clients, "rounds=3", "seed=5", f"out={first}", "--no-report", "--quiet"]) == 0
    assert main(["run", f"config={first}/config.yaml", f"out={second}", "--no-report", "--quiet"]) == 0
    assert_same_arrays(_final(first), _final(second))


def test_a_graph_of_ones_own_from_tables_to_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    ids = range(40)
    Path("n.csv").write_text("id,label,a,b\n" + "".join(f"n{i},{'xy'[i % 2]},{i % 2},{i / 40}\n" for i in ids))
    Path("e.csv").write_text("source,target\n" + "".join(f"n{i},n{(i + 2) % 40}\n" for i in ids))
    given = ["--nodes", "n.csv", "--edges", "e.csv", "inputs=a"]
    assert main(["import", *given, "--undirected", "--name", "mine"]) == 0
    assert main(["datasets", "mine"]) == 0
    assert "nodes: 40" in capsys.readouterr().out
    overrides = ["dataset=mine", "partition=random", "num_clients=2", "split.train=0.4"]
    assert main(["partition", *overrides, "--out", "parts"]) == 0
    assert "2 client files" in capsys.readouterr().out
    assert main(["partition", *overrides]) == 0
    assert "homophily" in capsys.readouterr().out
    assert main(["run", "graph=parts", "rounds=2", "--quiet", "--no-report"]) == 0  # two clients: the folder says so
    (folder,) = Path("runs").iterdir()
    assert "-fedavg-mine-" in folder.name
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["dataset"] == "mine"
    assert main(["run", *overrides, "rounds=2", "out=direct", "--quiet", "--no-report"]) == 0
    assert_same_arrays(_final(folder), _final(Path("direct")))


def test_a_truncated_client_file_is_named(clients, tmp_path, capsys):
    path = tmp_path / "clients" / "client_0001.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    assert main(["run", *clients, "rounds=1"]) == 2
    assert "client_0001.safetensors, it is truncated" in capsys.readouterr().err


def test_reports_stand_side_by_side(clients, tmp_path, capsys):
    runs = [tmp_path / name for name in ("avg", "prox")]
    for out, strategy in zip(runs, ("fedavg", "fedprox"), strict=True):
        assert main(["run", *clients, f"strategy={strategy}", "rounds=2", f"out={out}", "--no-report", "--quiet"]) == 0
    assert main(["report", *map(str, runs)]) == 2
    assert f"a page of 2 folders would replace {runs[0]}'s own report: pass --page FILE" in capsys.readouterr().err
    assert main(["report", *map(str, runs), "--page", str(tmp_path / "both.html")]) == 0
    assert not (runs[0] / "report.html").exists()
    page = (tmp_path / "both.html").read_text()
    assert "<h1>FedAvg and FedProx on" in page


@pytest.mark.slow
def test_a_page_follows_a_run_until_it_ends(clients, tmp_path, monkeypatch, capsys):
    """While it trains the browser loads the page again; the last page is the finished run's."""
    out = tmp_path / "out"
    assert main(["run", *clients, "rounds=2", f"out={out}", "--quiet", "--no-report"]) == 0
    summary, page, seen = out / "summary.json", out / "report.html", []
    summary.rename(tmp_path / "summary.json")

    def ends(seconds):
        seen.append(page.read_text())
        (tmp_path / "summary.json").rename(summary)

    monkeypatch.setattr("time.sleep", ends)
    assert main(["report", str(out), "--watch", "--no-baselines"]) == 0
    assert [text.count('http-equiv="refresh"') for text in (*seen, page.read_text())] == [1, 0]
    assert "The run is not finished" in seen[0]
    assert "The run is not finished" not in page.read_text()
    assert "open it in a browser" in capsys.readouterr().err
    assert main(["report", str(out), str(out), "--watch"]) == 2


def test_an_interrupted_run_goes_on_to_the_same_result(clients, tmp_path):
    overrides = [*clients, "checkpoint_every=5", "train.local_steps=1", "--quiet", "--no-report"]
    command = [sys.executable, "-m", "fedgraph_flwr", "run", *overrides, "rounds=100000"]
    root = Path(__file__).parents[2]
    broken = tmp_path / "broken"
    process = subprocess.Popen(
        [*command, f"out={broken}"], cwd=root, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    wait_for(lambda: (broken / "checkpoint.safetensors").is_file() or process.poll() is not None, "a checkpoint")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert f"resume={broken}" in err
    assert not (broken / "summary.json").exists()
    rounds = read_tensors(broken / "checkpoint.safetensors")[1]["round"] + 3
    assert main(["run", f"resume={broken}", f"rounds={rounds}", "--no-report", "--quiet"]) == 0
    whole = tmp_path / "whole"
    assert main(["run", *overrides, f"rounds={rounds}", f"out={whole}"]) == 0
    assert_same_arrays(_final(whole), _final(broken))
    assert len((broken / "rounds.jsonl").read_text().splitlines()) == rounds


def test_a_full_disk_is_a_sentence_and_the_old_file_stays(tmp_path, monkeypatch):
    import os

    from fedgraph_flwr.data.files import write_bytes
    from fedgraph_flwr.errors import FedGraphError

    path = tmp_path / "checkpoint"
    write_bytes(path, b"whole")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedGraphError, match="No space left on device"):
        write_bytes(path, b"half")
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "/tmp/x"), "error: No space left on device (/tmp/x)"),
        (MemoryError("Unable to allocate 71 GiB"), "error: not enough memory on this machine (Unable to"),
    ],
)
def test_what_the_machine_cannot_do_is_a_sentence_wherever_it_happens(error, message, capsys, monkeypatch):
    def fails(cfg):
        raise error

    monkeypatch.setattr("fedgraph_flwr.launch.prepare.with_folder", fails)
    assert main(["run"]) == 1
    assert capsys.readouterr().err.startswith(message)


def test_the_handlers_of_signals_are_those_before_a_command(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["keys"]) == 0
    assert main(["nonsense"]) != 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_writes_the_scores_of_all_clients(clients, tmp_path, capsys):
    out, table = tmp_path / "run", tmp_path / "scored.csv"
    options = ["rounds=2", f"out={out}", "--no-report", "--quiet", "--predictions", str(table), "strategy=fedper"]
    assert main(["run", *clients, *options]) == 0
    scores = pd.read_csv(table)
    for client in range(3):
        capsys.readouterr()
        assert main(["predict", str(out), "--client", str(client)]) == 0
        expected = pd.read_csv(io.StringIO(capsys.readouterr().out))
        client_rows = scores[scores["client"] == client].drop(columns="client").reset_index(drop=True)
        pd.testing.assert_frame_equal(client_rows, expected)


@pytest.mark.parametrize(
    ("overrides", "name", "match"),
    [
        ([], "scored.txt", "unknown suffix: expected .csv or .parquet"),
        (["task=links"], "scored.csv", "task=links predicts pairs: run `fedgraph-flwr predict RUN --pairs FILE`"),
        (
            ["engine=banks"],
            "scored.csv",
            "engine=banks leaves them at the parties: run `fedgraph-flwr predict STATE`",
        ),
    ],
)
def test_predictions_that_cannot_be_written_are_refused_before_the_run(
    clients, tmp_path, capsys, overrides, name, match
):
    out = tmp_path / "run"
    assert main(["run", *clients, *overrides, f"out={out}", "--predictions", str(tmp_path / name)]) == 2
    assert match in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["methods"], "  fedprox               FedProx (Li et al., MLSys 2020)."),
        (["models"], "  gat                   GAT (Veličković et al., ICLR 2018): 8 heads of 8 as in the paper."),
        (["help"], "usage: fedgraph-flwr [-h] [--version] [--conf DIR] COMMAND ..."),
        (["version"], fg.__version__),
        (["-V"], fg.__version__),
    ],
)
def test_first_words_of_other_tools(words, line, capsys):
    assert main(words) == 0
    assert line in capsys.readouterr().out.splitlines()


def test_a_network_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "mynet.py").write_text(
        "import torch\nfrom torch_geometric.nn import GCNConv\n\n\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, nfeat, nclass):\n        super().__init__()\n        self.last = GCNConv(nfeat, nclass)\n\n"
        "    def forward(self, data):\n        return self.last(data.x, data.edge_index)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["datasets"]) == 0
    assert str(tmp_path) not in sys.path  # other commands may stand in a folder of someone else
    assert main(["run", "model=mynet:Net", "rounds=1", "out=run", "--quiet"]) == 0
