"""The three banks of `examples/banks`, as files."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "banks" / "make_tables.py"


def module():
    spec = importlib.util.spec_from_file_location("make_tables", SCRIPT)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def write(folder: Path, customers: int = 300) -> dict[str, tuple[Path, Path]]:
    """The tables of each bank, by its letter."""
    made, paths = module(), {}
    for letter in made.OWN_TRADE:
        paths[letter] = folder / f"{letter}_customers.csv", folder / f"{letter}_payments.csv"
        for table, path in zip(made.bank(letter, customers, 0), paths[letter], strict=True):
            table.to_csv(path, index=False)
    return paths
