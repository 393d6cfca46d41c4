"""What a newcomer does, as the README says: clone, environment, first run, first comparison; wall and CPU seconds of each step.

    python -m benchmarks.newcomer [--here]

The commands are those of README.md. The script fails if the comparison does not say that a method is better than Local, or if
run and comparison take more than three minutes. `--here` skips clone and installation and uses this environment.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 180.0
"""Maximum seconds of the first run and the first comparison."""


def main() -> None:
    """Print a line per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="use this checkout and environment")
    here = parser.parse_args().here
    with tempfile.TemporaryDirectory() as name:
        work, python = Path(name), sys.executable
        if not here:
            timed("clone", ["git", "clone", "-q", str(ROOT), str(work / "clone")], work)
            began = time.perf_counter()
            venv.create(work / "venv", with_pip=True)
            python = str(work / "venv" / "bin" / "python")
            for args in (["torch==2.13.0"], ["-e", str(work / "clone")]):
                subprocess.run([python, "-m", "pip", "install", "-q", *args], check=True)
            print(f"{time.perf_counter() - began:7.1f} s  environment", flush=True)
        seconds, said = 0.0, ""
        for command in commands((ROOT / "README.md").read_text()):
            took, said = timed(
                command, [python, "-m", *command.replace("fedgraph-flwr", "fedgraph_flwr", 1).split()], work
            )
            seconds += took
    verdicts = [line for line in said.splitlines() if re.search(r"^Fed\w+ (has|is) ", line)]
    print("\n".join(verdicts))
    if not any("better than training alone (Local) by" in line for line in verdicts):
        sys.exit("the first comparison shows no gain over Local")
    if seconds > LIMIT:
        sys.exit(f"the first run and comparison took {seconds:.0f} s, expected less than {LIMIT:.0f}")


def commands(readme: str) -> list[str]:
    """Return the first run, which follows the installation in its line, and the first comparison of the README."""
    blocks = re.findall(r"```bash\n(.*?)```", readme, re.S)
    lines = [part for block in blocks for line in block.splitlines() for part in line.split(" && ")]
    return [next(line for line in lines if line.startswith(f"fedgraph-flwr {name} ")) for name in ("run", "sweep")]


def timed(what: str, command: list[str], folder: Path) -> tuple[float, str]:
    """Run a command, print its wall and CPU seconds, and return the former with its output."""
    began, before = time.perf_counter(), os.times()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    after, seconds = os.times(), time.perf_counter() - began
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{seconds:7.1f} s, {spent:6.1f} CPU s  {what}", flush=True)
    return seconds, done.stdout


if __name__ == "__main__":
    main()
