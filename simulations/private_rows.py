"""Privacy of single rows, measured: ``python -m simulations.private_rows``, average precision on payments of five banks.

Banks train an MLP on columns of their own records (`WORDS`) by gradient averaging. Settings are a bank's own data and the sum of
all banks without privacy, and with noise at each bank or inside the secure sum at several ε. The steps are those of a run: rows
drawn and clipped by `clients.row_gradients`, noise of `secure.rows` or `secure.distributed`, the server's optimiser. Messages
and masks are left out, which do not change a sum. Hyper-parameters are chosen on validation payments of seed 0 at ε = 3, with
noise at each bank (``--choose``, which prints them). ``results/private_rows.csv`` has a row per setting and seed; stored rows are
not repeated. ``results/private_rows.md`` has the means.

    python -m simulations.private_rows --rows 1000000 --banks 3 --train 0.9 --batch 5000             # a million rows
    python -m simulations.private_rows --rows 1000000 --banks 1 --train 0.9 --batch 5000 --last 8    # also unit=payment

With `--last`, columns read at most so many payments at each end, and the noise of `privacy.unit=payment` is measured, too. Its
mechanism reads all rows in each of its `PAYMENT_ROUNDS` steps. Here a step estimates that sum from a sample of `PAYMENT_SAMPLE`
of the rows, which adds noise to it: at most a quarter of the variance of the mechanism's own. ``--bounds`` prints the noise of
each ε, and this ε over the nearly exact one of Gaussian noise (dp-accounting's privacy loss distribution).
"""

import argparse
import csv
import itertools
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from fedgraph_flwr import partition
from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.config import PrivacyConfig, RunConfig, compose
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.evaluation.metrics import average_precision
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.optim import NamedOptimizer
from fedgraph_flwr.secure import noise, rows
from fedgraph_flwr.secure.accounting import cost
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.secagg import threshold
from fedgraph_flwr.wire.messages import MODEL

BANKS = 5
PATH = Path(__file__).parent / "results" / "private_rows.csv"
CASE = ["rows", "skew", "banks", "train", "batch", "last"]
FIELDS = [*CASE, "setting", "epsilon", "seed", "noise_multiplier", "rounds", "validation", "test", "commit"]
OWN, ALL, LOCAL, SECURE = "own data", "no privacy", "noise at each bank", "noise in the secure sum"
PAYMENT = "noise for payments at each bank"
EPSILONS = (1.0, 3.0, 8.0)
ROUNDS, PAYMENT_ROUNDS, PAYMENT_SAMPLE = 150, 30, 0.05
CHOSEN: dict[str, dict[str, float]] = {
    OWN: {"lr": 0.03, "clip": 0},
    ALL: {"lr": 0.03, "clip": 0},
    LOCAL: {"lr": 0.03, "clip": 0.3},
    SECURE: {"lr": 0.03, "clip": 0.3},
    PAYMENT: {"lr": 0.03, "clip": 0.3},
}
"""Learning rate and clipping norm of each setting, by ``--choose``; those of `PAYMENT` are taken from `LOCAL`."""


def config(
    size: int, skew: float, seed: int, batch: int, lr: float, banks: int = BANKS, train: float = 0.6, last: int = 0
) -> RunConfig:
    """Return the configuration of banks with about this many training payments each.

    Args:
        size: training payments of a bank.
        skew: sizes of banks fall with rank^-skew.
        seed: seed of the data and of the model.
        batch: expected rows of a batch.
        lr: learning rate.
        banks: how many.
        train: share of a bank's payments that is for training; the later ones are halved for validation and test.
        last: most payments that a column reads at each end; 0: all in its windows.
    """
    per = banks / BANKS * 0.6 / train
    words = [
        "task=edges",
        "dataset=payments",
        "dataset.recipe=payments",
        "dataset.windows=[2,0.5]",
        "task.between=true",
    ]
    words += [f"num_clients={banks}", f"seed={seed}", f"dataset.skew={skew}", "split.step=null", f"dataset.last={last}"]
    words += [f"split.train={train}", f"split.val={(1 - train) / 2:g}", f"split.test={(1 - train) / 2:g}"]
    words += [f"dataset.accounts={round(size * per / 2)}", f"dataset.background={round(7 * size * per)}"]
    words += [f"dataset.per_kind={round(size * per / 125)}"]
    words += [
        "strategy=fedgrad",
        "model=mlp",
        "model.hidden=32",
        "model.dropout=0",
        f"train.lr={lr}",
        "train.weight_decay=0",
    ]
    words += ["privacy.unit=row", "privacy.dp=local", "privacy.noise_multiplier=1", "privacy.scores=none"]
    words += [f"privacy.rows={size}", f"privacy.batch={batch}", f"privacy.delta={0.3 / size}"]
    cfg = compose(words)
    return replace(cfg, privacy=replace(cfg.privacy, secagg_bits=20))  # of the secure sums


class Bank:
    """A bank's client, and the columns of its validation and test payments."""

    def __init__(self, cfg: RunConfig, number: int):
        self.client = FedGradClient(cfg, partition.load_client(cfg, number))
        self.rows, self.model = self.client.training_rows, self.client.model
        task: Any = self.client.task
        self.start = {name: t.clone() for name, t in self.model.state_dict().items()}
        last = len(task.points) - 1
        graph, attr = task.until(last), task.item_attr(last)
        self.parts = {}
        for split in ("val", "test"):
            items = task.masks[split].nonzero().view(-1)
            places = task._places(last, items)
            inputs = Inputs(graph.x, None, item_index=graph.edge_index[:, places], item_attr=attr[places])  # type: ignore[arg-type]
            self.parts[split] = inputs, task.y[items].numpy()

    def score(self, values: dict[str, torch.Tensor], split: str) -> float:
        """Return average precision of a model."""
        inputs, y = self.parts[split]
        self.model.load_state_dict(values)
        self.model.eval()
        with torch.no_grad():
            logits = self.model(inputs)
        return average_precision(logits.numpy(), y)


def multiplier(rules: PrivacyConfig, epsilon: float, rounds: int, banks: int = BANKS) -> float:
    """Return the least noise multiplier whose ε is at most this one."""
    z = float(brentq(lambda z: cost(replace(rules, noise_multiplier=z), banks, rounds) - epsilon, 0.3, 99, xtol=1e-3))
    while cost(replace(rules, noise_multiplier=z), banks, rounds) > epsilon:
        z *= 1.001
    return z


def train(banks: Sequence[Bank], rules: PrivacyConfig | None, cfg: RunConfig, rounds: int) -> dict[str, torch.Tensor]:
    """Return the parameters after some rounds; ``rules`` None: neither clipped nor noised."""
    values = dict(banks[0].start)
    optimizer, names, read = NamedOptimizer(cfg.train), list(values), rules or cfg.privacy
    for _ in range(rounds):
        total = np.zeros(sum(t.numel() for t in values.values()))
        for bank in banks:
            bank.model.load_state_dict(values)
            bound = rules.clipping_norm if rules else float("inf")
            drawn = torch.from_numpy(rows.drawn(len(bank.rows.y), cfg.privacy.sampling_rate))
            sums = bank.rows.clipped_sums(drawn, bound)
            gradient = np.concatenate([sums[name].numpy().ravel() for name in names])
            gradient *= read.sampling_rate / cfg.privacy.sampling_rate
            if rules and rules.side == "local":
                gradient = rows.released(gradient, bound, rules, noise.source())
            elif rules:
                count, needed = len(banks), threshold(rules.secagg_threshold, len(banks))
                gradient = DistributedNoise(rules).terms({MODEL: {"w": gradient}}, {MODEL: 1 / count}, count, needed)
                gradient = gradient * (count / 2.0**rules.secagg_bits)
            total += gradient
        parts = np.split(total / (len(banks) * read.expected_rows), np.cumsum([values[n].numel() for n in names])[:-1])
        grads = {
            n: torch.from_numpy(p).reshape(values[n].shape).to(values[n]) for n, p in zip(names, parts, strict=True)
        }
        values = optimizer.step(values, grads)
    return values


def measured(
    banks: Sequence[Bank], cfg: RunConfig, setting: str, epsilon: float, keys: dict[str, Any]
) -> dict[str, Any]:
    """Return a row's noise multiplier and scores, means over banks."""
    rules, rounds = None, PAYMENT_ROUNDS if setting == PAYMENT else ROUNDS
    if setting not in (OWN, ALL):
        rules = replace(cfg.privacy, clipping_norm=keys["clip"])
        rules = replace(rules, dp="distributed", secagg=True) if setting == SECURE else rules
        rules = (
            replace(rules, unit="payment", look_back=cfg.dataset.params["last"], batch=0)
            if setting == PAYMENT
            else rules
        )
        rules = replace(rules, noise_multiplier=multiplier(rules, epsilon, rounds, len(banks)))
    models = [train([bank], None, cfg, rounds) for bank in banks] if setting == OWN else []
    models = models or [train(banks, rules, cfg, rounds)] * len(banks)
    scores = {
        split: statistics.mean(bank.score(model, part) for bank, model in zip(banks, models, strict=True))
        for split, part in (("validation", "val"), ("test", "test"))
    }
    return {"noise_multiplier": round(rules.noise_multiplier, 4) if rules else "", "rounds": rounds, **scores}


def bounds() -> None:
    """Print noise multipliers, and how far the reported ε is above the nearly exact one."""
    from dp_accounting import dp_event
    from dp_accounting.pld import pld_privacy_accountant

    print("| rows per bank | rate | steps | ε | noise multiplier | ε over the nearly exact one |\n" + "|---" * 6 + "|")
    for size, rate, steps in (
        (10**4, 0.02, ROUNDS),
        (10**5, 0.02, ROUNDS),
        (10**6, 0.0025, ROUNDS),
        (10**6, 1, PAYMENT_ROUNDS),
    ):
        rules = replace(config(size, 0.0, 0, round(size * rate), 0.03).privacy, clipping_norm=0.3)
        for epsilon in EPSILONS:
            z = multiplier(rules, epsilon, steps)
            event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(z))
            accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3).compose(event, steps)
            print(
                f"| {size} | {rate} | {steps} | {epsilon:g} | {z:.3f} | {epsilon / accountant.get_epsilon(rules.delta):.2f} |"
            )


def choose(size: int) -> None:
    """Print validation scores of hyper-parameters."""
    banks = [Bank(config(size, 0.0, 0, size // 50, 0.01), number) for number in range(BANKS)]
    for lr, (setting, clip) in itertools.product((0.03, 0.1, 0.01), ((LOCAL, 1.0), (LOCAL, 0.3), (OWN, 0), (ALL, 0))):
        keys = {"lr": lr, "clip": clip}
        print(setting, keys, measured(banks, config(size, 0.0, 0, size // 50, lr), setting, 3.0, keys), flush=True)


def table(records: Sequence[dict[str, str]]) -> str:
    """Return the Markdown table of means and standard deviations over seeds."""
    order = [OWN, ALL, LOCAL, SECURE, PAYMENT]
    groups: dict[tuple[Any, ...], list[dict[str, str]]] = {}
    for row in records:
        place = (order.index(row["setting"]), float(row["epsilon"] or 0))
        groups.setdefault((*(float(row[key]) for key in CASE), *place), []).append(row)
    lines = ["# Privacy of single rows: average precision on test payments of banks", ""]
    lines += [
        "| rows per bank | skew | banks | train | batch | cap | setting | ε | test | validation | seeds |",
        "|---" * 11 + "|",
    ]
    for _, same in sorted(groups.items(), key=lambda item: item[0]):
        cells = [*(f"{float(same[0][key]):g}" if key == "skew" else same[0][key] for key in CASE)]
        cells += [same[0]["setting"], same[0]["epsilon"]]
        for split in ("test", "validation"):
            values = [float(r[split]) for r in same]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        lines.append(f"| {' | '.join(cells)} | {len(same)} |")
    lines += ["", "Learning rate and clipping norm were chosen on validation payments of seed 0 at ε = 3: "]
    lines[-1] += "; ".join(f"{name} {keys['lr']:g}, {keys['clip'] or 'none'}" for name, keys in CHOSEN.items()) + "."
    lines += [
        f"{ROUNDS} steps of Adam ({PAYMENT_ROUNDS} for payments), each with a sample of the rows; δ = 0.3 / rows. train: share of"
    ]
    lines += [
        "payments for training. batch: expected size of a sample. cap: most payments that a column reads at each end, 0: all."
    ]
    lines += [
        "ε is for one training row, or for one payment (docs/privacy.md). Made by `python -m simulations.private_rows`."
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(prog="python -m simulations.private_rows", description="Privacy of single rows.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--banks", type=int, default=BANKS)
    parser.add_argument("--train", type=float, default=0.6, help="share of a bank's payments for training")
    parser.add_argument("--batch", type=int, default=0, help="expected rows of a batch; 0: a fiftieth of the rows")
    parser.add_argument("--last", type=int, default=0, help="cap of the columns, for privacy.unit=payment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS, help="in this order")
    parser.add_argument("--choose", action="store_true", help="print validation scores of hyper-parameters")
    parser.add_argument("--bounds", action="store_true", help="print what the bound on ε costs")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.choose or args.bounds:
        return choose(args.rows) if args.choose else bounds()
    case = {key: getattr(args, key) for key in CASE} | {"batch": args.batch or args.rows // 50}
    command = ["git", "rev-parse", "HEAD"]
    case["commit"] = subprocess.run(command, capture_output=True, text=True, cwd=PATH.parent).stdout.strip()
    absent = {PAYMENT: not args.last, ALL: args.banks == 1, SECURE: args.banks < 3}
    noised = itertools.product(args.epsilons, (PAYMENT, LOCAL, SECURE))
    cells = [(OWN, 0.0), (ALL, 0.0), *((setting, epsilon) for epsilon, setting in noised)]
    cells = [cell for cell in cells if not absent.get(cell[0])]
    before = list(csv.DictReader(PATH.open(newline=""))) if PATH.is_file() else []
    named = [*CASE, "setting", "epsilon", "seed"]
    done = {tuple(r[key] for key in named) for r in before}
    with PATH.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not before:
            writer.writeheader()
        for seed in args.seeds:
            banks: list[Bank] = []
            for setting, epsilon in cells:
                row = case | {"setting": setting, "seed": seed, "epsilon": f"{epsilon:g}" if epsilon else ""}
                if tuple(str(row[key]) for key in named) in done:
                    continue
                batch = round(args.rows * PAYMENT_SAMPLE) if setting == PAYMENT else case["batch"]
                keys = CHOSEN[setting]
                cfg = config(args.rows, args.skew, seed, batch, keys["lr"], args.banks, args.train, args.last)
                banks = banks or [Bank(cfg, number) for number in range(args.banks)]
                writer.writerow(row | measured(banks, cfg, setting, epsilon, keys))
                file.flush()
    write_bytes(PATH.with_suffix(".md"), table(list(csv.DictReader(PATH.open(newline="")))).encode())


if __name__ == "__main__":
    main()
