"""Whether two checkouts train the same parameters: every method of ``conf/strategy`` for a few rounds, array by array.

    python -m benchmarks.same_bits OTHER_CHECKOUT [--rounds 3]

Runs the command line of both checkouts on the embedded graph (typed methods on a small made one) and prints, for each
method that both know, ``same bits``, or the largest relative difference; exits with 1 if one is more than rounding (1e-4).
Arrays are compared in the order of their values' hashes, so that a renamed parameter is no difference.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

HERE = Path(__file__).parents[1]
WORDS = ["num_clients=3", "dataset.nodes_per_client=[40,60]", "checkpoint_every=0", "--quiet", "--no-report"]
TYPED = "this one has one type of nodes"
ROUNDING = 1e-4


def typed_words(folder: Path) -> list[str]:
    """The import of a small graph with two node types, and the words that choose it."""
    from torch_geometric.data import HeteroData

    path = folder / "typed.pt"
    if not path.exists():
        rng = np.random.default_rng(0)
        data = HeteroData()
        for kind, count in (("author", 60), ("paper", 90)):
            data[kind].num_nodes = count
            data[kind].x = torch.from_numpy(rng.normal(size=(count, 4)).astype(np.float32))
        data["author"].y = torch.from_numpy(rng.integers(0, 3, 60))
        ends = [torch.from_numpy(rng.integers(0, n, 300)) for n in (60, 90)]
        data["author", "writes", "paper"].edge_index = torch.stack(ends)
        data["paper", "by", "author"].edge_index = torch.stack(ends[::-1])
        torch.save(data, path)
    return ["dataset=typed", "partition=random-edges", "num_clients=3"]


def run(checkout: Path, root: Path, words: list[str], out: Path) -> str:
    """One run of a checkout's command line; what it said where it failed."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "FEDGRAPH_DATA": str(root)}
    command = [sys.executable, "-m", "fedgraph_flwr", *words]
    command += [f"out={out}"] if words[0] == "run" else []
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def arrays(out: Path) -> list[np.ndarray]:
    """The shared parameters after the last round, and the training losses of all rounds."""
    lines = (out / "rounds.jsonl").read_text().splitlines()
    losses = np.array([json.loads(line)["train"].get("train_loss", 0.0) for line in lines])
    tensors = load_file(out / "model_final.safetensors").values()
    return [losses, *sorted(tensors, key=lambda a: (a.shape, a.tobytes()))]


def compare(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """0 where all bits agree, else the largest relative difference; infinite for other shapes."""
    if [a.shape for a in first] != [a.shape for a in second]:
        return float("inf")
    if all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True)):
        return 0.0
    pairs = zip(map(np.float64, first), map(np.float64, second), strict=True)
    gaps = [np.abs(np.sort(a, axis=None) - np.sort(b, axis=None)).max() / max(np.abs(a).max(), 1e-12) for a, b in pairs]
    return max(float(max(gaps)), 1e-300)


def main() -> int:
    """Compare this checkout with another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    checkouts = [HERE, args.other.resolve()]
    known = [{path.stem for path in (c / "conf" / "strategy").glob("*.yaml")} for c in checkouts]
    different = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = typed_words(folder)
        for index, checkout in enumerate(checkouts):
            options = ["--data", str(folder / "typed.pt"), "--name", "typed", "--target", "author"]
            if told := run(checkout, folder / f"root{index}", ["import", *options], folder):
                print(f"import: {told}")
        for method in sorted(known[0] & known[1]):
            results = []
            for index, checkout in enumerate(checkouts):
                out = folder / f"{method}{index}"
                chosen = ["run", f"strategy={method}", f"rounds={args.rounds}"]
                told = run(checkout, folder / f"root{index}", [*chosen, *WORDS], out)
                if TYPED in told or "needs typed nodes" in told or "typed" in told:
                    told = run(checkout, folder / f"root{index}", [*chosen, *words, *WORDS[2:]], out)
                if told:
                    print(f"{method}: {checkout}: {told}")
                    break
                results.append(arrays(out))
            gap = compare(*results) if len(results) == 2 else float("inf")
            different += gap > ROUNDING
            print(f"{method:20} {'same bits' if gap == 0 else f'largest difference {gap:.1e}'}", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
