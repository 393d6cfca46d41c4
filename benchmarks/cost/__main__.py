"""What things cost, in time, memory and bytes: ``python -m benchmarks.cost NAME [ARGUMENTS]``; without a name, the names."""

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    """Run a module of this folder as a program."""
    names = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
    if sys.argv[1:2] and sys.argv[1] in names:
        name = sys.argv.pop(1)
        runpy.run_module(f"benchmarks.cost.{name}", run_name="__main__", alter_sys=True)
        return
    for name in names:
        about = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
        print(f"{name:16} {about.partition(chr(10))[0]}")
    sys.exit(2 if sys.argv[1:] else 0)


if __name__ == "__main__":
    main()
