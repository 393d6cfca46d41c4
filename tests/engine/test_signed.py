"""A node that accepts signed apps alone, as the how-to sets it up: real processes, on loopback."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedgraph_flwr import __version__
from fedgraph_flwr.engine.flower import APP, free_port
from tests.conftest import client_graph
from tests.engine.fleet import NAME, ROOT, Fleet
from tests.support import PATIENCE, wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.faults]

SPEC = f"@fedgraph/fedgraph-flwr=={__version__}"


def _script(*args: str) -> list[str]:
    return [sys.executable, str(ROOT / "docs" / "fleet" / "signed_app.py"), *args]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Callable[..., str]]]:
    """A fleet of one node that trusts the key ``auditor``, and ``sign(key)``, by which alone the served bundle is then signed."""
    folder = tmp_path_factory.mktemp("signed")
    client_graph(0).save(folder / "graphs" / "client_0000.safetensors")
    fleet = Fleet(folder, folder / "graphs")
    bundle, listen = str(folder / "app"), f"127.0.0.1:{free_port()}"
    fleet.environment["FLWR_SUPERGRID_API_URL"] = f"http://{listen}"
    for name in ("auditor", "stranger"):
        key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / name).write_bytes(key)

    def sign(name: str) -> str:
        subprocess.run(_script("build", bundle, "--app", str(ROOT)), check=True)
        args = _script("sign", bundle, "--key", str(folder / name))
        return subprocess.run(args, check=True, capture_output=True, text=True).stdout

    (folder / "trusted.yaml").write_text(sign("auditor"))
    try:
        fleet._spawn("hub", _script("serve", bundle, "--listen", listen))
        fleet.start_superlink()
        fleet.flwr("supernode", "register", str(fleet.keys / "node_0.pub"), NAME)
        fleet.start_node(0, "--trusted", str(folder / "trusted.yaml"))
        yield fleet, sign
    finally:
        fleet.stop()


def test_a_node_runs_what_a_party_that_it_trusts_has_signed_and_nothing_else(signed, tmp_path):
    fleet, sign = signed
    fleet.environment[APP] = SPEC
    assert fleet.run(tmp_path / "trusted", "rounds=1").rounds

    sign("stranger")
    assert fleet.begin(tmp_path / "foreign", "rounds=1").wait(PATIENCE) == 2
    assert "error: 0 of 1 clients registered; node" in fleet.log("run-foreign")
    wait_for(lambda: "FAB verification failed: the provided trusted entities" in fleet.log("node_0"), "the node's word")

    del fleet.environment[APP]  # a bundle made by the operator, as without signatures
    assert fleet.begin(tmp_path / "unsigned", "rounds=1").wait(PATIENCE) == 2
    assert "error: 0 of 1 clients registered; node" in fleet.log("run-unsigned")
    assert "The FAB could not be verified" in fleet.log("node_0")
    assert fleet.log("node_0").count("Receiving: train message") == 1
