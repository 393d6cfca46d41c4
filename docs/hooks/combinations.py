"""Tables of what goes with what, with the reasons of refusals, from what methods, parts and tasks declare."""

import re
from collections.abc import Mapping

import methods

from fedgraph_flwr.config import TASKS, compose
from fedgraph_flwr.launch.checks import refusal

SAMPLERS = {
    "`neighbors`": "train.sampler=neighbors train.batch_size=8 train.fanout={fanout}",
    "`clusters`": "train.sampler=clusters",
    "`saint`": "train.sampler=saint train.batch_size=64",
}
PARTS = {
    "`prox`": "strategy.objective=[prox]",
    "`moon`": "strategy.objective=[moon]",
    "`sam`": "strategy.objective=[sam]",
    "`scaffold`": "strategy.variates=scaffold train.optimizer=sgd",
    "`head`": "strategy.personalization=head",
    "`ditto`": "strategy.personalization=ditto",
    "`ala`": "strategy.personalization=ala",
    "`adam`": "strategy.server_optimizer=adam",
}
PROTECTIONS = {
    "`verified`": "privacy.coordinator=verified privacy.max_update=1 privacy.secagg=true privacy.scores=none",
    "`secagg`": "privacy.secagg=true",
    "`dp`": "privacy.dp=server_fixed privacy.noise_multiplier=1 strategy.weighting=uniform",
    "`median`": "strategy.aggregator=median strategy.byzantine=0",
}
FIX = re.compile(r"[:;] (?:or )?(?:set|leave|use|expected|train|name|declare) .*|, or accept that .*", re.S)
"""What a message tells to do, which a reader of a table does not need."""

Choices = Mapping[str, str]
"""Title of a row or a column → the words of the command that choose it."""


def tables() -> str:
    """Return the tables: methods with samplers, parts and protections, and tasks with samplers."""
    names = [name for group in methods.groups().values() for name in group]
    rows = {f"[`{name}`](methods/{name}.md)": f"strategy={name}" for name in names}
    tasks = {f"`{name}`": f"task={name}" for name in TASKS}
    both = (table("`strategy=`", rows, SAMPLERS | PARTS | PROTECTIONS), table("`task=`", tasks, SAMPLERS))
    return "\n\n".join(both)


def table(head: str, rows: Choices, columns: Choices) -> str:
    """Return a table of pairs of choices, and the list of its reasons."""
    reasons: dict[str, int] = {}
    lines = [f"| {head} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for title, row in rows.items():
        cells = []
        for name, column in columns.items():
            why = reason(row, column)
            if name in PROTECTIONS:
                why = why.partition(", but ")[2] or why
            uncovered = name in PROTECTIONS and not re.search(r"\w=\w", why)
            number = "–" if why and uncovered else reasons.setdefault(why, len(reasons) + 1) if why else "yes"
            cells.append(str(number))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. {why}" for why, number in reasons.items())])


def reason(row: str, column: str) -> str:
    """Return why a pair is refused, without the names of both; empty: it is not."""
    layers = compose([row]).model.layers
    said = FIX.sub("", refusal(["num_clients=4", *column.format(fanout=[3] * layers).replace(", ", ",").split(), row]))
    key = re.escape(column.partition("=")[0])
    said = re.sub(rf"{key}=[^\s,:;]+", "the choice", said)
    kind, _, name = row.partition("=")
    if kind == "strategy" and said:
        of = methods.methods()[name]
        for side in (of.strategy, of.client):
            said = said.replace(f", {side.__name__},", "")
    return said.replace(row, "the method" if kind == "strategy" else "the task").replace("|", r"\|")
