"""Check that two checkouts train the same bits: methods of ``conf/strategy`` under several scenarios, array by array.

    python -m benchmarks.same_bits OTHER_CHECKOUT [--methods fedavg,fedomd] [--scenarios plain,secagg]

Each checkout runs in one process per scenario, on the embedded graph (heterogeneous methods on a small generated one). The
command prints, for each method and scenario, ``same bits``, ``refused by both``, or what differs, and exits with 1 where any
line differs that the file of expected differences does not list (``method scenario reason`` per line, ``*`` for any).
Arrays are compared in the order of their values' hashes, so that a renamed parameter does not count as a difference.

Scenarios: plain; partial (2 of 3 clients a round); secagg; dp (noise from a fixed stream); median; ray (few methods).
"""

import argparse
import contextlib
import fnmatch
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parents[1]
EXPECTED = HERE / "benchmarks" / "expected_bits.txt"
SMALL = ["dataset.nodes_per_client=[40,60]"]
OVERRIDES = ["num_clients=3", "checkpoint_every=0"]
TYPED = ["dataset=typed", "partition=random-edges"]
SCENARIOS = {
    "plain": [],
    "partial": ["strategy.fraction=0.67"],
    "secagg": ["privacy.secagg=true"],
    "dp": ["privacy.dp=server_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"],
    "median": ["strategy.aggregator=median", "strategy.byzantine=0"],
    "ray": ["engine=ray", "ray.actors=2"],
}
RAY_METHODS = ("fedavg", "fedomd", "scaffold")

Result = str | list[np.ndarray]
"""The arrays of a finished run, or the error message of a refused one."""


def typed_graph(folder: Path) -> Path:
    """Write a small graph with two node types, as a file to import."""
    from torch_geometric.data import HeteroData

    rng, data = np.random.default_rng(0), HeteroData()
    for kind, count in (("author", 60), ("paper", 90)):
        data[kind].num_nodes = count
        data[kind].x = torch.from_numpy(rng.normal(size=(count, 4)).astype(np.float32))
    data["author"].y = torch.from_numpy(rng.integers(0, 3, 60))
    ends = [torch.from_numpy(rng.integers(0, n, 300)) for n in (60, 90)]
    data["author", "writes", "paper"].edge_index = torch.stack(ends)
    data["paper", "by", "author"].edge_index = torch.stack(ends[::-1])
    torch.save(data, path := folder / "typed.pt")
    return path


def child(
    checkout: Path, folder: Path, scenario: str, methods: list[str], rounds: int, cache: Path | None
) -> dict[str, Result]:
    """Run methods with a checkout's code in a separate process; results in ``cache`` are not computed again."""
    kept = cache / f"{scenario}-{rounds}.pickle" if cache else None
    known: dict[str, Result] = pickle.loads(kept.read_bytes()) if kept and kept.is_file() else {}
    missing = [method for method in methods if method not in known]
    if missing:
        known |= computed(checkout, folder, scenario, missing, rounds)
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(pickle.dumps(known))
    return known


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
    found: dict[str, Result] = {}
    for method in methods:
        words = ["run", f"strategy={method}", f"rounds={rounds}", *OVERRIDES, *SCENARIOS[scenario]]
        said, folder = "", Path(f"{scenario}-{method}").absolute()
        for extra in (SMALL, TYPED):
            with contextlib.redirect_stderr(io.StringIO()) as error, contextlib.redirect_stdout(io.StringIO()):
                try:
                    code: Any = command([*words, *extra, f"out={folder}", "--quiet", "--no-report"])
                except SystemExit as stop:
                    code = stop.code
            said = error.getvalue().strip() or str(code)
            if not code or "typed" not in said:
                break
        found[method] = said if code else arrays(folder)
    out.write_bytes(pickle.dumps(found))


def arrays(out: Path) -> list[np.ndarray]:
    """Return the shared parameters after the last round, and the training losses of all rounds."""
    from safetensors.numpy import load_file

    lines = (out / "rounds.jsonl").read_text().splitlines()
    losses = np.array([json.loads(line)["train"].get("train_loss", 0.0) for line in lines])
    tensors = load_file(out / "model_final.safetensors").values()
    return [losses, *sorted(tensors, key=lambda a: (a.shape, a.tobytes()))]


def compare(first: Result, second: Result) -> str:
    """Return the differences; empty if there are none."""
    if isinstance(first, str) and isinstance(second, str):
        return ""
    if isinstance(first, str) or isinstance(second, str):
        refused, said = ("now", first) if isinstance(first, str) else ("before", second)
        return f"refused {refused}: {str(said)[-300:]}"
    if [a.shape for a in first] != [a.shape for a in second]:
        return "other shapes"
    if all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True)):
        return ""
    pairs = list(zip(map(np.float64, first), map(np.float64, second), strict=True))
    gap = max(
        np.abs(np.sort(a, axis=None) - np.sort(b, axis=None)).max() / max(np.abs(a).max(), 1e-12) for a, b in pairs
    )
    return f"largest difference {max(float(gap), 1e-300):.1e}"


def read_expected(path: Path) -> list[list[str]]:
    """Return the listed differences: method, scenario and reason."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [line.split(None, 2) for line in lines if line.strip() and not line.startswith("#")]


def main() -> int:
    """Compare this checkout with another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", default="*", help="names or patterns, separated by commas")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--expected", type=Path, default=EXPECTED)
    parser.add_argument("--cache", type=Path, help="folder that keeps the other checkout's results between calls")
    args = parser.parse_args()
    checkouts = [HERE, args.other.resolve()]
    known = [{path.stem for path in (c / "conf" / "strategy").glob("*.yaml")} for c in checkouts]
    patterns, expected = args.methods.split(","), read_expected(args.expected)
    methods = sorted(m for m in known[0] & known[1] if any(fnmatch.fnmatch(m, p) for p in patterns))
    different = 0
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / str(index) for index in range(2)]
        for folder, checkout in zip(folders, checkouts, strict=True):
            folder.mkdir()
            environment = {**os.environ, "PYTHONPATH": str(checkout), "FEDGRAPH_DATA": str(folder / "data")}
            words = ["import", "--data", str(typed_graph(folder)), "--name", "typed", "--target", "author"]
            subprocess.run(
                [sys.executable, "-m", "fedgraph_flwr", *words],
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
            )
        for scenario in args.scenarios.split(","):
            chosen = [m for m in methods if scenario != "ray" or m in RAY_METHODS]
            caches = (None, args.cache)
            given = zip(checkouts, folders, caches, strict=True)
            results = [child(c, f, scenario, chosen, args.rounds, cache) for c, f, cache in given]
            for method in chosen:
                now, before = (result[method] for result in results)
                difference = compare(now, before)
                reason = next(
                    (e[2] for e in expected if fnmatch.fnmatch(method, e[0]) and fnmatch.fnmatch(scenario, e[1])), ""
                )
                different += bool(difference) and not reason
                same = "refused by both" if isinstance(now, str) else "same bits"
                listed = f" (expected: {reason})" if difference and reason else ""
                print(f"{scenario:8} {method:20} {difference or same}{listed}", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.path[0] = os.environ["PYTHONPATH"]  # not this checkout's folder, where Python found the script
        run_all(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
        sys.exit(0)
    sys.exit(main())
