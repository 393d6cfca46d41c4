"""What a report says: each figure against a second derivation, and what it must not say."""

import ast
import html
import json
import math
import re
import shutil
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import scipy.stats
import torch

import fedgraph_flwr as fg
from fedgraph_flwr import partition
from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.run import print_summary
from fedgraph_flwr.client_app import app
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose, to_json
from fedgraph_flwr.data.statistics import degree_shares
from fedgraph_flwr.engine.grid import forget, run_identity
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.intervals import interval, paired
from fedgraph_flwr.launch.serving import serve
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.report import units
from fedgraph_flwr.report.predicted import Predicted, bins, calibration_error, predict, roc
from fedgraph_flwr.report.runs import beside, group_runs, load_run
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.store.checkpoint import Checkpoint, check_resumable, fingerprint
from fedgraph_flwr.strategies.scoring import check_scores, confusion_of
from fedgraph_flwr.sweeps import palette
from fedgraph_flwr.sweeps import runs as sweep_runs
from fedgraph_flwr.wire.messages import Reply
from tests.conftest import client_graph
from tests.report.conftest import WORDS
from tests.support import write_report


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def charts(page):
    return json.loads(re.search(r'id="charts">(.*?)</script>', page, re.S)[1])


def answer(page):
    return re.search(r'<p class="answer">(.*?)</p>', page, re.S)[1]


def test_the_answer_is_the_headline_beside_majority_and_what_lies_in_folders_beside(runs, tmp_path):
    page = write_report([runs / "fedavg-0"], tmp_path / "page.html").read_text()
    federated, alone, whole = (summary(runs / name) for name in ("fedavg-0", "local-0", "central-0"))
    said = answer(page)
    assert (
        f"FedAvg reaches <b>{100 * federated['test_accuracy']:.1f} %</b> test accuracy on csbm over 3 clients" in said
    )
    for other, name in (
        (alone, "Local (each client on its own graph"),
        (whole, "Central (one model on the whole graph"),
    ):
        gap = 100 * (federated["test_accuracy"] - other["test_accuracy"])
        change = f"({'+' if gap >= 0 else '−'}{abs(gap):.1f} points)"
        score = f"{100 * other['test_accuracy']:.1f} %"
        assert f"too few seeds to tell it from {name}, {score}) {change}" in said
    majority = federated["metrics"]["best_val"]["test_majority"]
    assert f"always predicting the most frequent class ({100 * majority:.1f} %)" in said


@pytest.fixture
def payments(runs, tmp_path):
    """A run of two classes whose headline is average precision."""
    overrides = ["dataset.params.classes=2", "evaluation.metric=average_precision"]
    assert main(["run", *WORDS, *overrides, f"out={tmp_path / 'ap'}"]) == 0
    return tmp_path / "ap"


def test_average_precision_is_compared_with_the_share_of_the_positive_class(payments, tmp_path):
    """Everywhere: summary, headline, charts, table, `compare`."""
    done, records = summary(payments), [json.loads(line) for line in (payments / "rounds.jsonl").open()]
    cfg = compose([], payments / "config.yaml")
    graphs = [partition.load_client(cfg, client) for client in range(3)]
    shares = [float((g.y[g.test_mask] == 1).double().mean()) for g in graphs]
    assert done["chance"] == pytest.approx(np.mean(shares))
    assert "test_accuracy" not in done
    assert done["test_average_precision"] == done["metrics"]["best_val"]["test_average_precision"]
    page = write_report([payments], tmp_path / "page.html").read_text()
    gap = 100 * (done["test_average_precision"] - done["chance"])
    assert (
        f"{abs(gap):.1f} points {'above' if gap >= 0 else 'below'} the share of the positive class ({100 * done['chance']:.1f} %)"
        in answer(page)
    )
    assert "frequent class" not in answer(page)
    drawn = charts(page)
    ranked = next(c for c in drawn.values() if c["kind"] == "plane" and c["series"][-1]["name"] == "chance")
    best = records[done["best_round"] - 1]["clients"]["test-average_precision"]
    order = sorted(range(3), key=lambda c: -best[c])
    assert [y for _, y, *_ in ranked["series"][-1]["points"]] == pytest.approx([shares[c] for c in order], abs=1e-5)
    view = next(c["views"]["average precision"] for c in drawn.values() if "average precision" in c.get("views", {}))
    (line,) = (s for s in view["series"] if s["name"] == "chance")
    assert line["y"] == pytest.approx([done["chance"]] * 3, abs=1e-5)
    other = tmp_path / "prox"
    overrides = [f"config={payments / 'config.yaml'}", "strategy=fedprox", f"out={other}", "--quiet", "--no-report"]
    assert main(["run", *overrides]) == 0
    both = write_report([payments, other], tmp_path / "both.html").read_text()
    rows = next(c["rows"] for c in charts(both).values() if c["kind"] == "dots")
    assert rows[-1]["name"] == "Chance"
    assert rows[-1]["mean"] == pytest.approx(done["chance"], abs=1e-5)
    assert fg.compare([payments]).chance[0] == pytest.approx(done["chance"])
    assert "test_chance_average_precision" in fg.load_run(payments).table().index


def one_class(logits, y):
    """A metric that rewards predictions of one class."""
    return 1 / len(np.unique(logits.argmax(1)))


@pytest.mark.parametrize(
    ("metric", "lr", "below"),
    [("tests.report.test_contents:one_class", 0.1, True), ("accuracy", 0.1, False), ("accuracy", 1e-9, True)],
)
def test_a_run_that_ends_below_the_chance_level_warns(runs, tmp_path, caplog, capsys, metric, lr, below):
    overrides = [*WORDS, f"evaluation.metric={metric}", f"train.lr={lr}", "rounds=2", f"out={tmp_path / 'run'}"]
    assert main(["run", *(word for word in overrides if word != "rounds=3")]) == 0
    warned = [line for line in caplog.messages if "is below its chance level" in line]
    done = summary(tmp_path / "run")
    key = done["headline"].partition(" at ")[0]
    assert bool(warned) == (done[key] < done["chance"]) == below
    text = f"{key} at best_val = {done[key]:.4f} is below its chance level {done['chance']:.4f}"
    assert all(text in line for line in warned)
    assert f"= {done[key]:.4f} (chance level {done['chance']:.4f})" in capsys.readouterr().out


def test_clients_without_a_score_are_named_beside_the_mean(runs, tmp_path, capsys):
    """A client with one class has no average precision: table, headline, summary and closing table say so."""
    cfg = compose([*(w for w in WORDS if "=" in w), "dataset.params.classes=2"])
    graphs = [partition.load_client(cfg, client) for client in range(3)]
    data = [graph.to_pyg() for graph in graphs]
    data[1].y[data[1].test_mask] = 0
    data[2].test_mask[:] = False
    overrides = ["model.hidden=8", "rounds=2", "evaluation.metric=average_precision"]
    run = fg.run(*overrides, graphs=data, out=str(tmp_path / "run"), progress=False)
    reasons = {"1": "one class among its scored test items", "2": "no scored test items"}
    assert run.summary["left_out"] == reasons
    assert run.summary["test_average_precision"] == run.clients.test_average_precision[0]
    assert run.summary["chance"] == pytest.approx(float((data[0].y[data[0].test_mask] == 1).double().mean()))
    page = run.report().read_text()
    assert (
        "It covers 1 of 3 clients (client 1: one class among its scored test items; client 2: no scored test items)."
        in html.unescape(page)
    )
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert {"one class among its scored test items", "no scored test items"} <= set(cells)
    print_summary(run.summary, run.config)
    assert "excluded from the headline score: client 1: one class among its scored test items" in " ".join(
        capsys.readouterr().out.split()
    )


def test_another_cut_and_another_seed_are_not_found_beside(runs, tmp_path):
    shutil.copytree(runs / "fedavg-0", tmp_path / "own")
    shutil.copytree(runs / "local-0", tmp_path / "same")
    for name, word in (("cut", "num_clients=2"), ("seed", "seed=7")):
        overrides = [word, "rounds=1", "strategy=local", f"out={tmp_path / name}"]
        assert (
            main(["run", *(w for w in WORDS if w.split("=")[0] != word.split("=")[0] and w != "rounds=3"), *overrides])
            == 0
        )
    companions = beside([load_run(tmp_path / "own")])
    assert [run.folder.name for run in companions] == ["same"]
    assert "Local" not in answer(write_report([tmp_path / "own"], tmp_path / "page.html", baselines=False).read_text())


def test_seeds_are_folded_and_differences_paired(runs, tmp_path):
    folders = [runs / f"{method}-{seed}" for method in ("fedavg", "fedprox") for seed in (0, 1)]
    page = write_report(folders, tmp_path / "page.html", baselines=False).read_text()
    a, b = (
        np.array([summary(runs / f"{method}-{seed}")["test_accuracy"] for seed in (0, 1)])
        for method in ("fedavg", "fedprox")
    )
    top = max((a, b), key=np.mean)
    half = scipy.stats.t.ppf(0.975, 1) * scipy.stats.sem(top)
    assert f"{100 * top.mean():.1f} ± {100 * half:.1f} %" in answer(page)
    dots = [chart for chart in charts(page).values() if chart["kind"] == "dots"]
    (row,) = dots[1]["rows"]
    low, high = (
        scipy.stats.t.interval(0.95, 1, (b - a).mean(), scipy.stats.sem(b - a))
        if (b - a).std()
        else ((b - a).mean(),) * 2
    )
    assert [row["mean"], row["lo"], row["hi"]] == pytest.approx([(b - a).mean(), low, high], abs=1e-6)
    assert [row["name"] for row in dots[0]["rows"]] == ["FedAvg", "FedProx", "Chance"]


def test_intervals_are_students_and_pairs_need_both_seeds():
    values = [0.8, 0.9, 0.7]
    estimate = interval(values)
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert (estimate.mean - estimate.half, estimate.mean + estimate.half) == pytest.approx((low, high))
    estimate = paired({0: 0.5, 1: 0.7, 2: math.nan}, {1: 0.6, 0: 0.45, 3: 0.1})
    assert (estimate.n, estimate.mean) == (2, pytest.approx(0.075))
    assert paired({0: 0.5}, {1: 0.5}) is None


def test_settings_are_named_by_what_tells_them_apart(runs, tmp_path):
    overrides = [*WORDS, "strategy=fedavg", "train.lr=0.1", f"out={tmp_path / 'fast'}"]
    assert main(["run", *overrides]) == 0
    named = group_runs([load_run(folder) for folder in (runs / "fedavg-0", tmp_path / "fast", runs / "fedprox-0")])
    assert [group.name for group in named] == ["FedAvg · lr=0.01", "FedAvg · lr=0.1", "FedProx"]


@pytest.mark.parametrize("name", ["fedavg-0", "local-0", "central-0"])
def test_predictions_are_those_that_were_scored(runs, name):
    run = load_run(runs / name)
    predictions = predict(run, load_predictor)
    scores = run.per_client
    right = sum(share * count for share, count in zip(scores["test-accuracy"], scores["test-count"], strict=True))
    assert (predictions.chances.argmax(1) == predictions.y).sum() == round(right)
    assert len(predictions.y) == sum(scores["test-count"])


def test_curves_of_two_classes_and_calibration_by_hand():
    rng = np.random.default_rng(0)
    chance = rng.integers(0, 12, 60) / 12  # with ties
    y = (rng.random(60) < chance).astype(int)
    predictions = Predicted(np.stack([1 - chance, chance], 1), y, 1, 1)
    false, recall, precision = roc(chance, y == 1)
    for at in np.unique(chance):
        taken = chance >= at
        k = np.flatnonzero(np.isclose(recall, taken[y == 1].mean()) & np.isclose(false, taken[y == 0].mean()))
        assert precision[k[-1]] == pytest.approx(y[taken].mean())
    logits = np.log(np.clip(predictions.chances, 1e-9, 1))
    assert np.trapezoid([0, *recall], [0, *false]) == pytest.approx(metrics.auc(logits, y))
    error, nodes = 0.0, 0
    for low in np.arange(10) / 10:
        sure = predictions.chances.max(1)
        held = (sure >= low) & ((sure < low + 0.1) | (low == 0.9))
        if held.any():
            error += abs((predictions.chances.argmax(1) == y)[held].mean() - sure[held].mean()) * held.sum() / 60
            nodes += held.sum()
    assert nodes == bins(predictions)[2].sum() == 60
    assert calibration_error(predictions) == pytest.approx(error)


def test_a_confusion_matrix_has_every_test_node(runs, tmp_path):
    page = write_report([runs / "fedavg-0"], tmp_path / "page.html", baselines=False).read_text()
    (matrix,) = next(
        chart["views"] for chart in charts(page).values() if "views" in chart and "FedAvg" in chart["views"]
    ).values()
    scores = load_run(runs / "fedavg-0").per_client
    assert np.sum(matrix["counts"]) == sum(scores["test-count"])
    assert np.trace(matrix["counts"]) == round(np.dot(scores["test-accuracy"], scores["test-count"]))
    np.testing.assert_allclose(np.sum(matrix["values"], axis=1), 1, atol=1e-5)


def test_a_confusion_matrix_that_clients_told_is_the_one_that_their_files_give(tmp_path, monkeypatch):
    folder = tmp_path / "sent"
    overrides = ["evaluation.confusion=true", "evaluation.select=last", f"out={folder}"]
    assert main(["run", *WORDS, *overrides]) == 0

    def matrix():
        page = write_report([folder], tmp_path / "page.html", baselines=False).read_text()
        drawn = charts(page).values()
        (view,) = next(chart["views"] for chart in drawn if "FedAvg" in chart.get("views", {})).values()
        return view["counts"], page

    ours, page = matrix()
    assert "As reported by the clients of" not in page
    monkeypatch.setattr("fedgraph_flwr.report.runs.FinishedRun.clients", [])  # as those of a fleet
    reported, page = matrix()
    assert reported == ours
    assert "As reported by the clients of FedAvg" in page
    assert "Calibration" not in page


def test_a_client_tells_no_count_that_its_policy_forbids():
    graph = replace(client_graph(0), test_mask=torch.ones(16, dtype=torch.bool))
    graph.y[0] = -1  # nobody knows
    client = GraphClient(compose(["evaluation.confusion=true", "model.hidden=4"]), graph)
    logits = torch.nn.functional.one_hot(torch.tensor([0, 1, 2] + [0, 1, 2] * 3 + [1, 1, 1, 0]), 3).float()
    assert graph.y.tolist() == [-1, 1, 2] + [0, 1, 2] * 4 + [0]
    assert client.task.confusion(logits, client.policy.min_nodes) == [4, 1, 0, 0, 5, 0, 0, 1, 4]
    client.policy = Policy(min_nodes=5)
    assert client.task.confusion(logits, client.policy.min_nodes) == [-5, -5, -5, -5, 5, -5, -5, -5, -5]
    client.policy = Policy(min_nodes=1)
    assert client.task.confusion(logits, client.policy.min_nodes) == [4, 1, 0, 0, 5, 0, 0, 1, 4]


def test_no_share_is_computed_of_counts_that_clients_keep(fleet, tmp_path):
    """A row with a count below a client's minimum shows counts only; of 100 % found there is no word."""
    records = [json.loads(line) for line in (fleet / "rounds.jsonl").open()]
    kept = [np.where(cells < 5, -5, cells) for cells in (np.array([40, 0, 9, 3]), np.array([30, 0, 7, 8]))]
    summed = confusion_of([Reply(c, metrics={"confusion": cells.tolist()}) for c, cells in enumerate(kept)], 2)
    assert summed == {"confusion": [[70, 0], [16, 8]], "confusion_below": [[0, 5], [0, 5]]}
    exact = confusion_of([Reply(0, metrics={"confusion": [1.0, 0.0, 2.0, 3.0]})], 2)
    assert exact == {"confusion": [[1, 0], [2, 3]]}
    summed["confusion_below"][1] = [0, 0]
    lines = [json.dumps({**record, **summed}) for record in records]
    (fleet / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    page = write_report([fleet], tmp_path / "page.html").read_text()
    (view,) = next(chart["views"] for chart in charts(page).values() if "FedAvg" in chart.get("views", {})).values()
    assert view["values"] == [[None, None], pytest.approx([16 / 24, 8 / 24], abs=1e-5)]
    assert view["labels"] == [["70", "< 5"], ["", ""]]
    assert "a client has fewer than n such nodes" in html.unescape(page)


@pytest.fixture
def fleet(runs, tmp_path):
    """The folder of a run whose server knows its clients by what they report: its engine is no simulation."""
    cfg = compose([*(w for w in WORDS if "=" in w), "dataset.params.classes=2"])
    out = str(tmp_path / "fleet")
    grid = InlineGrid(app, 3, {"config": to_json(cfg), "overrides": ""})
    try:
        with run_identity(grid.run_id):
            serve(grid, replace(cfg, engine="somewhere", out=out))
    finally:
        forget(grid.run_id)
    return tmp_path / "fleet"


def test_the_results_of_a_fleet_show_what_clients_reported_and_name_no_dataset(fleet, tmp_path, capsys):
    cfg = compose([*(w for w in WORDS if "=" in w), "dataset.params.classes=2"])
    graphs = [partition.load_client(cfg, client) for client in range(3)]
    done = summary(fleet)
    sizes = [
        {
            "num_train": int(g.train_mask.sum()),
            "num_features": g.num_features,
            "num_classes": 2,
            "num_val": int(g.val_mask.sum()),
            "num_test": int(g.test_mask.sum()),
        }
        for g in graphs
    ]
    assert done["dataset"] == "unknown"
    assert done["clients"] == {str(client): sizes_of for client, sizes_of in enumerate(sizes)}
    run = fg.load_run(fleet)
    assert run.config.dataset.name == "unknown"
    assert "csbm" not in repr(run)
    assert fg.compare([fleet]).dataset[0] == "unknown"
    page = html.unescape(write_report([fleet], tmp_path / "page.html").read_text())
    assert "csbm" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "on the graphs of a fleet over 3 clients" in answer(page)
    head = next(re.findall(r"<button type=.button.>(.*?)</button>", table) for table in page.split("<table")[1:])
    assert head == [
        "client",
        "accuracy",
        "chance",
        "training nodes",
        "validation nodes",
        "features",
        "classes",
        "test nodes",
    ]
    rows = re.findall(r"<tr><td class=.number. data-key=.\d.>\d</td>.*?</tr>", page)
    sizes_of = [[float(key) for key in re.findall(r"data-key=.([\d.]+).>", row)] for row in rows[:3]]
    assert [row[3:] for row in sizes_of] == [
        [s["num_train"], s["num_val"], s["num_features"], 2, s["num_test"]] for s in sizes
    ]
    assert "are unknown here, because the parties keep" in page
    for chart in ("… against its label mix", "… against its homophily", "Labels of each client", "Confusion matrix"):
        assert chart not in page
    with pytest.raises(FedGraphError, match="a run of the fleet 'somewhere', whose graphs are not on this"):
        run.predict(client=0)
    assert sweep_majority(["engine=somewhere"]) == "refused"
    print_summary(run.summary, run.config)
    assert "csbm" not in capsys.readouterr().out


def sweep_majority(overrides):
    with pytest.raises(FedGraphError, match="is a fleet, whose parties keep their labels"):
        sweep_runs.majority(overrides)
    return "refused"


def test_a_run_of_a_fleet_is_resumed_whatever_dataset_its_configuration_names(fleet):
    """Older versions compared it, and wrote it down."""
    cfg = compose([], fleet / "config.yaml")
    stored = fingerprint(replace(cfg, engine="inline"), None)
    checkpoint = Checkpoint(3, "0" * 16, 1, 0.5, {"round": 3}, stored, {}, {})
    check_resumable(replace(cfg, dataset=replace(cfg.dataset, name="cora")), checkpoint, None)
    with pytest.raises(FedGraphError, match=r"train\.lr"):
        check_resumable(replace(cfg, train=replace(cfg.train, lr=0.5)), checkpoint, None)


@pytest.mark.parametrize("counts", [[5.0, 0, 0, 0], [0.5, 0, 0, 0]])
def test_a_confusion_matrix_of_more_nodes_or_of_parts_of_one_is_refused(counts):
    scores = {"test-count": [4.0], "test-accuracy": [0.5], metrics.CONFUSION: counts}
    with pytest.raises(
        FedGraphError, match=r"client 1 with a confusion matrix of .* nodes, expected counts of at most 4"
    ):
        check_scores(scores, {}, "client 1")


def test_degrees_fall_into_classes_that_double():
    names, shares = degree_shares(np.array([0, 1, 2, 3, 4, 5, 8, 9, 256, 257]))
    share_of = dict(zip(names, shares, strict=True))
    assert share_of["3–4"] == share_of["5–8"] == pytest.approx(0.2)
    assert [share_of[name] for name in ("0", "1", "2", "9–16", "129–256", "> 256")] == pytest.approx([0.1] * 6)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (999, "999 B"), (147_605_200, "148 MB"), (1_840, "1.8 kB"), (2.5e12, "2.5 TB"), (math.nan, "–")],
)
def test_bytes_are_readable(value, shown):
    assert units.size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0034, "3 ms"), (4.21, "4.2 s"), (725, "12 min 5 s"), (11_400, "3 h 10 min"), (math.nan, "–")],
)
def test_durations_are_readable(value, shown):
    assert units.duration(value) == shown


@pytest.mark.parametrize("scores", ["none", "noised"])
def test_what_clients_kept_is_not_told_by_the_report(scores, runs, tmp_path):
    overrides = [*WORDS, "strategy.weighting=uniform", f"out={tmp_path / 'run'}", f"privacy.scores={scores}"]
    overrides += ["privacy.dp=server_fixed", "privacy.noise_multiplier=2", "privacy.delta=0.1"]
    assert main(["run", *overrides]) == 0
    page = write_report([tmp_path / "run"], tmp_path / "page.html", baselines=False).read_text()
    assert f"privacy.scores={scores}" in page
    assert "Confusion matrix" not in page
    assert "Score of each client" not in page
    assert '<dt>differential privacy</dt><dd><span class="on">on</span>' in page
    assert "replaced by zero" in page


def test_clients_that_are_elsewhere_leave_their_graphs_out(runs, tmp_path):
    """As of a fleet: the server's machine has the records alone."""
    shutil.copytree(runs / "fedavg-0", tmp_path / "run")
    config = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(re.sub(r"^graph: .*$", "graph: /nowhere", config, flags=re.M))
    page = write_report([tmp_path / "run"], tmp_path / "page.html").read_text()
    assert html.unescape(page).count("the client files are not on this machine") == 2
    assert "Score of each client" in page
    assert "Confusion matrix" not in page


def test_failures_say_who_when_and_why(runs, tmp_path):
    shutil.copytree(runs / "fedavg-0", tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    for record in records[1:]:
        record["failed"] = {"2 (train)": "it took <too> long"}
    (tmp_path / "run" / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    page = write_report([tmp_path / "run"], tmp_path / "page.html", baselines=False).read_text()
    assert "2 replies failed" in page
    row = re.search(r"<tr><td>client 2 \(train\)</td>.*?</tr>", page)[0]
    assert "2 to 3" in row
    assert "it took &lt;too&gt; long" in row


def test_names_with_markup_are_escaped(runs, tmp_path):
    shutil.copytree(runs / "fedavg-0", tmp_path / "run")
    summary_file, config = tmp_path / "run" / "summary.json", tmp_path / "run" / "config.yaml"
    classes = load_run(runs / "fedavg-0").clients[0]["classes"]
    names = ["</script><img src=x>", "R&D", *map(str, range(2, classes))]
    summary_file.write_text(json.dumps(summary(runs / "fedavg-0") | {"classes": names, "versions": {"<i>": "1"}}))
    config.write_text(re.sub(r"^  name: fedavg$", "  name: <b>mine</b>", config.read_text(), flags=re.M))
    page = write_report([tmp_path / "run"], tmp_path / "page.html", baselines=False).read_text()
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert not re.search(r"<b>mine|<img|<i>|&amp;(lt|gt|amp|#\d+);", page)
    assert any(names[0] in chart.get("columns", []) for chart in charts(page).values())


def test_no_markup_is_written_in_python():
    sources = resources.files("fedgraph_flwr.report").iterdir()
    literals = [
        f"{path.name}: {node.value!r}"
        for path in sources
        if path.name.endswith(".py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"<[a-z]+[ >]", node.value)
    ]
    assert literals == []


def test_the_library_is_the_one_that_is_named():
    assets = resources.files("fedgraph_flwr.report") / "assets"
    library, readme = (assets / "echarts.min.js").read_text(), (assets / "README.md").read_text()
    kilobytes = int(re.search(r"It is (\d+) kB", readme)[1])
    assert len(library.encode()) / 1000 == pytest.approx(kilobytes, abs=1)
    assert re.search(r"ECharts\S* (\d+\.\d+\.\d+)", readme)[1] in library


def test_costs_list_what_clients_sent_by_group(runs, tmp_path):
    def cells(folder):
        page = write_report([folder], tmp_path / "page.html", baselines=False).read_text()
        section = re.search(r"group sent by clients.*?</table>", page, re.S)
        return re.findall(r"<td[^>]*>(.*?)</td>", section[0], re.S) if section else []

    summarised = summary(runs / "fedavg-0")
    sent = summarised["bytes_by_phase"]["train"]["bytes_up_by_group"]
    assert sent.keys() == {"model", "metrics"}
    shown = [cell.strip() for cell in cells(runs / "fedavg-0")]
    for group, count in sent.items():
        place = next(i for i in range(len(shown)) if shown[i : i + 2] == ["train", group])
        assert shown[place + 2] == units.size(count)

    old = tmp_path / "old"
    shutil.copytree(runs / "fedavg-0", old)
    for entry in summarised["bytes_by_phase"].values():
        del entry["bytes_up_by_group"]
    (old / "summary.json").write_text(json.dumps(summarised))
    assert cells(old) == []


def test_pictures_have_the_colours_of_the_pages():
    assets = resources.files("fedgraph_flwr.report") / "assets"
    light = re.findall(r"--s\d: light-dark\((#\w+),", (assets / "page.css").read_text())
    assert tuple(light) == palette.COLOURS
    symbols = re.search(r"const SYMBOLS = \[(.*?)\]", (assets / "page.js").read_text())
    names = {"circle": "o", "rect": "s", "triangle": "^", "diamond": "D", "PLUS": "P", "DOWN": "v", "RIGHT": ">"}
    assert symbols
    assert tuple(names[name.strip(' "')] for name in symbols[1].split(",")) == palette.MARKERS
