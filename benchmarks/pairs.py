"""Compare all pairs of choices with the stored answers: accepted, or refused with which sentence.

    python -m benchmarks.pairs            # print pairs with another answer; exit with 1 if there are some
    python -m benchmarks.pairs --record   # store the answers of this code

A pair is two choices of a run, such as ``strategy=fednova task=edges``; everything else has its default. Of an accepted pair, the
reason why its clients cannot be computed as one is stored. `pairs.yaml` has sentence → first choice → second choices, with ``*``
for the values of the pair.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch import checks

STORED = Path(__file__).with_name("pairs.yaml")
NOISE = "privacy.noise_multiplier=1 strategy.weighting=uniform"
ROWS = f"privacy.scores=none privacy.rows=20000 privacy.batch=64 {NOISE}"
PAYMENTS = f"privacy.scores=none privacy.rows=20000 privacy.look_back=8 {NOISE}"
OTHERS = (
    "train.sampler=neighbors train.batch_size=8 train.fanout=[3,2]",
    "train.sampler=clusters",
    "train.sampler=saint train.batch_size=64",
    "train.local_epochs=1",
    "train.loss=focal",
    "strategy.objective=[prox]",
    "strategy.objective=[moon]",
    "strategy.objective=[sam]",
    "strategy.variates=scaffold train.optimizer=sgd",
    "strategy.variates=feddyn",
    "strategy.variates=feddc",
    "strategy.personalization=head",
    "strategy.personalization=norm",
    "strategy.personalization=ditto",
    "strategy.personalization=apfl",
    "strategy.personalization=finetune",
    "strategy.personalization=ala",
    "strategy.server_optimizer=adam",
    "strategy.aggregator=median strategy.byzantine=0",
    "privacy.secagg=true",
    f"privacy.dp=server_fixed {NOISE}",
    f"privacy.dp=distributed privacy.secagg=true privacy.secagg_bits=20 {NOISE}",
    f"privacy.unit=row privacy.dp=local {ROWS}",
    f"privacy.unit=payment privacy.dp=local {PAYMENTS}",
    "ray.aggregate=true engine=ray",
    "adversary.kind=label_flip adversary.clients=[0]",
    "evaluation.confusion=true",
    "init=run",
    "evaluate=run",
)
"""Choices beside a method, a task and a model; the first word names one."""


def choices() -> dict[str, list[str]]:
    """Return the choices of each kind."""
    named = {key: [f"{key}={name}" for name in sorted(group_names(key))] for key in ("strategy", "task", "model")}
    return named | {"other": list(OTHERS)}


def pairs() -> Iterator[tuple[str, str]]:
    """Yield all pairs of choices of different keys."""
    for one, other in itertools.combinations([word for words in choices().values() for word in words], 2):
        if key(one) != key(other):
            yield one, other


def key(choice: str) -> str:
    """Return the key of a choice, and its first key where it sets several."""
    return choice.partition("=")[0]


def answer(*chosen: str) -> str:
    """Return why a pair is refused, or why its clients are not computed as one; empty: neither holds."""
    words = [word for choice in chosen for word in choice.split()]
    try:
        cfg = compose(["num_clients=4", *words])
        checks.check_method(cfg)
    except FedGraphError as error:
        said = str(error)
    else:
        reason = checks.not_stacked(cfg)
        said = f"accepted, not stacked: {reason}" if reason else ""
    for word in words:
        name, _, value = word.partition("=")
        said = said.replace(f"{name}={value}", f"{name}=*")
    return said


def answers(among: list[tuple[str, str]]) -> dict[str, dict[str, list[str]]]:
    """Return what `answer` says of pairs: sentence → first choice → second choices."""
    sentences: dict[str, dict[str, list[str]]] = {}
    for one, other in among:
        if said := answer(one, other):
            sentences.setdefault(said, {}).setdefault(one.split()[0], []).append(other.split()[0])
    return {
        said: {one: sorted(others) for one, others in sorted(sentences[said].items())} for said in sorted(sentences)
    }


def flat(grouped: dict[str, dict[str, list[str]]]) -> dict[tuple[str, str], list[str]]:
    """Return the sentences of each pair by its first words, which two choices may share."""
    sentences: dict[tuple[str, str], list[str]] = {}
    for said, rows in grouped.items():
        for one, others in rows.items():
            for other in others:
                sentences.setdefault((one, other), []).append(said)
    return sentences


def differences(among: list[tuple[str, str]]) -> list[str]:
    """Return pairs whose answer is not the stored one."""
    before = flat(yaml.safe_load(STORED.read_text()))
    now = flat(answers(among))
    names = dict.fromkeys((one.split()[0], other.split()[0]) for one, other in among)
    return [
        f"{' '.join(pair)}: {before.get(pair, ['accepted'])} -> {now.get(pair, ['accepted'])}"
        for pair in names
        if before.get(pair) != now.get(pair)
    ]


def main() -> int:
    """Compare or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="store the answers of this code")
    args = parser.parse_args()
    among = list(pairs())
    if args.record:
        STORED.write_text(yaml.safe_dump(answers(among), width=2**16, sort_keys=False, default_flow_style=None))
        return 0
    changed = differences(among)
    hint = "; --record stores the answers of this code" if changed else ""
    print(*changed, f"{len(changed)} of {len(among)} pairs have another answer{hint}", sep="\n")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
