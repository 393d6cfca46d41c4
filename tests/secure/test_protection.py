"""The clients' half of a protection: chosen once from the configuration, and composed as the sums at the server are."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import Mean
from fedgraph_flwr.secure.eligibility import notes
from fedgraph_flwr.secure.protection import Leaving, Taken, protection_of
from fedgraph_flwr.secure.protection.masked import Masked
from fedgraph_flwr.wire.messages import CLIPPED, CLIPPING, MODEL, TRAIN
from tests.nodes import made
from tests.support import honest_reply

ROOT = Path(__file__).parents[2] / "fedgraph_flwr"
UNIFORM, NOISE = "strategy.weighting=uniform", "privacy.noise_multiplier=1"
BOTH = ["privacy.secagg=true", "privacy.secagg_bits=20", UNIFORM, NOISE]
ROWS = ["strategy=fedgrad", "privacy.unit=row", "privacy.rows=100000", "privacy.scores=none", NOISE]


def layers(*overrides):
    """Names of the classes, from the outermost."""
    layer, names = protection_of(compose(["num_clients=5", *overrides])), []
    while layer:
        names.append(type(layer).__name__)
        layer = layer.inner
    return names


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([], []),
        (["privacy.secagg=true"], ["Masked"]),
        (["privacy.dp=server_fixed", UNIFORM, NOISE], ["Booked"]),
        (["privacy.dp=client_adaptive", UNIFORM, NOISE], ["Booked", "Clipped"]),
        (["privacy.dp=distributed", *BOTH], ["Masked", "Booked", "Clipped"]),
        (["privacy.dp=distributed", *ROWS, *BOTH], ["Masked", "Booked"]),
        (["privacy.dp=local", *ROWS], ["Booked"]),
    ],
)
def test_the_configuration_chooses_the_layers(overrides, names):
    assert layers(*overrides) == [*names, "Protection"]


def test_facts_of_the_outermost_are_those_of_all():
    protection = protection_of(compose(["num_clients=5", "privacy.dp=distributed", *BOTH]))
    assert (protection.key, protection.noised, protection.private, protection.sums_only) == (
        "privacy.secagg=true",
        "privacy.dp=distributed",
        True,
        True,
    )
    assert isinstance(protection, Masked)
    assert protection.noise is protection.member.noise is not None
    assert protection.releases(True, True) == 1  # scores are exact
    assert protection.withheld(TRAIN) == "privacy.dp=distributed"
    assert [protection.withheld(phase) for phase in protection.exchanges] == [""] * 4
    plain = protection_of(compose(["num_clients=5"]))
    assert (plain.key, plain.noised, plain.exchanges, plain.releases(True, True)) == ("", "", (), 0)
    assert list(plain.places(1, [3, 7])) == [3, 7]


def test_updates_are_clipped_about_the_model_that_came_in_any_order():
    """The server's arrays may come in another order than the client's."""
    cfg = compose(["num_clients=5", "privacy.dp=client_adaptive", "privacy.clipping_norm=5", UNIFORM, NOISE])
    protection = protection_of(cfg)
    declared = protection.uplink({TRAIN: {MODEL: Mean("arrays", origin="arrays")}})[TRAIN]
    received = {"b": np.ones(2, np.float32), "a": np.zeros(2, np.float32)}
    groups = {MODEL: received, CLIPPING: {MODEL: np.array([5.0])}}
    taken = protection.take(TRAIN, groups, ())
    assert groups == {MODEL: received}
    sent = {"a": np.array([30, 0], np.float32), "b": np.array([1, 41], np.float32)}
    left = protection.leave(Leaving(0, TRAIN, 1, {MODEL: sent}, declared, taken, [MODEL, CLIPPED]))
    np.testing.assert_allclose(left[MODEL]["a"], [3, 0], rtol=1e-5)
    np.testing.assert_allclose(left[MODEL]["b"], [1, 5], rtol=1e-5)
    assert left[CLIPPED][MODEL] == -0.5
    lost = Leaving(0, TRAIN, 1, {MODEL: sent}, declared, Taken({}, taken.groups), [MODEL, CLIPPED])
    with pytest.raises(
        FedGraphError, match=r"no model with the arrays of 'model', whose update privacy\.dp=client_adaptive"
    ):
        protection.leave(lost)


def test_what_a_node_did_not_book_does_not_leave():
    protection = protection_of(compose(["num_clients=5", "privacy.dp=server_fixed", UNIFORM, NOISE]))
    declared = {MODEL: Mean("arrays", origin="arrays")}
    with pytest.raises(FedGraphError, match="client 3 would send 'model', which this stage must not release"):
        protection.leave(Leaving(3, TRAIN, 1, {MODEL: {"w": np.ones(1)}}, declared, Taken({}), []))


def test_a_model_that_diverged_is_refused_before_it_is_clipped(monkeypatch):
    """Clipping scaled values that are not finite again and again, and never ended."""
    client = made(GraphClient, "privacy.dp=client_fixed", UNIFORM)
    fit = GraphClient.fit

    def diverged(self, parameters, config):
        trained, *rest = fit(self, parameters, config)
        return [np.full_like(array, np.nan) for array in trained], *rest

    monkeypatch.setattr(GraphClient, "fit", diverged)
    model = {name: tensor.detach().numpy().copy() for name, tensor in client.shared.items()}
    with pytest.raises(FedGraphError, match=r"with values that are not finite: if it diverged, lower train\.lr"):
        honest_reply(client, TRAIN, {MODEL: model}, {})


def test_exchanges_of_a_protection_are_unknown_without_it():
    client = made(GraphClient)
    with pytest.raises(FedGraphError, match="phase 'secagg_keys' is unknown"):
        honest_reply(client, "secagg_keys", {}, {})


def test_notes_name_what_is_not_covered():
    cfg = compose(["num_clients=5", "privacy.secagg=true", "strategy=fedomd", "privacy.reveal=[range]"])
    shown, sums = notes(cfg, {})
    assert "shows the server each client's range" in shown
    assert "only noise bounds what they reveal" in sums


def test_rooms_ask_a_runs_protection():
    """Nobody asks the configuration but those who choose a protection, state it, or compute with its numbers."""
    asking = re.compile(r"cfg\.privacy|\.privacy\.(dp|secagg|scores|unit)")
    known = {
        *("clients/combinations.py", "clients/row_gradients.py", "strategies/privacy.py"),
        *("store/earlier.py", "server_app.py"),
    }
    rooms = ("config", "cli", "secure", "report", "strategies/summation", "party/use/card.py")
    paths = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if asking.search(path.read_text())}
    assert {path for path in paths - known if not path.startswith(rooms)} == set()
