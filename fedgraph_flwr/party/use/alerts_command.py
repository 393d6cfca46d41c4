"""Command ``alerts``: choose a threshold on a party's validation items, and list the items of a file above it.

The first call chooses a threshold by a rule and stores it beside the model; later calls use it.

Examples:
  fedgraph-flwr alerts runs/mine --client 0 --budget 20                       # choose: 20 alerts per day
  fedgraph-flwr alerts runs/mine --client 0 --nodes accounts.csv --edges today.csv --out alerts.csv
  fedgraph-flwr alerts runs/mine --client 0 --outcomes decided.csv            # precision of the alerts that you decided
  fedgraph-flwr alerts state --precision 0.5                                  # at a party, without the server
"""

import argparse
import sys
from dataclasses import replace
from typing import Any

from fedgraph_flwr.errors import FedGraphError, counted, first_line, sanitize
from fedgraph_flwr.party.options import JSON, add_options, answered
from fedgraph_flwr.party.use import predict_command


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``alerts``."""
    predict_command.add_model_arguments(parser)
    rule = parser.add_argument_group("rule of the threshold (default: the stored one)")
    calibration = {"default": "auto", "choices": ("auto", "temperature", "isotonic")}
    add_options(rule, _RULE, precision={"type": str, "default": ""}, calibration=calibration)
    predict_command.add_input_arguments(parser)
    add_options(parser, _OUTPUT + JSON, reasons={"default": 3}, explained={"default": 50})


_RULE = """
--budget K  at most K alerts per day
--precision P  a share P of the alerts is right, at least
--cost MISS,ALERT  the least cost of missed positives and of alerts
--calibration auto|temperature|isotonic  how scores become probabilities (default: isotonic from 100 positive validation items on,
    else temperature, and only if the Brier score of items that chose nothing is better with it)
"""

_OUTPUT = """
--out FILE  .csv or .parquet file of the alerts (default: with new tables, print CSV)
--reasons N  reasons per alert in the file (default: 3; 0: none)
--explained N  alerts with reasons, the highest ones (default: 50)
--outcomes FILE  decisions on alerts (id or edge, outcome: true, false or open): their precision, next to the expected one
--page FILE  .html page: threshold, calibration, alerts
"""


@answered
def main(args: argparse.Namespace) -> tuple[int, Any]:
    """Handle ``alerts``."""
    from fedgraph_flwr.party.use import alerts
    from fedgraph_flwr.party.use.cases import add_details
    from fedgraph_flwr.party.use.frames import as_csv
    from fedgraph_flwr.party.use.pages import alerts_page, write_outputs

    if args.reasons < 0 or args.explained < 0:
        raise FedGraphError(f"--reasons and --explained must be at least 0, got {args.reasons} and {args.explained}")
    if args.outcomes is not None:
        _check_alone(args)
    rule = None
    if args.budget or args.precision or args.cost:
        rule = alerts.Rule(_budget(args.budget), _precision(args.precision), _cost(args.cost))
    predictor = predict_command.opened(args)
    if predictor.client is None:
        raise FedGraphError(
            "a threshold belongs to a party: pass a run folder and --client I, or the state folder of its node"
        )
    folder = args.run if args.run is not None else args.node
    if rule:
        choice = alerts.choose(predictor, rule, args.calibration)
        choice.save(folder)
    else:
        choice = alerts.Choice.load(folder, predictor)
    _print(choice)
    if args.outcomes is not None:
        return _outcomes(args, choice, predictor.predicts_edges), vars(choice)
    written = args.out is not None or args.page is not None
    if not (written or predict_command.reads_new(args)):
        return 0, vars(choice)
    inputs, predictions = predict_command.predicted(args, predictor)
    listed = alerts.alerts(choice, predictions, inputs[0][1][0].input_spec.schema is not None)
    if args.book and len(listed):
        listed = _with_earlier(args, choice, predictor, listed)
    around = add_details(listed, inputs, predict_command.treatment_of(args, inputs[0][1][0]))
    if args.reasons and args.explained and len(listed):
        listed["reasons"] = _reasons(inputs, listed, around, args.reasons, args.explained)
    items = len(predictions.logits)
    if not written:
        print(f"{counted(len(listed), 'alert')} of {items} items:")
        print(as_csv(listed).rstrip("\n"))
        return 0, listed
    what = f"{counted(len(listed), 'alert')} of {items} items to "
    write_outputs(args, listed, lambda: alerts_page(choice, listed, predictor, items, around), what)
    return 0, listed


def _with_earlier(args: argparse.Namespace, choice: Any, predictor: Any, listed: Any) -> Any:
    """Return alerts of a book with what was known on the day before the first one, and which alerts are new since then.

    Of accounts, ``earlier`` is the probability of that day, and new ones come first. Of payments, it has the alerts on the same
    accounts, and an alert is new if no alert of its case had one.
    """
    import numpy as np

    from fedgraph_flwr.party.book.rows import day_of, day_text
    from fedgraph_flwr.party.use import alerts
    from fedgraph_flwr.party.use.cases import cases_of

    last = day_of(str(listed["day"].min())) - 1
    for first in (last, last - 3):  # there may be no payments on a weekend
        earlier = argparse.Namespace(**vars(args) | {"since": day_text(first), "until": day_text(last), "out": None})
        try:
            predictions = predict_command.predicted(earlier, predictor)[1]
            break
        except FedGraphError:
            continue
    else:  # these are the first days of the model's file
        return listed
    items = alerts.alerts(replace(choice, threshold=-np.inf), predictions)
    before = items[items["score"] >= choice.threshold]
    if "id" in listed:
        names = listed["id"].astype(str)
        probability = items.assign(id=items["id"].astype(str)).drop_duplicates("id").set_index("id")["probability"]
        listed["earlier"] = names.map(probability)
        new = ~names.duplicated() & ~names.isin(before["id"].astype(str))
    else:
        listed["earlier"] = [_on_accounts(before, {row.source, row.target}) for row in listed.itertuples()]
        known = listed["earlier"] != ""
        new = ~known.groupby(cases_of(listed)).transform("any")
    listed.insert(1, "new", np.where(new, "yes", "no"))
    print(f"{int(new.sum())} of {len(listed)} alerts are new since {day_text(last)}")
    return (
        listed if "edge" in listed else listed.sort_values(["new", "rank"], ascending=[False, True], ignore_index=True)
    )


def _on_accounts(alerts: Any, accounts: set[Any]) -> str:
    """Return the alerts on some accounts as text, the highest three."""
    rows = alerts[alerts["source"].isin(accounts) | alerts["target"].isin(accounts)]
    listed = [f"{row.edge} of {row.day} ({row.probability:.0%})" for row in rows[:3].itertuples()]
    return "; ".join([*listed, *([f"{len(rows) - 3} more"] if len(rows) > 3 else [])])


def _check_alone(args: argparse.Namespace) -> None:
    """Refuse options that ``--outcomes`` does not read.

    Raises:
        FedGraphError: names the first.
    """
    for name in ("nodes", "edges", "graph", "out", "page", "until"):
        if getattr(args, name, None):
            raise FedGraphError(f"--outcomes reads decisions and lists no alerts: leave out --{name}")
    for name in ("budget", "precision", "cost"):
        if getattr(args, name):
            what = "--outcomes compares decisions with the stored threshold, which listed their alerts"
            raise FedGraphError(f"{what}: leave out --{name}")


def _outcomes(args: argparse.Namespace, choice: Any, of_edges: bool) -> int:
    """Print the precision of decided alerts, next to the promised one; ``of_edges``: the model's alerts are edges."""
    from fedgraph_flwr.party.outcomes import read_outcomes
    from fedgraph_flwr.party.use.alerts import lived_text

    outcomes = read_outcomes(args.outcomes)
    if outcomes.of_edges != of_edges:
        names = ("nodes (column id)", "edges (column edge)")
        raise FedGraphError(
            f"{args.outcomes} names {names[outcomes.of_edges]}, and the model's alerts are {names[of_edges]}: pass decisions of"
            " its alerts"
        )
    for line in lived_text(choice, outcomes):
        print(line)
    return 0


def _reasons(
    inputs: list[tuple[str, predict_command.Input]], listed: Any, around: dict[str, Any], top: int, most: int
) -> list[str]:
    """Return the reasons of each alert in one line, for the ``most`` highest ones; none if the model cannot be explained."""
    import numpy as np

    from fedgraph_flwr.party.use.explain import explain

    names = listed["edge" if "edge" in listed else "id"].astype(str)[:most]
    days = listed["day"][:most] if "day" in listed else names.map(lambda _: "")
    texts = [""] * len(listed)
    try:
        for day, given in inputs:
            rows = np.flatnonzero(days == day)
            for row, one in zip(
                rows, explain(*given, list(names.iloc[rows]), checks=False) if rows.size else [], strict=True
            ):
                texts[row] = replace(one, around=around.get(str(one.item))).text(top)
    except FedGraphError as error:
        print(f"alerts have no reasons: {first_line(error)}", file=sys.stderr)
    return texts


def _budget(text: str) -> float:
    """Read a number of alerts per day."""
    try:
        return float(text or 0)
    except ValueError:
        share = "; a share of the items is no budget" if text.rstrip().endswith("%") else ""
        raise FedGraphError(
            f"--budget must be a number of alerts per day, such as 20{share}; got {sanitize(text)}"
        ) from None


def _precision(text: str) -> float:
    """Read a share from 0 to 1."""
    percent = text.rstrip().endswith("%")
    try:
        share = float(text.rstrip().removesuffix("%") or 0)
    except ValueError:
        raise FedGraphError(f"--precision must be a share from 0 to 1, such as 0.5; got {sanitize(text)}") from None
    if percent or 1 < share <= 100:
        fix = f"pass --precision {share / 100:g} for {share:g} % of right alerts"
        raise FedGraphError(f"--precision must be a share from 0 to 1, got {sanitize(text)}: {fix}")
    return share


def _cost(text: str) -> tuple[float, float]:
    """Read two costs."""
    if not text:
        return 0.0, 0.0
    try:
        miss, alert = map(float, text.split(","))
    except ValueError:
        raise FedGraphError(f"--cost must be two numbers, a miss and an alert, such as 50,1; got {text}") from None
    return miss, alert


def _print(choice: Any) -> None:
    """Print the choice with its figures."""
    from fedgraph_flwr.party.use.alerts import ranges
    from fedgraph_flwr.party.use.pages import right_of_100

    if finding := right_of_100(choice):
        print(finding)
    lowest = f"{choice.probability:.3g} (score {choice.threshold:.4g})"
    kind = "calibrated " if choice.is_calibrated else ""
    print(f"alert: '{choice.positive}' with a {kind}probability of at least {lowest}")
    if not choice.is_calibrated and not choice.calibrated:
        one = choice.validation["positives"] in (0, choice.validation["items"])
        why = (
            "are of one class, so only the number of alerts is chosen" if one else "are too few to show that one helps"
        )
        print(f"not calibrated: the labelled validation items {why}")
    for split, figures in (("validation", choice.validation), ("test", choice.test)):
        if shown := ranges(figures, "{:.3g}".format):
            print(f"{split}: {', '.join(shown)} ({figures['items']} items, {figures['positives']} '{choice.positive}')")
    if choice.calibrated:
        before, after = (choice.calibrated[when]["brier"] for when in ("before", "after"))
        kept = "" if choice.is_calibrated else ": not kept, probabilities are the model's own"
        print(f"calibration: Brier score on test items {before:.4g} before, {after:.4g} after{kept}")
    if choice.rates:
        first, second = (f"{share:.2%}" for share in choice.rates)
        print(
            f"'{choice.positive}' is {first} of validation items and {second} of test items: probabilities follow the first"
        )
