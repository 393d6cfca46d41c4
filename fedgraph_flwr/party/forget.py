"""Remove a party from a finished run exactly: the survivors' files without it, and a replay from the first round.

    cut edges to the party            dropped at both kinds of ends, with what was known of its accounts
    global ids, client numbers        closed up in their order: the files that a link of the survivors alone writes
    parameters, optimisers, scores    computed again from the seed: nothing of the earlier run is read but its configuration

So the result is that of a run that never had the party, bit for bit. The earlier run's folder, exports of it and the nodes' state
folders still hold models that the party took part in: delete them.

Not in the client files: statistics and categories of a merged schema. Where the files carry such statistics, the survivors merge
(`schema merge`), import and link again without the party, and pass that folder.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.graph import ClientGraph, pack_words, read_tensors, rows_at, rows_of, unpack_words
from fedgraph_flwr.data.schema import agreed_schema
from fedgraph_flwr.errors import MALFORMED, FedGraphError, counted, sanitize, unknown
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.partition import client_files, files, load
from fedgraph_flwr.party.tables.parties import fold
from fedgraph_flwr.party.use.predict import BLEND, finished
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.store.results import CONFIG, SUMMARY

RECORD = "forgotten.json"


@dataclass(frozen=True)
class Forgetting:
    """A party's removal from a run, before anything is written.

    Attributes:
        cfg: configuration of the earlier run.
        folder: the earlier run.
        client: the party's client there.
        name: the party's name; "" if its file has none.
        rounds: rounds of the earlier run; the replay takes as many.
        seconds: its duration.
        cut: edges that the survivors drop.
        graphs: the survivors' files.
    """

    cfg: RunConfig
    folder: Path
    client: int
    name: str
    rounds: int
    seconds: float
    cut: int
    graphs: Sequence[Any]

    def lines(self) -> list[str]:
        """Return what is removed, what it costs, and what leaves a party."""
        who = f"client {self.client}" + (f" ('{sanitize(self.name, 60)}')" if self.name else "")
        clients = [old for old in range(len(self.graphs) + 1) if old != self.client]
        moved = [f"client {old} is client {new}" for new, old in enumerate(clients) if old != new]
        lines = [
            f"{who} is removed; {counted(len(self.graphs), 'party')} left, without {counted(self.cut, 'cut edge')} to it",
            *([f"then {', '.join(moved[:10])}"] if moved else []),
            f"cost: all rounds again ({self.rounds}); with {len(self.graphs) + 1} parties they took {self.seconds:.1f} s",
            "the survivors send what they send in any such run; what they hold of the party stays at them and is dropped",
        ]
        if blends := blends_of(self.folder):
            lines.append(f"blends that weigh the run's models: {', '.join(map(str, blends))}: delete them, too")
        if noised := protection_of(self.cfg).noised:
            lines.append(
                f"{noised}: noise is drawn again, so results are equal in distribution only, and the"
                " replay's ε adds to that of the earlier run"
            )
        return lines


def blends_of(folder: Path) -> list[Path]:
    """Return the folders next to a run that blend it."""
    found = []
    for path in sorted(folder.absolute().parent.glob(f"*/{BLEND}")):
        with contextlib.suppress(OSError, *MALFORMED):
            if any(Path(run).resolve() == folder.resolve() for run in json.loads(path.read_bytes())["runs"]):
                found.append(path.parent)
    return found


def of_clients(cfg: RunConfig, kept: Sequence[int]) -> RunConfig:
    """Return the configuration of a run for some of its clients, whose numbers close up, with what it says of single ones."""
    steps = [cfg.train.steps_of(client) for client in kept] if cfg.train.local_steps_by_client else []
    malicious = [place for place, client in enumerate(kept) if client in cfg.adversary.clients]
    train, adversary = replace(cfg.train, local_steps_by_client=steps), replace(cfg.adversary, clients=malicious)
    return replace(cfg, train=train, adversary=adversary, num_clients=len(kept), resume="")


def held_files(cfg: RunConfig) -> list[Any]:
    """Return the graphs of a simulation's clients, in their order."""
    return [load(path) for path in files(Path(cfg.graph).expanduser() if cfg.graph else client_files(cfg))]


def plan(folder: Path, party: str, graph: Path | None = None) -> Forgetting:
    """Prepare the removal of a party.

    Args:
        folder: a finished run.
        party: the party's name in its file, or its client's number.
        graph: folder with the survivors' files, imported and linked again; None: the run's files without the party.

    Raises:
        FedGraphError: the folder holds no finished run, the run has no such party, or its files cannot be made without it.
    """
    cfg, summary = finished(folder)
    _check(cfg, folder)
    held = held_files(cfg)
    names = [str(getattr(file, "linking", {}).get("party", "")) for file in held]
    gone = _client(party, names, folder)
    _check_before(cfg, folder, names[gone])
    kept = [file for client, file in enumerate(held) if client != gone]
    others = [name for client, name in enumerate(names) if client != gone]
    owners = [getattr(file, f"{cut}_owner") for file in kept if isinstance(file, ClientGraph) for cut in _CUTS]
    edges = sum(int((owner == gone).sum()) for owner in owners)
    if graph is None:
        _check_schema(kept, names[gone] or str(gone))
    survivors = without(held, gone) if graph is None else _again(graph, others, names[gone])
    rounds, seconds = int(summary["rounds"]), float(summary["total_seconds"])
    return Forgetting(cfg, folder, gone, names[gone], rounds, seconds, edges, survivors)


def _check(cfg: RunConfig, folder: Path) -> None:
    """Refuse a run that cannot be replayed here.

    Raises:
        FedGraphError: names the reason and what to do.
    """
    if cfg.on_fleet:
        again = (
            f"agree on a new version without the party (`fedgraph-flwr agree`), and run --agreement FILE engine={cfg.engine}"
            if cfg.agreement
            else f"run config={folder / CONFIG} num_clients={cfg.num_clients - 1}"
        )
        raise FedGraphError(
            f"{folder} is a run of the fleet '{cfg.engine}', whose parties hold their files: link again with those present"
            f" (`fedgraph-flwr link engine={cfg.engine} num_clients={cfg.num_clients - 1} --since`, which sends no record again),"
            f" restart the nodes with the new files and fresh state folders, and {again} out=DIR"
        )
    if cfg.strategy.pooled and not cfg.graph:
        raise FedGraphError(f"{folder} has strategy={cfg.strategy.name} on one pooled graph, which has no parties")


def _check_before(cfg: RunConfig, folder: Path, name: str) -> None:
    """Refuse a run that started from a model of the party.

    Raises:
        FedGraphError: names the earlier run.
    """
    before = cfg.init or cfg.evaluate
    if before and not _never_had(Path(before), name):
        key = "init" if cfg.init else "evaluate"
        raise FedGraphError(
            f"{folder} has {key}={before}, a model that the party may have trained: forget it there first, then repeat this run"
        )


def _never_had(folder: Path, name: str) -> bool:
    """Return whether a run and all that it started from list their parties, and a party is none of them."""
    try:
        cfg, summary = finished(folder)
    except FedGraphError:
        return False
    parties, before = summary.get("parties"), cfg.init or cfg.evaluate
    never = bool(name and parties) and name not in (parties or ())
    return never and (not before or _never_had(Path(before), name))


def _client(party: str, names: Sequence[str], folder: Path) -> int:
    """Return the client of a party, by its name or number.

    Raises:
        FedGraphError: there is none, or no party would remain.
    """
    folded = fold(names).tolist()
    known = [name for name in names if name] or [str(client) for client in range(len(names))]
    word = str(fold([party])[0])
    if len(names) < 2:
        raise FedGraphError(f"{folder} has one party: without it, nothing remains to train on")
    if word and word in folded:
        return folded.index(word)
    if party.isdecimal() and int(party) < len(names):
        return int(party)
    raise unknown("party", sanitize(party, 60), known, f"--party, {folder}")


def _check_schema(kept: Sequence[Any], party: str) -> None:
    """Refuse files whose features hold statistics of all parties.

    Raises:
        FedGraphError: says how the survivors make files without them.
    """
    for graph in kept:
        agreed = agreed_schema(graph.schema, "the files of the run")
        if agreed and (agreed.scaling == "federated" or agreed.targets):
            raise FedGraphError(
                f"the files are scaled by statistics of all parties, also of '{sanitize(party, 60)}': merge the schema again"
                " without it (`fedgraph-flwr schema merge`), import and link again, and pass that folder by --graph DIR"
            )


def _again(folder: Path, others: Sequence[str], gone: str) -> list[Any]:
    """Return the survivors' files of a folder.

    Raises:
        FedGraphError: the folder has files of other parties.
    """
    graphs = [load(path) for path in files(folder)]
    names = [str(getattr(graph, "linking", {}).get("party", "")) for graph in graphs]
    if len(graphs) != len(others) or (any(others) and fold(names).tolist() != fold(others).tolist()):
        raise FedGraphError(
            f"--graph {folder} has the parties {names}, expected those of the run without '{sanitize(gone, 60)}': {list(others)}"
        )
    return graphs


_CUTS = ("cut_out", "cut_in")


def without(graphs: Sequence[Any], gone: int) -> list[Any]:
    """Return the files of all parties but one, without edges to it; ids and numbers of clients close up in their order.

    Args:
        graphs: one per client, in their order.
        gone: the client to leave out.

    Raises:
        FedGraphError: parties share nodes.
    """
    kept = [graph for client, graph in enumerate(graphs) if client != gone]
    place: dict[str, Any] = {"num_clients": len(kept)}
    if not all(isinstance(graph, ClientGraph) for graph in kept):  # several types: no edges between clients
        return [replace(graph, client=client, **place) for client, graph in enumerate(kept)]
    ids = torch.cat([graph.node_id for graph in kept]).sort().values
    repeated = bool((ids.diff() == 0).any())
    if repeated and not any(map(_names_others, kept)):  # files that were never linked: each numbers its own nodes
        return [replace(graph, client=client, **place) for client, graph in enumerate(kept)]
    if repeated or any(graph.shared for graph in kept):
        raise FedGraphError(
            "parties share nodes (--entities overlap): link again without the party, and pass --graph DIR"
        )
    return [_without(graph, client, gone, ids, place) for client, graph in enumerate(kept)]


def _names_others(graph: ClientGraph) -> bool:
    """Return whether a file has nodes or edges of other parties, by numbers that all parties share."""
    return graph.shared or "link" in graph.linking or any(getattr(graph, cut).numel() for cut in (*_CUTS, "far_id"))


def _without(graph: ClientGraph, client: int, gone: int, ids: Tensor, place: dict[str, Any]) -> ClientGraph:
    """Return one survivor's file; ``ids`` are the global ids of all survivors' nodes, ascending."""
    fields: dict[str, Any] = {}
    for cut in _CUTS:
        owner = getattr(graph, f"{cut}_owner")
        rows = (owner != gone).nonzero().view(-1)
        near, far = getattr(graph, cut)[:, rows]
        ends = torch.stack([near, torch.searchsorted(ids, far)])
        fields |= rows_at(graph, cut, rows) | {cut: ends, f"{cut}_owner": owner[rows] - (owner[rows] > gone).long()}
    far = torch.searchsorted(ids, graph.far_id).clamp(max=max(ids.numel() - 1, 0))
    held = torch.isin(far, torch.cat([fields[cut][1] for cut in _CUTS])) & (ids[far] == graph.far_id)
    fields |= {"far_id": far[held], "far_x": rows_of(graph.far_x, held.nonzero().view(-1))}
    if graph.far_name.numel():
        fields["far_name"] = pack_words(unpack_words(graph.far_name)[held.numpy()])
    linking = dict(graph.linking)
    if "link" in linking:
        linking["link"] = hashlib.sha256(f"{linking['link']} without {gone}".encode()).hexdigest()
    nodes = torch.searchsorted(ids, graph.node_id)
    return replace(
        graph, **fields, node_id=nodes, client=client, num_global_nodes=ids.numel(), linking=linking, **place
    )


def forget(removal: Forgetting, out: Path) -> dict[str, Any]:
    """Write the survivors' files to ``out/files``, and replay the run on them.

    Args:
        removal: the result of `plan`.
        out: folder of the new run.

    Returns:
        The summary of the new run. ``out/forgotten.json`` has the party, the earlier run and the digest of the model.

    Raises:
        FedGraphError: the configuration does not fit the remaining parties, or ``out`` holds a run.
        RunFailed: the run could not continue.
    """
    if (out / SUMMARY).is_file():
        raise FedGraphError(f"{out} holds a finished run: pass another --out")
    graphs = out / "files"
    for graph in removal.graphs:
        graph.save(graphs / f"client_{graph.client:04d}.safetensors")
    kept = [client for client in range(len(removal.graphs) + 1) if client != removal.client]
    summary = run(replace(of_clients(removal.cfg, kept), graph=str(graphs.absolute()), out=str(out)))
    model = {name: tensor.numpy() for name, tensor in read_tensors(out / "model_final.safetensors")[0].items()}
    record = {"party": removal.name or removal.client, "client": removal.client, "run": str(removal.folder)}
    record["model"] = digest(model).hex()
    write_bytes(out / RECORD, json.dumps(record, indent=1).encode())
    return summary
