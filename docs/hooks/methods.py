"""Generate a page per method of ``conf/strategy`` from its YAML, docstrings, class declarations and stored results."""

import importlib
import inspect
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import stored
from docstrings import markdown, prose

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.combinations import served
from fedgraph_flwr.config import TASKS, compose
from fedgraph_flwr.config.composition import described, group_path
from fedgraph_flwr.config.key_docs import own_keys_of
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.config.parts import parts_of
from fedgraph_flwr.launch.checks import client_class
from fedgraph_flwr.methods.declarations import PURPOSES, declaration
from fedgraph_flwr.methods.declared import downlink_of, uplink_of
from fedgraph_flwr.methods.uplink import Individual, LateMean, Mean, Once, Public, Relay, Sum
from fedgraph_flwr.methods.uplink import shown as shown_uplink
from fedgraph_flwr.secure.eligibility import not_added, not_private, not_robust, not_secure, not_verified
from fedgraph_flwr.strategies.fedavg import FedAvg
from fedgraph_flwr.wire.messages import CONFIG, DESCRIBE, EVALUATE, METRICS, MODEL, TRAIN

ROOT = Path(__file__).parents[2]


def _yaml(name: str) -> Path:
    """Return the YAML file of an existing method."""
    path = group_path("strategy", name)
    assert path is not None
    return path


class Method:
    """Facts about one method."""

    def __init__(self, name: str, about: str, keys: dict[str, Any]):
        self.name, self.about, self.keys = name, about, keys
        self.strategy, self.client = (self._class(keys[side]) for side in ("server", "client"))
        rules = compose([f"strategy={name}"]).strategy
        parts = parts_of(rules).values()
        servers = [locate(part.server) for part in parts if part.server]
        self.server = servers[0] if servers and self.strategy is FedAvg else self.strategy
        trained = [locate(part.client) for part in parts if part.client]
        self.client = trained[0] if trained and self.client is GraphClient else self.client

    @staticmethod
    def _class(path: str) -> Any:
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)

    @property
    def title(self) -> str:
        """Name in the paper."""
        return self.about.rstrip(".")

    @property
    def short(self) -> str:
        """Name and paper, without the source of its numbers, which is on its page."""
        return re.sub(r"[;.,] (?:all )?numbers\b.*| Ablations\b.*", "", self.about).rstrip(".") + "."

    def text(self, side: type) -> str:
        """Return the module docstring of a side's class; empty if the module belongs to another method or is the base."""
        stem = side.__module__.rpartition(".")[2]
        if stem == "base" or (stem != self.name and group_path("strategy", stem)):
            return ""
        return inspect.cleandoc(importlib.import_module(side.__module__).__doc__ or "")

    @property
    def purpose(self) -> str:
        """The group that lists it, one of `PURPOSES`."""
        return declaration(self.name).purpose

    @property
    def sends(self) -> str:
        """Text on what leaves a client, if the method's docstrings have none."""
        if self.keys.get("pooled"):
            return "There is only one client, which holds all data."
        if self.keys.get("shared") == []:
            return "The number of training nodes, losses and scores. No parameters."
        private = ", ".join(f"`{prefix}`" for prefix in self.keys.get("private", []))
        return f"What [fedavg](fedavg.md) sends{f', without the parameters named {private}' if private else ''}."

    @property
    def helps(self) -> str:
        """When it helps and when not, from its YAML, else from docstring lines that start with ``Helps:``."""
        written = (" ".join(markdown(self.text(side))[1]["helps"]) for side in (self.server, self.client))
        parts = [self.comment["helps"]] if self.comment["helps"] else [*written]
        return " ".join(
            capital(part.partition(": ")[2].replace("\n", " ")) for part in dict.fromkeys(filter(None, parts))
        )

    @property
    def comment(self) -> dict[str, str]:
        """Comment at the top of its YAML without the first line: body and part ``Helps:``."""
        lines = []
        for line in _yaml(self.name).read_text().splitlines()[1:]:
            if not line.startswith("#"):
                break
            lines.append(line.removeprefix("#").removeprefix(" "))
        body, parts = markdown("\n".join(lines)) if lines else ("", {})
        return {"body": body, "helps": " ".join(parts.get("helps", []))}


@lru_cache(maxsize=1)
def methods() -> dict[str, Method]:
    """Return all methods by name."""
    return {name: Method(name, entry["about"], entry["keys"]) for name, entry in described("strategy").items()}


def groups() -> dict[str, list[str]]:
    """Return the methods per purpose, by its title."""
    by_title = {title: [name for name, of in methods().items() if of.purpose == key] for key, title in PURPOSES.items()}
    return {title: names for title, names in by_title.items() if names}


def table() -> str:
    """Return the index: one table per purpose."""
    said = []
    for title, names in groups().items():
        rows = [
            f"| [`{name}`](methods/{name}.md) | {prose(methods()[name].short)} | {methods()[name].helps} |"
            for name in names
        ]
        said += [
            f"## {title}",
            "\n".join(["| `strategy=` | method | when it helps, and when not |", "|---|---|---|", *rows]),
        ]
    return "\n\n".join(said)


def tasks_table() -> str:
    """Return the table of methods and tasks, from what each method and its parts declare."""
    rows = []
    for names in groups().values():
        for name in names:
            cfg = compose([f"strategy={name}"])
            tasks = served(cfg, client_class(cfg))
            cells = " | ".join("yes" if task in tasks else "–" for task in TASKS)
            rows.append(f"| [`{name}`](methods/{name}.md) | {cells} |")
    head = " | ".join(f"`{task}`" for task in TASKS)
    return "\n".join([f"| `strategy=` | {head} |", "|---|" + "---|" * len(TASKS), *rows])


def files(of: Method) -> str:
    """Return the paths of a method's files."""
    yaml = _yaml(of.name).relative_to(ROOT).as_posix()
    return ", ".join(f"`{path}`" for path in dict.fromkeys([*map(source, (of.server, of.client)), yaml]))


def source(side: type) -> str:
    """Return a class's file."""
    return side.__module__.replace(".", "/") + ".py"


def page(of: Method) -> str:
    """Return a method's page."""
    texts = [markdown(text) for text in dict.fromkeys(map(of.text, (of.server, of.client))) if text]
    comment = of.comment
    said = [
        f"---\ntitle: {of.name}\ndescription: {of.title!r}\n---",
        f"# {of.name}",
        f'<p class="lead" markdown>{prose(of.about)}</p>',
    ]
    said.append(f"```bash\nfedgraph-flwr run strategy={of.name}\n```")
    if of.helps:
        said += ["## When it helps, and when not", of.helps]
    said.append("## The method")
    for side, (body, _) in (
        zip(("Server", "Client"), texts, strict=False) if len(texts) == 2 else [("", t) for t in texts]
    ):
        said += [f"### {side}"] * bool(side) + [body]
    if comment["body"]:
        said.append(comment["body"])
    for one, word in ((of.server, "server"), (of.client, "client")):
        stem = one.__module__.rpartition(".")[2]
        if not of.text(one) and stem in methods() and stem != of.name:
            said.append(f"The {word} side is that of [{stem}]({stem}.md).")
    leaves = [part for _, parts in texts for part in parts["leaves"]]
    said += ["## What leaves a client", *(leaves or [of.sends]), uplink_table(of)]
    said += ["## What a client receives", downlink_table(of)]
    said += stored.travels(of.name)
    cost = [part for _, parts in texts for part in parts["cost"]]
    curve = stored.budget(of.name)
    if cost or curve:
        said += ["## Cost", *cost, *curve]
    said += ["## Compatible protections", declared(of)]
    keys = own_keys_of("strategy", _yaml(of.name))
    if keys:
        said += ["## Keys", keys_table(keys)]
    said += ["## Our results", *stored.results(of.name)]
    said += ["## Files", files(of).replace(", ", "  \n")]
    return linked("\n\n".join(said), of.name) + "\n"


def capital(text: str) -> str:
    """Capitalise the first letter."""
    return text[:1].upper() + text[1:]


def linked(text: str, name: str) -> str:
    """Turn names of other methods' modules, and the phrase on FedAvg, into links."""
    text = (
        re.sub(r"what FedAvg('s client)? sends", "what [FedAvg](fedavg.md) sends", text) if name != "fedavg" else text
    )
    return re.sub(
        r"`fedgraph_(?:flwr|baselines)\.(?:strategies|clients)\.(\w+)`",
        lambda match: f"[`{match[1]}`]({match[1]}.md)" if match[1] in methods() and match[1] != name else match[0],
        text,
    )


NO_BOUND = re.compile(r" <= (2147483647|9\.22337e\+18)$")  # bound of the type only


def keys_table(keys: list[Any]) -> str:
    """Return a table of keys with default, accepted values and meaning."""
    rows = ["| key | default | accepted | meaning |", "|---|---|---|---|"]
    for key in keys:
        accepted = key.accepted.replace("|", r"\|") or key.kind
        if "value" in accepted:
            accepted = f"{key.kind}, {NO_BOUND.sub('', accepted).replace('<=', '≤')}"
        meaning = prose(key.meaning).replace("|", r"\|")
        rows.append(f"| `{key.name}` | {shown(key.default)} | {accepted} | {meaning} |")
    return "\n".join(rows)


def shown(value: object) -> str:
    """Return a default in YAML notation."""
    words = {None: "null", True: "true", False: "false", "": "_empty_"}
    if isinstance(value, list | dict):
        return f"`{value}`".replace("'", "")
    return words[value] if value in (None, "") or isinstance(value, bool) else f"`{value}`"


def uplink_table(of: Method) -> str:
    """Return a table of the method's uplink."""
    cfg = compose([f"strategy={of.name}", "num_clients=3"])
    rows = ["| phase | group | the server gets | why |", "|---|---|---|---|"]
    for phase, group, reducer in shown_uplink(uplink_of(of.strategy, cfg)):
        when = " (once)" if isinstance(uplink_of(of.strategy, cfg)[phase], Once) else ""
        what = "numbers" if group == METRICS else f"`{group}`"
        rows.append(f"| `{phase}`{when} | {what} | {GETS[type(reducer)]} | {prose(reducer.why)} |")
    return "\n".join(rows)


def downlink_table(of: Method) -> str:
    """Return what a client receives: the shared parameters, and a table of the method's downlink."""
    cfg = compose([f"strategy={of.name}", "num_clients=3"])
    client = locate(cfg.strategy.client)
    declared = downlink_of(client, cfg, uplink_of(client, cfg))
    first = "The shared parameters, to train and to score." if cfg.strategy.shared else "No parameters."
    rows = [
        f"| `{phase}` | {'numbers' if group == CONFIG else f'`{group}`'} | {prose(taken.what)} |"
        for phase, groups in declared.phases.items()
        for group, taken in groups.items()
        if phase != DESCRIBE and (group != MODEL or phase not in (TRAIN, EVALUATE))
    ]
    kept = ", ".join(f"`{stage}`" for stage, sends in declared.stages.items() if not sends)
    more = [f"In the stage {kept}, trained parameters stay at the clients."] if kept else []
    table = ["\n".join(["| phase | group | what |", "|---|---|---|", *rows])] if rows else []
    return "\n\n".join([first, *more, *table])


GETS = {
    Mean: "the weighted mean",
    Sum: "the sum",
    LateMean: "a mean by weights from other uploads",
    Relay: "values to forward to other clients",
    Individual: "every client's values",
    Public: "values that follow from the configuration, or sizes",
}
"""Values of a group that the server receives, by its reducer."""


def declared(of: Method) -> str:
    """Return a table of facts that its classes and its YAML declare."""
    server, network = of.strategy, of.keys.get("model")
    private = of.keys.get("shared", [""]) != [""] or of.keys.get("private")
    whole = "shared and private parameters together" if private else "the shared model"
    cfg = compose([f"strategy={of.name}", "num_clients=3"])
    uplink = uplink_of(server, cfg)

    def verdict(reason: str) -> str:
        return f"rejected: the method {prose(reason)}" if reason else "supported"

    facts = {
        "model": f"`model={network}` by default" if network else "any (`model=`)",
        "scored by": "personal models, and the shared model as `global_...`" if cfg.strategy.personal else whole,
        "robust rules (`strategy.aggregator`)": verdict(not_robust(cfg, uplink)),
        "secure aggregation (`privacy.secagg`)": verdict(not_secure(cfg, uplink)),
        "rounds that nodes compute (`privacy.coordinator=verified`)": verdict(not_verified(cfg, uplink)),
        "differential privacy (`privacy.dp`)": verdict(not_private(cfg, uplink)),
        "sums in Ray's actors (`ray.aggregate`)": verdict(not_added(cfg, uplink)),
    }
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    for limit in declaration(of.name).limits:
        words, other, both = (
            " ".join(f"`{word}`" for word in said) for said in (limit.overrides, limit.equals, limit.also)
        )
        exact = f"within {limit.within:g}" if limit.within else "bit for bit"
        rows.append(f"| with {words} | equals {other}, {exact}{f' (both with {both})' if both else ''} |")
    return "\n".join(["| | |", "|---|---|", *rows])
