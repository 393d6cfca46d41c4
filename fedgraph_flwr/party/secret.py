"""The secret of a party, by which hashes of its file and the order of its rows differ from what others can compute."""

import contextlib
import hashlib
import os
import re
import secrets
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError

SECRET = ".link_secret"
"""File with the secret of a party, in the folder of its client file."""


def party_secret(folder: Path, client: int, seed: int | None = None) -> str:
    """Return the secret of a party, 64 hexadecimal digits; it is made at the first import to a folder and kept there.

    Hashes of a file and the order of its rows leave the party in a link run. Without a secret, whoever has them could test
    guesses of single labels, and recognise equal files in other runs.

    Args:
        folder: the folder of the party's client file; it has the file `SECRET`.
        client: index of the party's client.
        seed: derive it from a seed instead, for simulations; nothing is read or written.

    Raises:
        FedGraphError: the file cannot be read or written, or is damaged.
    """
    if seed is not None:
        return hashlib.sha256(f"fedgraph party secret {seed} {client}".encode()).hexdigest()
    path = folder / SECRET
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), open(path, "x", opener=_private) as file:
            file.write(secrets.token_hex(32))
        secret = path.read_text().strip()
    except OSError as error:
        raise FedGraphError(f"cannot keep the party's secret in {path}: {error.strerror or error}") from error
    if not is_secret(secret):
        raise FedGraphError(
            f"{path} holds no party's secret: restore it, or remove it to link with other row numbers than before"
        )
    return secret


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read."""
    return os.open(path, flags, 0o600)


def is_secret(text: object) -> bool:
    """Return whether a text has the form of a secret."""
    return isinstance(text, str) and bool(re.fullmatch("[0-9a-f]{64}", text))
