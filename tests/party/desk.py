"""Pages of a desk, from made tables with long and odd names."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from fedgraph_flwr.party.use.alerts import Calibration, Choice, Rule, figures, reliability
from fedgraph_flwr.party.use.explain import Reasons
from fedgraph_flwr.party.use.pages import alerts_page, drift_page, explain_page, worth_page

NAME = "<b>purpose & remittance information of the payment</b>"


def write_pages(folder: Path) -> None:
    """Write one page of each kind."""
    rng = np.random.default_rng(0)
    cfg = SimpleNamespace(strategy=SimpleNamespace(name="fedavg"), data_name="payments")
    predictor = SimpleNamespace(client=0, who="client 0", cfg=cfg)
    margin = rng.normal(-1, 1.5, 400)
    y = (rng.random(400) < 1 / (1 + np.exp(-margin))).astype(np.int64)
    day, fitted = np.repeat(np.arange(20), 20), Calibration(temperature=1.3)
    summary = figures(margin, y, day, 0.5)
    curves = {"before": reliability(1 / (1 + np.exp(-margin)), y), "after": reliability(fitted.apply(margin), y)}
    choice = Choice("0" * 16, 0, "fraud", Rule(budget=5), 0.5, fitted, summary, summary, curves)
    alert = pd.DataFrame(
        {
            "rank": range(1, 31),
            "edge": range(30),
            "source": "account-of-a-bank",
            "target": "<script>alert(1)</script>",
            "time": [f"2026-01-{1 + k // 3:02d}T00:00:00" for k in range(30)],
            "score": np.linspace(3, 1, 30),
            "probability": np.linspace(0.9, 0.6, 30),
            "model": "0" * 16,
            "reasons": f"column {NAME} = 3 (+0.5); payment 7 a1 → b2 2026-01-01T00:00:00 (+0.4)",
        }
    )
    alerts_page(choice, alert, predictor, 400).write(folder / "alerts.html")
    values = np.sort(rng.gamma(0.5, 0.2, 40))[::-1]
    verdicts = np.where(values > 0.25, "shifted", np.where(values > 0.1, "watch", "stable"))
    drift = pd.DataFrame({"table": "edges", "column": [f"{NAME} {k}" for k in range(40)], "what": "median"})
    drift = drift.assign(stored=1.0, new=rng.random(40), psi=values, chance=0.05, verdict=verdicts)
    shares = [0.1, 0.2, 0.7]
    drift.attrs["shapes"] = [(["a", "b", "c"], shares, shares[::-1]) if k % 2 else ([], [], []) for k in range(40)]
    drift.attrs["unseen"] = {f"{NAME} 0": "'<b>' (3 rows)"}
    drift_page(drift, predictor).write(folder / "drift.html")
    columns, edges = [f"{NAME} {k}" for k in range(8)], rng.normal(size=30)
    reasons = Reasons(
        item="p7",
        score=2.0,
        base=-1.0,
        without=0.3,
        columns=columns,
        of_columns=rng.normal(size=8),
        values=rng.normal(size=8),
        random=rng.normal(size=38),
        of_edges=edges,
        ends=np.full((2, 30), "account-of-a-bank", dtype=object),
        edges=np.arange(30).astype(object),
        time=np.arange(30) * 86_400,
    )
    explain_page([reasons, reasons], 20, predictor).write(folder / "explain.html")
    rows = [("Local", 0.4, 0.0, ""), ("Boosting", 0.5, 0.1, "better"), ("FedAvg (2)", 0.38, -0.02, "not decided")]
    worth = pd.DataFrame(
        {
            "run": name,
            "seeds": 1,
            "metric": "average_precision",
            "score": score,
            "low": score - 0.05,
            "high": score + 0.05,
            "difference": change,
            "difference_low": change - 0.03,
            "difference_high": change + 0.03,
            "verdict": verdict,
            "rounds": 20,
            "seconds": 12.5,
            "megabytes": 0.4,
            "epsilon": np.nan,
        }
        for name, score, change, verdict in rows
    )
    worth.attrs |= {"items": 400, "clusters": 20, "by": "day"}
    worth_page(worth).write(folder / "worth.html")
