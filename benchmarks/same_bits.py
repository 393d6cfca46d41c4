"""Check that two checkouts give the same bits: all methods under several scenarios, and commands on tables.

    python -m benchmarks.same_bits OTHER_CHECKOUT [--methods fedavg,fedomd] [--scenarios plain,secagg,link]

Each checkout runs in one process per scenario. Methods train on the embedded graph (heterogeneous methods on a small generated
one), and the shared parameters after the last round and all training losses are compared. The scenarios of `COMMANDS` compare the
files that commands write. The program prints, for each method or case and scenario, ``same bits``, ``refused by both``, or what
differs. It exits with 1 if any line differs that the file of expected differences does not list (``method scenario reason`` per
line, ``*`` for any). A method that only one checkout has also differs. Arrays are compared in the order of their values' hashes,
so that a renamed parameter does not count as a difference.

Scenarios: plain; partial (2 of 3 clients a round); secagg; dp (noise from a fixed stream); median; sampler (neighbours in
batches); stacked (clients computed as one); ray, resume, shared columns of far ends in each form and one per task (few methods);
rows (the first rounds of stored rows: few for each method, which together name every word of its rows; they read raw files under
``FEDGRAPH_DATA``); and those of commands: import, link, predict, start (`init`, `evaluate`), party (nodes with a policy and a
state folder), alerts, explain and forget. ``--renew`` renews a row only as `rows.Compared`
says.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import inspect
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

HERE = Path(__file__).resolve().parents[1]
EXPECTED = HERE / "benchmarks" / "expected_bits.txt"
SMALL = ["dataset=csbm", "dataset.nodes_per_client=[40,60]"]
OVERRIDES = ["num_clients=3", "checkpoint_every=0"]
TYPED = ["dataset=typed", "partition=random-edges"]
FAR_ENDS = ["dataset=payments", "dataset.accounts=300", "dataset.background=500", "dataset.per_kind=4"]
FAR_ENDS += ["dataset.recipe=payments", "dataset.windows=[2]", "dataset.depth=3", "model=sage"]
SCENARIOS = {
    "plain": [],
    "partial": ["strategy.fraction=0.67"],
    "secagg": ["privacy.secagg=true"],
    "dp": ["privacy.dp=server_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"],
    "median": ["strategy.aggregator=median", "strategy.byzantine=0"],
    "sampler": ["train.sampler=neighbors", "train.batch_size=8", "train.fanout=[3,2]"],
    "stacked": ["stack=3"],
    "resume": ["checkpoint_every=1"],
    "ray": ["engine=ray", "ray.actors=2"],
    "nodes-regression": ["dataset=planted-regression", "dataset.nodes=60"],
    "nodes-multilabel": ["dataset=planted-multilabel", "dataset.nodes=60"],
    "edges": ["dataset=payments", "dataset.accounts=90", "dataset.background=400", "dataset.per_kind=3"],
    "links": [],
    "graphs": ["dataset=cycles", "dataset.graphs=20"],
    "graphs-regression": ["dataset=planted-counts", "dataset.graphs=20"],
    "graphs-multilabel": ["dataset=labels", "partition=random"],
    "triples": ["dataset=planted-triples"],
    "far-ends": [*FAR_ENDS, "partition.share=[n_in_2d,n_out_2d]"],
    "far-ends-exact": [*FAR_ENDS, "partition.share=['n_in_2d:exact']"],
    "far-ends-noise": [*FAR_ENDS, "partition.share=['n_in_2d:eps=2']"],
    "far-ends-edges": [*FAR_ENDS, "task=edges", "partition.share=['edges.n_in_2d','edges.n_out_2d:exact']"],
}
TASKS = [name for name in SCENARIOS if name.startswith(("nodes-", "edges", "links", "graphs", "triples"))]
FEW: dict[str, tuple[str, ...]] = {"ray": ("fedavg", "fedomd", "scaffold")}
FEW["resume"] = ("fedavg", "fedomd", "scaffold", "fedavgm", "fedadam", "moon", "ditto", "fedper", "fedgcn", "fedspa")
FEW |= dict.fromkeys(TASKS, ("fedavg", "scaffold", "fedprox", "fedper", "gcfl", "fedadam"))
FEW |= {name: ("fedavg", "scaffold") for name in SCENARIOS if name.startswith("far-ends")}
"""Scenario → the methods that it runs; others run all."""

ROWS = "rows"
"""Scenario whose cases are overrides of stored rows."""

COMMANDS = HERE / "benchmarks" / "same_bits.yaml"
"""Scenario → case → commands."""
MISSING = "not there"
PARTY_NODES = "party-nodes"
"""First word of a line among the commands: the runs that follow ask nodes of parties with the policy that it names."""

RUN_OF_NODE = re.compile(r"-[0-9a-f]{16}/")
"""Number of a run in the name of a node's folder, which differs each time."""

POLICY = """
strategies: [fedavg, ditto, scaffold]
min_nodes: 3
check_start: true
"""

Result = str | list[np.ndarray] | dict[str, np.ndarray]
"""The arrays of a finished run, the bytes of written files by their names, or the error message of a refused one."""


def tables(folder: Path) -> Path:
    """Write the tables of three banks and of linked banks, a heterogeneous graph, many graphs, and pairs of nodes."""
    from torch_geometric.data import HeteroData

    for script, name, size in (("make_tables", "banks", "--customers"), ("linked_tables", "crossing", "--accounts")):
        command = [sys.executable, str(HERE / "examples" / "banks" / f"{script}.py"), str(folder / name), size, "60"]
        subprocess.run(command, check=True)
    (folder / "policy.yaml").write_text(POLICY)
    (folder / ".link_secret").write_text("0f" * 32)  # a party's, from which the order of its rows follows
    rng, data = np.random.default_rng(0), HeteroData()
    for kind, count in (("author", 60), ("paper", 90)):
        data[kind].num_nodes = count
        data[kind].x = torch.from_numpy(rng.normal(size=(count, 4)).astype(np.float32))
    data["author"].y = torch.from_numpy(rng.integers(0, 3, 60))
    ends = [torch.from_numpy(rng.integers(0, n, 300)) for n in (60, 90)]
    data["author", "writes", "paper"].edge_index = torch.stack(ends)
    data["paper", "by", "author"].edge_index = torch.stack(ends[::-1])
    torch.save(data, folder / "typed.pt")

    def write(name: str, count: int, **columns: Any) -> None:
        frame = pd.DataFrame(columns) if columns else pd.DataFrame({"id": range(count)})
        frame.head(count).to_csv(folder / f"{name}.csv", index=False)

    ids, color, label = np.arange(50), *rng.choice(["red", "green"], (2, 50))
    write(
        "nodes",
        50,
        id=ids,
        age=rng.integers(18, 90, 50),
        weight=rng.normal(70, 9, 50).round(1),
        color=color,
        label=label,
    )
    write(
        "papers", 40, id=[f"p{i}" for i in range(40)], pages=rng.integers(1, 30, 40), year=rng.integers(1990, 2026, 40)
    )
    write("writes", 120, source=rng.choice(ids, 120), target=[f"p{i}" for i in rng.integers(0, 40, 120)])
    call = {"length": rng.exponential(5, 200).round(2), "kind": rng.choice(["work", "home"], 200)}
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 30, 200)), unit="D")
    write(
        "calls", 200, source=rng.choice(ids, 200), target=rng.choice(ids, 200), when=days.strftime("%Y-%m-%d"), **call
    )
    write("pairs", 20, source=rng.integers(0, 30, 20), target=rng.integers(0, 30, 20))
    molecule = np.repeat([f"m{i}" for i in range(24)], 5)
    atoms = [f"{name}-{i % 5}" for i, name in enumerate(molecule)]
    write(
        "atoms",
        120,
        id=atoms,
        molecule=molecule,
        charge=rng.normal(size=120).round(2),
        kind=rng.choice(list("CNO"), 120),
    )
    write(
        "bonds",
        96,
        source=[a for i, a in enumerate(atoms) if i % 5 < 4],
        target=[a for i, a in enumerate(atoms) if i % 5],
    )
    yes = rng.integers(0, 2, (2, 24))
    write(
        "molecules",
        24,
        molecule=[f"m{i}" for i in range(24)],
        label=np.where(yes[0], "toxic", "safe"),
        acid=yes[0],
        salt=yes[1],
    )
    return folder


def prepare(checkout: Path, folder: Path) -> None:
    """Write the tables, and store two datasets with a checkout's code: ``typed`` and ``labels``, many graphs with labels.

    Raw files of the user's datasets are linked beside them.
    """
    folder.mkdir()
    (folder / "data").mkdir()
    for raw in Path(os.environ.get("FEDGRAPH_DATA", "missing")).glob("*/"):
        if raw.name not in ("fedgraph", "imported"):
            (folder / "data" / raw.name).symlink_to(raw.absolute())
    (folder / "tables").mkdir()
    tables(folder / "tables")
    many = "--nodes atoms.csv --edges bonds.csv --graph-column molecule --graph-table molecules.csv --undirected"
    for words in ("--data typed.pt --name typed --target author", f"{many} --predict-columns acid,salt --name labels"):
        subprocess.run(
            [sys.executable, "-m", "fedgraph_flwr", "import", *words.split()],
            cwd=folder / "tables",
            env={**os.environ, "PYTHONPATH": str(checkout), "FEDGRAPH_DATA": str(folder / "data")},
            check=True,
            capture_output=True,
        )


def child(
    checkout: Path, folder: Path, scenario: str, methods: list[str], rounds: int, cache: Path | None
) -> dict[str, Result]:
    """Run methods with a checkout's code in a separate process; results in ``cache`` are not computed again."""
    version = code_of(checkout, scenario) if cache else ""
    kept = cache / version / f"{scenario}-{rounds}.pickle" if cache and version else None
    known: dict[str, Result] = pickle.loads(kept.read_bytes()) if kept and kept.is_file() else {}
    again = scenario == ROWS  # a refusal for a missing file may be mended
    missing = [method for method in methods if method not in known or (again and isinstance(known[method], str))]
    if missing:
        known |= computed(checkout, folder, scenario, missing, rounds)
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(pickle.dumps(known))
    return known


def code_of(checkout: Path, scenario: str) -> str:
    """Return a digest of committed code and of what a scenario runs; empty if a file of the code has changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()

    folders = ("fedgraph_flwr", "fedgraph_baselines", "conf", "examples", "tests/nodes.py")
    if git("status", "--porcelain", "--", *folders):
        return ""
    trees = git("rev-parse", *(f"HEAD:{folder}" for folder in folders))
    run: list[Any] = [SCENARIOS.get(scenario, scenario)]
    if scenario in cases():
        run = [cases()[scenario], inspect.getsource(tables)]
    return hashlib.sha256(f"{trees} {run}".encode()).hexdigest()[:16]


def computed(checkout: Path, folder: Path, scenario: str, methods: list[str], rounds: int) -> dict[str, Result]:
    """Return the results of a process with a checkout's code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "FEDGRAPH_DATA": str(folder / "data"),
        "OMP_NUM_THREADS": "1",
    }
    out = folder / f"{scenario}.pickle"
    words = [sys.executable, str(Path(__file__).resolve()), "--child", str(out), scenario, str(rounds), *methods]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}, {scenario}: {done.stderr.strip()[-2000:]}")
    return dict(pickle.loads(out.read_bytes()))


def run_all(out: Path, scenario: str, rounds: int, methods: list[str]) -> None:
    """Run methods in this process, and write their results."""
    try:
        from fedgraph_flwr.cli.app import main as command
    except ModuleNotFoundError:  # before modules moved into rooms
        from fedgraph_flwr.cli import main as command

    generator = np.random.default_rng
    np.random.default_rng = lambda *seed: generator(*(seed or (0,)))  # injected noise
    with contextlib.suppress(ModuleNotFoundError):  # where NumPy drew the noise
        from fedgraph_flwr.secure import noise

        noise.source = lambda: generator(0)
    results: dict[str, Result] = {}
    for index, method in enumerate(methods):
        folder = Path(f"{scenario}-{index}").absolute()
        if scenario == ROWS:
            results[method] = begun(command, method, rounds, folder)
        elif scenario in SCENARIOS:
            results[method] = trained(command, scenario, method, rounds, folder)
        else:
            results[method] = written(command, cases()[scenario][method], folder)
    out.write_bytes(pickle.dumps(results))


def cases() -> dict[str, dict[str, list[str]]]:
    """Return the commands of each case by scenario."""
    read = yaml.safe_load(COMMANDS.read_text())
    return {
        scenario: {
            case: [word for entry in body for word in (entry if isinstance(entry, list) else [entry])]
            for case, body in group.items()
        }
        for scenario, group in read.items()
    }


def called(command: Any, words: list[str]) -> str:
    """Run a command of the package in this process; return its error message, empty if it succeeds."""
    with contextlib.redirect_stderr(io.StringIO()) as error, contextlib.redirect_stdout(io.StringIO()):
        try:
            code: Any = command(words)
        except SystemExit as stop:
            code = stop.code
    return (error.getvalue().strip() or str(code)) if code else ""


def trained(command: Any, scenario: str, method: str, rounds: int, folder: Path) -> Result:
    """Return what a method's training gives, on the first of the graphs whose kind it takes."""
    task = [f"task={scenario}"] if scenario in TASKS else []
    words = ["run", *task, f"strategy={method}", f"rounds={rounds}", *OVERRIDES, *SCENARIOS[scenario]]
    given, said = any(word.startswith("dataset=") for word in words), ""
    for extra in (SMALL, TYPED):
        said = called(
            command,
            [*words, *([] if given else extra), f"out={folder}", "--quiet", "--no-report"],
        )
        if "node and edge types" not in said:
            break
    if scenario == "resume" and not said:
        said = called(command, ["run", f"resume={folder}", f"rounds={2 * rounds}", "--quiet", "--no-report"])
    return said or arrays(folder)


def begun(command: Any, words: str, rounds: int, folder: Path) -> Result:
    """Return what the first rounds of a stored row give."""
    fewer = [] if "rounds=1" in words.split() else [f"rounds={rounds}"]
    said = called(
        command, ["run", *words.split(), *fewer, "checkpoint_every=0", f"out={folder}", "--quiet", "--no-report"]
    )
    return said or arrays(folder)


def written(command: Any, commands: list[str], folder: Path) -> Result:
    """Return the files that commands write, as bytes."""
    shutil.copytree("tables", folder)
    given = set(folder.rglob("*"))
    with contextlib.chdir(folder), contextlib.ExitStack() as undo:
        for line in commands:
            if line.startswith(PARTY_NODES):
                undo.enter_context(party_nodes(*line.split()[1:]))
            elif said := called(command, line.split()):
                return f"{line[:40]}: {said}"
    new = [path for path in sorted({*folder.rglob("*")} - given) if path.is_file()]
    return {
        RUN_OF_NODE.sub("-run/", name): np.frombuffer(canonical(path), np.uint8)
        for path in new
        if compared(name := path.relative_to(folder).as_posix())
    }


@contextlib.contextmanager
def party_nodes(graphs: str, policy: str, state: str) -> Iterator[None]:
    """Let the clients of runs be nodes of parties, as the tests of this checkout have them.

    Args:
        graphs: folder with one file per client.
        policy: file with the policy of each.
        state: folder for their states.
    """
    import pytest

    from tests import nodes

    with pytest.MonkeyPatch.context() as patch:
        nodes.party_nodes(patch, sorted(Path(graphs).glob("*.safetensors")), Path(policy), Path(state))
        yield


def compared(name: str) -> bool:
    """Return whether a file that a command writes is compared: of a run's folder, the model and the thresholds of alerts.

    Of a node's state it is the models, and of a folder of graphs not the inputs that the node keeps beside them.
    """
    room, _, rest = name.partition("/")
    if room.startswith("exported") or name.endswith(".prepared"):
        return False
    if room == "state":
        return name.endswith(".safetensors")
    return not room.startswith("run") or rest == "model_final.safetensors" or rest.startswith("alerts_")


def canonical(path: Path) -> bytes:
    """Return the bytes of a file; of a safetensors file with its header's keys in order, which differs between equal files.

    Models in a node's state name their run, whose number differs each time: their metadata are left out.
    """
    content = path.read_bytes()
    if path.suffix not in (".safetensors", ".ledger"):
        return content
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    if "state" in path.parts:
        header.pop("__metadata__", None)
    return json.dumps(header, sort_keys=True).encode() + content[end:]


def arrays(out: Path) -> list[np.ndarray]:
    """Return the shared parameters after the last round, and the training losses of all rounds."""
    from safetensors.numpy import load_file

    lines = (out / "rounds.jsonl").read_text().splitlines()
    losses = np.array([json.loads(line)["train"].get("train_loss", 0.0) for line in lines])
    tensors = load_file(out / "model_final.safetensors").values()
    return [losses, *sorted(tensors, key=lambda a: (a.shape, a.tobytes()))]


def compare(first: Result, second: Result) -> str:
    """Return the differences; empty if there are none."""
    for result, when in ((first, "now"), (second, "before")):
        if isinstance(result, str) and result == MISSING:
            return f"{MISSING} {when}"
    if isinstance(first, str) and isinstance(second, str):
        return ""
    if isinstance(first, str) or isinstance(second, str):
        refused, said = ("now", first) if isinstance(first, str) else ("before", second)
        return f"refused {refused}: {str(said)[-300:]}"
    if isinstance(first, dict) and isinstance(second, dict):
        files = (first, second)
        changed = [name for name in sorted({*files[0], *files[1]}) if not same_bytes(*(f.get(name) for f in files))]
        return f"other files: {', '.join(changed)}" if changed else ""
    assert isinstance(first, list)  # results of one scenario
    assert isinstance(second, list)
    if [a.shape for a in first] != [a.shape for a in second]:
        return "other shapes"
    if all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True)):
        return ""
    pairs = list(zip(map(np.float64, first), map(np.float64, second), strict=True))
    gap = max(
        np.abs(np.sort(a, axis=None) - np.sort(b, axis=None)).max() / max(np.abs(a).max(), 1e-12) for a, b in pairs
    )
    return f"largest difference {max(float(gap), 1e-300):.1e}"


def same_bytes(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Return whether two files are there and equal."""
    return first is not None and second is not None and first.tobytes() == second.tobytes()


def read_expected(path: Path) -> list[list[str]]:
    """Return the listed differences: method, scenario and reason."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [line.split(None, 2) for line in lines if line.strip() and not line.startswith("#")]


def main() -> int:
    """Compare this checkout with another."""
    from benchmarks import rows  # not in a child, whose checkout may have other ones

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", default="*", help="names or patterns, separated by commas")
    parser.add_argument("--scenarios", default=",".join([*SCENARIOS, ROWS, *cases()]))
    parser.add_argument("--expected", type=Path, default=EXPECTED)
    parser.add_argument("--cache", type=Path, help="folder that keeps results of committed code between calls")
    parser.add_argument(
        "--renew",
        action="store_true",
        help="after the scenario rows, and those that you name: renew the digests of rows (`benchmarks.rows`)",
    )
    args = parser.parse_args()
    checkouts = [HERE, args.other.resolve()]
    places = ("conf/strategy/*.yaml", "fedgraph_baselines/conf/strategy/*.yaml")
    known = [{path.stem for place in places for path in checkout.glob(place)} for checkout in checkouts]
    patterns, expected = args.methods.split(","), read_expected(args.expected)
    if args.renew:
        if args.methods != "*" or ROWS not in args.scenarios.split(","):
            raise SystemExit(f"--renew needs all methods in the scenario {ROWS}; no row was changed")
        if not rows.carrying(checkouts[1]):
            when = "git log --format=%h -1 -- simulations/results/board.csv"
            raise SystemExit(
                f"no stored row has the digest of {args.other}: pass a checkout of the last renewal ({when})"
            )
    different, seen = 0, rows.Compared()
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / str(index) for index in range(2)]
        for folder, checkout in zip(folders, checkouts, strict=True):
            prepare(checkout, folder)
        for scenario in args.scenarios.split(","):
            listed = rows.covering(rows.rows()) if scenario == ROWS else cases().get(scenario, ())
            of_both = known if scenario in SCENARIOS else [set(listed)] * 2
            among = FEW.get(scenario, sorted(known[0] | known[1]) if scenario in SCENARIOS else listed)
            names = {case: rows.method(case) if scenario == ROWS else case for case in among}
            chosen = [case for case, name in names.items() if any(fnmatch.fnmatch(name, p) for p in patterns)]
            results = []
            for checkout, folder, methods in zip(checkouts, folders, of_both, strict=True):
                outputs = child(
                    checkout, folder, scenario, [m for m in chosen if m in methods], args.rounds, args.cache
                )
                results.append({method: outputs.get(method, MISSING) for method in chosen})
            for method in chosen:
                now, before = (result[method] for result in results)
                difference = compare(now, before)
                if scenario in cases() and isinstance(now, str):
                    difference = difference or f"refused by both: {now[-300:]}"
                fits = (e for e in expected if fnmatch.fnmatch(names[method], e[0]) and fnmatch.fnmatch(scenario, e[1]))
                reason = next((e[2] for e in fits), "")
                different += bool(difference) and not reason
                if scenario == ROWS:
                    seen.row(method, "refused" if isinstance(now, str) else difference)
                elif difference:
                    seen.moved.add(method)
                same = f"refused by both: {now[-90:]}" if isinstance(now, str) else "same bits"
                because = f" (expected: {reason})" if difference and reason else ""
                print(f"{scenario:16} {method:20} {difference or same}{because}", flush=True)
    if args.renew:
        if different:
            raise SystemExit("--renew needs a pass without an unlisted difference; no row was changed")
        print(f"{rows.renew(checkouts[1], seen)} rows have the digest of this code")
    return int(different > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.path[0] = os.environ["PYTHONPATH"]  # not this checkout's folder, where Python found the script
        run_all(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
        sys.exit(0)
    sys.exit(main())
