"""One party: its own tables, links to other parties, and use of a trained model. Nothing below `api` and `cli` imports it.

Its import registers what it brings to a node; the readers are imported when they are called.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.secure import wing


def _link_policy(values: Mapping[str, Any]) -> Any:
    from fedgraph_flwr.party.link.policy import link_policy

    return link_policy(values)


def _client_file(path: Path, linked: bool) -> Path:
    from fedgraph_flwr.party.party_file import client_file

    return client_file(path, linked)


wing.register("link", _link_policy, f"{__name__}.link.client:LinkClient", _client_file)
