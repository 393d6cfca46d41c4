"""Plant one fault at a time in a copy of a checkout, run the tests that should see it, and count those that do.

    python -m benchmarks.planted_faults                # this checkout
    python -m benchmarks.planted_faults OTHER          # another one, such as the commit before tests were changed
    python -m benchmarks.planted_faults --only median  # some faults, by a part of their names

A fault replaces a text that occurs once in the package, whatever its file is called, by another. Its tests are named by
folders or files and an expression of pytest's ``-k``, slow ones included; paths that a checkout does not have are left out.
A fault that no longer fits, because its text has changed, ends the command. It takes about five CPU minutes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedgraph_flwr", "fedgraph_baselines")
NEEDED = (
    *PACKAGES,
    "conf",
    "simulations",
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "pyproject.toml",
    "README.md",
)
"""What of a checkout its tests read."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: what is wrong with the program.
        text: occurs once in the package.
        wrong: stands in its place.
        tests: files or folders of tests, of which those that exist are run.
        expression: selects among them.
    """

    name: str
    text: str
    wrong: str
    tests: tuple[str, ...]
    expression: str = ""


CONTRACT = ("tests/methods/test_contract.py",)
SAFETY = ("tests/safety",)
FAULTS = (
    # what the contract of every method holds
    Fault(
        "replies are taken in the order in which they arrive",
        "outcome.replies.sort(key=lambda reply: reply.client)",
        "pass",
        CONTRACT,
        "fedper",
    ),
    Fault(
        "a client forgets its method's state between messages",
        '"method": client.save(), **client',
        '"method": {}, **client',
        CONTRACT,
        "moon",
    ),
    Fault(
        "a client forgets its private parameters between messages",
        "for n, t in client.model.state_dict().items() if n not in client.shared}}",
        "for n, t in client.model.state_dict().items() if False}}",
        CONTRACT,
        "fedper",
    ),
    Fault(
        "a checkpoint lacks the server's state",
        '"method": self.server.save(), "models": self.server.models',
        '"method": {}, "models": self.server.models',
        CONTRACT,
        "fedavgm",
    ),
    Fault(
        "dropout draws from the process's stream",
        "    torch.default_generator.manual_seed(seed)\n",
        "    pass\n",
        CONTRACT,
        "fedavg and not fedavgm and not fedavg_ft",
    ),
    Fault(
        "the negatives of an attack are edges too",
        "others = rng.permutation(others)[: len(edges)]",
        "others = edges",
        (*CONTRACT, "tests/evaluation/test_attacks.py"),
        "attack and (fedavg or pairs)",
    ),
    Fault(
        "padded nodes of a stack count",
        '"real": padded(real, self.rows)',
        '"real": torch.ones_like(padded(real, self.rows))',
        (*CONTRACT, "tests/engine/test_stacking.py"),
        "stacked or batch_norm",
    ),
    # what methods and scores are by hand
    Fault(
        "a mean leaves out the weights",
        "    shares = factors / positive(factors.sum())\n",
        "    shares = np.full_like(factors, 1 / len(factors))\n",
        ("tests/methods/test_fedavg.py",),
    ),
    Fault(
        "the proximal term lacks its half",
        "return 0.5 * mu * torch.stack(squares).sum()",
        "return mu * torch.stack(squares).sum()",
        ("tests/methods/test_personal_by_hand.py", "tests/methods/test_parts.py"),
        "hand",
    ),
    Fault(
        "an offer of variates is adopted whether it arrived or not",
        "if offer and int(offer[ROUND]) == int(groups[ACKNOWLEDGED][ROUND][0]):",
        "if offer:",
        ("tests/methods/test_variates.py",),
    ),
    Fault(
        "the median is a mean",
        "return np.asarray(np.median(updates, axis=0))",
        "return np.asarray(np.mean(updates, axis=0))",
        ("tests/strategies/test_aggregators.py",),
    ),
    Fault(
        "F1 counts true positives once",
        "ratio(2 * table.diagonal(), either",
        "ratio(table.diagonal(), either",
        ("tests/evaluation/test_metrics.py",),
    ),
    Fault(
        "an update is clipped to twice the norm",
        "bounded[group] = clipped_model(arrays, origin, norm)",
        "bounded[group] = clipped_model(arrays, origin, 2 * norm)",
        ("tests/strategies/test_privacy.py", "tests/methods/test_accounted.py"),
        "scaled_to_the_norm or (accounted_for and fedavg)",
    ),
    Fault(
        "epsilon of several releases is that of one",
        "return releases * _divergence(noise_multiplier, sensitivity, sampling_rate)",
        "return _divergence(noise_multiplier, sensitivity, sampling_rate)",
        ("tests/strategies/test_privacy.py", "tests/secure"),
        "epsilon or accountant",
    ),
    # what a node refuses
    Fault(
        "a node believes any first parameters",
        "if _starts_otherwise(first[name].cpu().numpy(), received[name]):",
        "if False:",
        SAFETY,
        "starts_where_its_seed or claims_no_resumption",
    ),
    Fault(
        "FedALA learns its weights on one node",
        "size = max(1, int(self.keys.sample * client.num_train), client.policy.min_nodes)",
        "size = max(1, int(self.keys.sample * client.num_train))",
        SAFETY,
        "fedala",
    ),
    Fault(
        "FedGL sends what a node with few neighbours has",
        "few = torch.from_numpy(degree < self.policy.min_nodes)",
        "few = torch.from_numpy(degree < 0)",
        SAFETY,
        "fedgl",
    ),
    Fault(
        "a node runs every task",
        "_require(task in self.tasks, ",
        "_require(True, ",
        (*SAFETY, "tests/engine/test_tasks.py"),
        "policy_does_not_list or predicts_links_only",
    ),
    # data, configuration
    Fault(
        "an edge between two clients is lost at one of them",
        "wanted = who * n + far[edge]",
        "wanted = who * n + near[edge]",
        ("tests/partition/test_clients.py",),
    ),
    Fault(
        "a task that a method does not serve is refused without its name",
        "does not serve task={cfg.task.name}: set task to {accepted}",
        "does not serve it: set task to {accepted}",
        ("tests/config/test_config.py",),
        "any_method_under",
    ),
)


def planted(tree: Path, fault: Fault) -> tuple[Path, str]:
    """Plant a fault in the one file of a tree's package that has its text, and return the file and its former code.

    Raises:
        SystemExit: the text does not occur exactly once.
    """
    files = {path: path.read_text() for package in PACKAGES for path in (tree / package).rglob("*.py")}
    places = [path for path, code in files.items() for _ in range(code.count(fault.text))]
    if len(places) != 1:
        raise SystemExit(f"{fault.name}: its text occurs {len(places)} times in {tree}, expected once")
    places[0].write_text(files[places[0]].replace(fault.text, fault.wrong))
    return places[0], files[places[0]]


def caught(tree: Path, fault: Fault) -> bool:
    """Return whether a test fails in a tree with the fault.

    Raises:
        SystemExit: no test was selected, or pytest could not run.
    """
    paths = [path for path in fault.tests if (tree / path).exists()]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-m", "not faults", *paths]
    if fault.expression:
        command += ["-k", fault.expression]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CI": "true"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"{fault.name}: pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode == 1


def main() -> None:
    """Plant all faults, one after the other, and print which are caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT, help="root of a checkout (default: this one)")
    parser.add_argument("--only", default="", help="part of the names of faults (default: all)")
    parser.add_argument("--check", action="store_true", help="only check that every fault fits")
    args = parser.parse_args()
    faults, count = [fault for fault in FAULTS if args.only in fault.name], 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "checkout"
        for name in NEEDED:
            source, ignored = args.checkout / name, shutil.ignore_patterns("__pycache__", "results")
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=ignored)
            elif source.is_file():
                shutil.copy(source, tree / name)
        for fault in faults:
            file, code = planted(tree, fault)
            if args.check:
                print(f"fits    {fault.name}: {file.relative_to(tree)}")
            else:
                count += (seen := caught(tree, fault))
                print(f"{'caught ' if seen else 'missed '} {fault.name}", flush=True)
            file.write_text(code)
    if not args.check:
        print(f"{count} of {len(faults)} faults are caught")


if __name__ == "__main__":
    main()
