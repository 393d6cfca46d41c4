"""Duration of the story of three months at three banks (`examples/banks/three_months.py`): CPU seconds by step.

python -m benchmarks.story [OPTIONS of the script]
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "examples" / "banks" / "three_months.py"


def main() -> None:
    """Run the script, print its last lines, and the CPU time and memory of its process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPT), folder, *sys.argv[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("\n".join(done.stdout.splitlines()[-5:]))
    print(f"in all {used.ru_utime + used.ru_stime:.1f} CPU s with imports, at most {used.ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
