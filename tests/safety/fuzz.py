"""Feed damaged and forged files to everything that reads files: ``python -m tests.safety.fuzz --minutes 10``.

Each case takes a valid file, changes it (bytes; or, in our format, tensors, names and values, with a digest that is right
again), and reads it. A reader may return or raise `FedGraphError`; anything else is a finding, with the arguments that repeat
it: ``--target NAME --seed N --cases 1``.
"""

import argparse
import contextlib
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedgraph_flwr import partition
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.state import StateFolder, restore_state
from fedgraph_flwr.config import DatasetConfig, compose
from fedgraph_flwr.data import datasets
from fedgraph_flwr.data.graph import Graph, read_tensors, write_tensors
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.prepare import check_resume
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.party.tables.importing import from_saved, from_tables
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.report.runs import load_run
from fedgraph_flwr.secure.keyring import read_key, read_pins
from fedgraph_flwr.secure.policy import Ledger, read_policy
from fedgraph_flwr.wire.trees import unflatten
from tests.conftest import client_graph

SECONDS = 30
"""For one case; more is a finding."""

MEMORY = 16 * 2**30
"""Of address space, in the command."""

NUMBERS = [0, -1, 1, 2**31, 2**63 - 1, -(2**63), 10**30, 1.5, float("nan"), float("inf")]
WORDS = [
    "",
    "x",
    "../../x",
    "\x1b[31m",
    "[/data/x]",
    "a" * 5000,
    "\0",
    "nan",
    "1e999",
    "é\ud800".encode("utf8", "replace").decode(),
]
OTHER: list[Any] = [None, True, [], {}, [[1]], {"a": {"b": 1}}, *NUMBERS, *WORDS]
DTYPES = [torch.float64, torch.float16, torch.int8, torch.int64, torch.bool, torch.uint8, torch.bfloat16]


@dataclass
class Target:
    """A reader and a file that it takes.

    Attributes:
        path: the file, as `make` left it.
        read: reads it.
        ours: whether it has our format, so that it can be forged.
    """

    path: Path
    read: Callable[[Path], Any]
    ours: bool = False


def typed_client() -> HeteroClientGraph:
    """A small typed client graph."""
    y = torch.arange(6) % 2
    fold = torch.arange(6) % 3
    return HeteroClientGraph(
        counts={"paper": 6, "author": 4},
        edges={("author", "writes", "paper"): torch.tensor([[0, 1, 3], [5, 2, 0]])},
        target="paper",
        y=y,
        train_mask=fold == 0,
        val_mask=fold == 1,
        test_mask=fold == 2,
        num_classes=2,
        x={"paper": torch.randn(6, 3)},
        edge_attr={("author", "writes", "paper"): torch.randn(3, 2)},
        name="toy",
        node_id={"paper": torch.arange(6), "author": torch.arange(4)},
        client=0,
        num_clients=3,
    )


def targets(folder: Path) -> dict[str, Target]:
    """Valid files in ``folder``, by the name of what reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    graphs = folder / "graphs"
    for index, size in enumerate((40, 16, 20)):
        graph = client_graph(index, size, num_features=120)
        graph.x[graph.x.abs() < 1.5] = 0  # mostly zero: stored as entries
        graph.save(graphs / f"client_{index:04d}.safetensors")
    first = client_graph(0)
    Graph(**{name: getattr(first, name) for name in Graph.__dataclass_fields__}).save(folder / "own.safetensors")
    whole, typed = typed_client(), folder / "typed.safetensors"
    whole.save(typed)
    HeteroGraph(**{name: getattr(whole, name) for name in HeteroGraph.__dataclass_fields__}).save(
        folder / "owntyped.safetensors"
    )
    _tables(folder)
    _party(folder)

    out = folder / "run"
    overrides = [f"graph={graphs}", "strategy=local", "model.hidden=8", "rounds=2", "checkpoint_every=1", f"out={out}"]
    cfg = compose(overrides)
    with contextlib.redirect_stderr(io.StringIO()):
        run(cfg)
    resumed = compose([f"resume={out}", f"out={out}"], out / "config.yaml")
    (state,) = (out / "state").glob("*/client_0000/round_000002.safetensors")
    kept = StateFolder(out / "state", state.parents[1].name.rpartition("-")[2], "local", 0)
    kept.write_asked(Ledger({"round": 2, "phases": ["train"], "counts": [1], "exchanges": [0]}).record())
    client = GraphClient(cfg, partition.load(graphs / "client_0000.safetensors"))

    def resume(path: Path) -> None:
        tensors = kept.read_checkpoint(2)
        with kept.reading("round_000002"):
            restore_state(client, unflatten(tensors))

    wide = partition.load(graphs / "client_0001.safetensors")

    def predict(path: Path) -> Any:
        return load_predictor(out, client=0, at="last").predict(wide).to_frame()

    def dataset(path: Path) -> Any:
        return datasets.load(DatasetConfig(name="file", params={"path": str(path)}))

    def table(path: Path) -> Any:
        return from_tables(folder / "nodes.csv", folder / "edges.csv", Columns(split="part", client="bank"))

    def typed_tables(path: Path) -> Any:
        nodes = {"paper": folder / "papers.csv", "author": folder / "authors.csv"}
        edges = {("author", "writes", "paper"): folder / "writes.csv"}
        return from_tables(nodes, edges, target="paper", columns=Columns(split="part"))

    return {
        "client": Target(graphs / "client_0000.safetensors", partition.load, ours=True),
        "typed client": Target(typed, partition.load, ours=True),
        "dataset": Target(folder / "own.safetensors", dataset, ours=True),
        "typed dataset": Target(folder / "owntyped.safetensors", dataset, ours=True),
        "checkpoint": Target(out / "checkpoint.safetensors", lambda path: check_resume(resumed, None), ours=True),
        "state": Target(state, resume, ours=True),
        "rounds": Target(out / "rounds.jsonl", lambda path: check_resume(resumed, None)),
        "report": Target(out / "rounds.jsonl", lambda path: load_run(out)),
        "summary": Target(out / "summary.json", lambda path: load_run(out)),
        "configuration": Target(out / "config.yaml", lambda path: compose([], path)),
        "nodes": Target(folder / "nodes.csv", table),
        "edges": Target(folder / "edges.csv", table),
        "papers": Target(folder / "papers.csv", typed_tables),
        "writes": Target(folder / "writes.csv", typed_tables),
        "parquet": Target(folder / "nodes.parquet", lambda path: from_tables(path, folder / "edges.csv")),
        "saved": Target(folder / "data.pt", from_saved),
        "saved typed": Target(folder / "hetero.pt", lambda path: from_saved(path, "paper")),
        "meaning": Target(out / "input_spec.json", predict),
        "predicted summary": Target(out / "summary.json", predict),
        "kept model": Target(state.with_name("model_last.safetensors"), predict, ours=True),
        "policy": Target(folder / "policy.yaml", lambda path: read_policy(str(path))),
        "asked": Target(kept.folder / "asked.json", lambda path: kept.read_asked()),
        "key": Target(folder / "keys" / "node_1", lambda path: read_key(str(path))),
        "peers": Target(folder / "keys" / "node_1.pub", lambda path: read_pins(str(path.parent))),
    }


def _tables(folder: Path) -> None:
    from torch_geometric.data import Data

    nodes = ["id,x_a,x_b,label,part,bank", "ann,1,0.5,yes,train,north", "bob,2,-1,no,val,south", "cat,3,4,,test,south"]
    (folder / "nodes.csv").write_text("\n".join([*nodes, "dan,0,1e3,no,,north\n"]))
    (folder / "edges.csv").write_text("source,target\nann,bob\nbob,cat\ndan,ann\n")
    pd.read_csv(folder / "nodes.csv").drop(columns=["part", "bank"]).to_parquet(folder / "nodes.parquet")
    (folder / "papers.csv").write_text("id,label,part,x\np1,ml,train,0.5\np2,db,val,1\np3,,test,2\np4,db,test,3\n")
    (folder / "authors.csv").write_text("id\nann\nbob\n")
    (folder / "writes.csv").write_text("source,target\nann,p1\nann,p2\nbob,p4\n")
    y = torch.tensor([0, 2, 1, -1])
    torch.save(Data(x=torch.arange(8.0).view(4, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=y), folder / "data.pt")
    torch.save(typed_client().to_pyg(), folder / "hetero.pt")


def _party(folder: Path) -> None:
    """The files of a party next to its graph."""
    (folder / "keys").mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (folder / "keys" / "node_1").write_bytes(secret)
    (folder / "keys" / "node_1.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    policy = "strategies: [fedavg]\nphases: [train]\nmessages: {train: 1}\nrounds: 9\nrequired_config: {privacy.dp: [none]}\n"
    (folder / "policy.yaml").write_text(policy)


# --- changes ------------------------------------------------------------------------------------------------------------


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few bytes flipped, cut out, put in twice, replaced by a word or a number, or the end gone."""
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        a = rng.randrange(len(data) + 1)
        b = min(len(data), a + rng.choice((1, 2, 8, 64, 1000)))
        before, piece, after = data[:a], data[a:b], data[b:]
        flipped = bytes(c ^ (1 << rng.randrange(8)) for c in piece)
        message = str(rng.choice(OTHER)).encode("utf8", "replace")
        middle = rng.choice((flipped, b"", piece * 2, message, rng.randbytes(b - a), None))
        data = before if middle is None else before + middle + after
    return data


def change_tensor(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Another dtype, shape or value."""
    kind = rng.randrange(6)
    if kind == 0:
        return tensor.to(rng.choice(DTYPES))
    if kind == 1:
        return tensor.reshape(-1)[: rng.randrange(tensor.numel() + 1)].clone()
    if kind == 2:
        return tensor.unsqueeze(0) if rng.random() < 0.5 else torch.cat([tensor.reshape(-1)] * 2)
    if kind == 3:
        return torch.zeros(rng.choice(((), (0,), (0, 0), (1,), (2, 3), (1, 1, 1))), dtype=tensor.dtype)
    changed = tensor.clone().reshape(-1)
    if changed.numel():
        value = rng.choice(
            (-1, 1, 127, 2**31, -(2**63)) if not tensor.is_floating_point() else (float("nan"), float("inf"), -1e30)
        )
        with contextlib.suppress(RuntimeError, OverflowError):
            changed[rng.randrange(changed.numel())] = value
    return (
        changed.reshape(tensor.shape)
        if kind < 5
        else changed.reshape(tensor.shape).flip(0)
        if tensor.dim()
        else changed
    )


def change_values(value: Any, rng: random.Random) -> Any:
    """Something somewhere in JSON values is another thing, gone, or more."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return value | {rng.choice(WORDS): rng.choice(OTHER)}
        return value | {key: change_values(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], change_values(value[place], rng), *value[place + rng.randrange(2) :]]
    return rng.choice(OTHER)


def forge(path: Path, rng: random.Random) -> None:
    """Change the contents of one of our files, and write it as we do."""
    tensors, values = read_tensors(path)
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind, name = rng.randrange(6), rng.choice(list(tensors) or [""])
        if kind == 0:
            values = changed if isinstance(changed := change_values(values, rng), dict) else values
        elif kind == 1 and name:
            tensors.pop(name)
        elif kind == 2:
            tensors[rng.choice(["x", "a/b", f"{name}/x", "y", "optimizer/mean/99", f"{name}#shape"])] = torch.ones(2)
        elif name:
            tensors[name] = change_tensor(tensors[name], rng)
    write_tensors(path, tensors, values)


# --- cases --------------------------------------------------------------------------------------------------------------


class TooLong(Exception):
    """A case took longer than `SECONDS`."""


def case(target: Target, seed: int) -> str:
    """Change the file, read it, put it back: ``read``, ``refused``, or a traceback."""
    before, rng = target.path.read_bytes(), random.Random(seed)
    try:
        if target.ours and rng.random() < 0.7:
            with contextlib.suppress(UnicodeError):  # names that no file can hold
                forge(target.path, rng)
        else:
            target.path.write_bytes(change_bytes(before, rng))
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(target.path)
        return "read"
    except FedGraphError as error:
        return "refused" if "\n" not in str(error) else f"more than a line: {error}"
    except Exception:
        return traceback.format_exc()
    finally:
        # Another file: tensors of a valid one may still be mapped to the old.
        target.path.unlink(missing_ok=True)
        target.path.write_bytes(before)


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def stop(signum: int, frame: Any) -> None:
        raise TooLong(f"more than {seconds} s")

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def main() -> int:
    """Handle the command line; 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--target", default="", help="only this reader")
    parser.add_argument("--cases", type=int, default=0, help="so many of each reader, and no longer")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    received: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        chosen = {n: t for n, t in targets(Path(folder)).items() if args.target in ("", n)}
        end, seed = time.monotonic() + 60 * args.minutes, args.seed
        while time.monotonic() < end and not (args.cases and seed >= args.seed + args.cases):
            for name, target in chosen.items():
                (Path(tempfile.gettempdir()) / "fuzz-last.json").write_text(json.dumps({"target": name, "seed": seed}))
                with _at_most(SECONDS):
                    outcome = case(target, seed)
                outcomes[outcome if outcome in ("read", "refused") else "FOUND"] += 1
                if outcome not in ("read", "refused"):
                    received[last := outcome.strip().splitlines()[-1]] += 1
                    if received[last] == 1:
                        print(f"--target '{name}' --seed {seed} --cases 1\n{outcome}", flush=True)
            seed += 1
    print(f"{sum(outcomes.values())} cases of {len(chosen)} readers: {dict(outcomes)}")
    return int(outcomes["FOUND"] > 0)


if __name__ == "__main__":
    sys.exit(main())
