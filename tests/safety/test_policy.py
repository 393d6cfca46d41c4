"""Requests that a party accepts: its policy, what was asked before, and that nothing a server names is a path here."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config import from_run_config
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.node import records, settings
from fedgraph_flwr.secure.policy import Ledger, Policy, file_name, read_policy
from fedgraph_flwr.wire.messages import DECLINED, from_record
from tests.nodes import model_of
from tests.support import bomb

# --- a policy file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "overrides", "message"),
    [
        ({"strategies": ["fedprox"]}, [], "refuses strategy=fedavg (client fedgraph_flwr.clients.base:GraphClient)"),
        (
            {"strategies": ["fedavg"]},
            ["strategy.client=fedgraph_flwr.clients.fedstruct_a:FedStructAClient"],
            "refuses strat",
        ),
        ({"networks": ["sage", "mlp"]}, [], "refuses model=gcn: it accepts networks sage, mlp"),
        ({"phases": ["evaluate"]}, [], "refuses phase 'train': it accepts phases evaluate"),
        ({"rounds": 4}, [], "refuses rounds=5: it accepts at most 4 rounds"),
        ({"min_clients": 4}, [], "refuses num_clients=3: it accepts at least 4 clients"),
        ({"min_clients": 2}, [], "refuses strategy.min_clients=1: it accepts at least 2 clients"),
        ({"max_parameters": 20}, [], "refuses a model of 75 parameters: it accepts at most 20"),
        (
            {"required_config": {"privacy.dp": ["server_fixed", "client_fixed"]}},
            [],
            "refuses privacy.dp=none: it accepts privacy.dp=[",
        ),
        (
            {"required_config": {"strategy.fisher_exchange": "scalar"}},
            [],
            "has strategy.fisher_exchange, which this run does not",
        ),
        (
            {"required_config": {"strategy.mu": 0.5}},
            ["strategy=fedprox"],
            "refuses strategy.mu=0.01: it accepts strategy.mu=0.5",
        ),
        ({"messages": {"train": 0}}, [], "the server requests phase 'train' of round 1 1 times, expected at most 0"),
    ],
)
def test_what_a_policy_refuses(node, caplog, policy, overrides, message):
    asked = node(*overrides, policy=policy)
    assert message in asked.request("train", 1, {"model": model_of(node(*overrides))})
    assert asked.code == DECLINED, "monitors count it as a refusal, whatever the text says"
    assert message in caplog.text, "the node's own log has it"


def test_a_node_predicts_links_only_if_its_policy_says_so(node):
    assert "refuses task=links: it accepts tasks nodes (tasks)" in node("task=links").request("describe")
    described = node("task=links", policy={"tasks": ["links"], "min_nodes": 1}).request("describe")
    assert described["metrics"]["num_classes"] == 8  # outputs of the network


def test_what_a_policy_accepts(node):
    policy = {
        **{"strategies": ["fedprox"], "networks": ["gcn"], "phases": ["train"], "rounds": 5, "min_clients": 3},
        **{"required_config": {"strategy.mu": [0.5, 1.0], "privacy.dp": "none"}, "max_parameters": 75},
    }
    asked = node("strategy=fedprox", "strategy.mu=0.5", "strategy.min_clients=3", policy=policy)
    assert not isinstance(asked.request("describe"), str)
    assert not isinstance(asked.request("train", 1, {"model": model_of(asked)}), str)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("strategis: [fedavg]", "policy key 'strategis' is unknown (<policy>); did you mean 'strategies'?"),
        ("rounds: many", "policy.rounds (policy=<policy>) must be an integer, got 'many'"),
        ("rounds: 0", "policy.rounds must be in [1, 9223372036854775807], got 0"),
        ("strategies: fedavg", "policy.strategies (policy=<policy>) must be"),
        ("- fedavg", "policy=<policy> of --node-config must hold keys and values"),
        ("a: [", "policy=<policy> of --node-config is not valid YAML, line "),
        (bomb(), "policy=<policy> of --node-config is not valid YAML, line "),
        ("messages: {train: -1}", "policy.messages.train must be >= 0, got -1"),
    ],
)
def test_a_wrong_policy_is_one_sentence(node, text, expected):
    assert node(policy=text).request("describe").startswith(expected)


def test_a_policy_that_is_not_there(node, tmp_path):
    asked = node(policy={})
    asked.context.node_config["policy"] = str(tmp_path / "nothing.yaml")
    assert asked.request("describe") == "policy=<policy> of --node-config cannot be read: No such file or directory"


def test_every_key_of_a_policy_is_described():
    import dataclasses

    from fedgraph_flwr.secure import policy

    assert all(f"{f.name}: " in policy.__doc__ for f in dataclasses.fields(Policy))
    assert read_policy.__doc__


# --- nothing twice ----------------------------------------------------------------------------------------------------


def test_a_round_asks_once(node):
    asked = node()
    model = {"model": model_of(asked)}
    assert not isinstance(asked.request("train", 1, model), str)
    assert (
        asked.request("train", 1, model) == "the server requests phase 'train' of round 1 2 times, expected at most 1"
    )
    assert not isinstance(asked.request("train", 2, model), str)
    assert "of round 1 after round 2: requests of earlier rounds are refused" in asked.request("train", 1, model)
    assert "of round 6 in a run of 5 rounds" in asked.request("train", 6, model)
    assert "of round -1 in a run" in asked.request("train", -1, model)


def test_a_restarted_node_remembers_what_was_asked(node):
    asked = node(state=True)
    model = {"model": model_of(asked)}
    assert not isinstance(asked.request("train", 2, model), str)
    asked.restart()
    assert "2 times, expected at most 1" in asked.request("train", 2, model)
    assert "after round 2" in asked.request("train", 1, model)
    file = next(Path(asked.context.node_config["state"]).rglob("asked.json"))
    file.write_text("{")
    asked.restart()
    assert "does not hold the requests to this node" in asked.request("train", 3, model)


def test_an_exchange_is_not_answered_again(node):
    """Phases that may be asked more than once are so in the order of their exchanges."""
    asked = node()
    model = {"model": model_of(asked)}
    assert not isinstance(asked.request("evaluate", 1, model, exchange=1), str)
    assert "again (exchange 1 after 1): the node has replied to it already" in asked.request(
        "evaluate", 1, model, exchange=1
    )
    assert not isinstance(asked.request("evaluate", 1, model, exchange=2), str)
    assert not isinstance(asked.request("evaluate", 1, model, exchange=7), str)
    assert not isinstance(asked.request("evaluate", 1, model, exchange=8), str)
    assert "5 times, expected at most 4" in asked.request("evaluate", 1, model, exchange=9)


def test_a_round_goes_back_in_no_run(node):
    asked = node("train.optimizer=sgd", "train.optimizer_state=reset")
    model = {"model": model_of(asked)}
    assert not isinstance(asked.request("describe", resume=3, run="a"), str)
    assert "of round 3" not in str(asked.request("train", 4, model))
    assert "of round 2 after round 4" in asked.request("train", 2, model)
    assert "after round 4" in asked.request("describe", 0, resume=1, run="a")
    assert "resumes after round 1 in a run that is in round 5" in asked.request("describe", 5, resume=1, run="a")


def test_a_ledger_survives_as_numbers():
    ledger = Ledger()
    ledger.add("train", 2, 0, 1)
    ledger.add("evaluate", 2, 3, 4)
    again = Ledger(json.loads(json.dumps(ledger.record())))
    assert (again.round, again.asked) == (2, {"train": (1, 0), "evaluate": (1, 3)})


def test_a_run_that_ended_does_not_resume():
    """Each failed request shows a bit of the data: another run of Flower does not bring the next one."""
    ledger = Ledger({"ended": True, "attempts": ["7"], "round": 2})
    ledger.enter("8")
    assert (ledger.attempts, ledger.reached, ledger.round) == (["7", "8"], 0, 0)
    assert ledger.ended
    assert Ledger(ledger.record()).ended


@pytest.mark.parametrize("config", [{"round": "one"}, {"round": 1.5}, {"exchange": "x"}, {"resume": "x"}])
def test_a_message_of_wrong_types_is_a_sentence(node, config):
    assert node().request("describe", **config).startswith(f"the server's message has {next(iter(config))}=")


def test_an_unknown_phase_is_not_taken_down(node):
    asked = node()
    assert "phase 'mine [' is unknown (requested from GraphClient)" in asked.request("mine [")
    assert records.ASKED not in asked.context.state


# --- what statistics and sums may show ----------------------------------------------------------------------------------


def test_moments_of_one_model_a_round(node):
    """Ten models of a server's choice revealed the features of a node to three decimals."""
    asked = node("strategy=fedomd", "strategy.exchange=two_phase", policy={"check_start": False})
    model = model_of(asked)
    about = {name: np.zeros_like(a) for name, a in {"mean": np.zeros((3, 8), np.float32)}.items()}
    assert not isinstance(asked.request("means", 1, {"model": model}), str)
    assert "2 times, expected at most 1" in asked.request("means", 1, {"model": model})
    assert not isinstance(asked.request("moments_about", 1, {"model": model, "point": about}), str)
    other = {"model": {name: 2 * a for name, a in model.items()}, "point": about}
    assert (
        asked.request("moments_about", 1, other)
        == "client 0: the server requests statistics of a second model in round 1"
    )
    assert "of a second model in round 1" in asked.request("moments_sum", 1, other)
    assert not isinstance(asked.request("moments_about", 1, {"model": model, "point": about}), str)


@pytest.mark.parametrize(
    ("overrides", "policy", "least"),
    [
        ([], {"min_nodes": 13}, 13),
        (["strategy.min_nodes=14"], {}, 14),
        (["strategy.min_nodes=1"], {"min_nodes": 20}, 20),
    ],
)
def test_moments_of_few_nodes_stay(node, overrides, policy, least):
    asked = node("strategy=fedomd", *overrides, policy=policy)
    reply = asked.request("moments_sum", 1, {"model": model_of(asked)})
    assert reply.startswith(f"client 0 has 12 nodes for its moments, expected at least {least}")


def test_the_floor_holds_without_a_policy_whatever_the_server_says(node):
    asked = node("strategy=fedomd", "strategy.min_nodes=1", size=4)
    assert "client 0 has 4 nodes for its moments, expected at least 5" in asked.request(
        "moments_sum", 1, {"model": model_of(asked)}
    )


@pytest.fixture
def adding(node):
    """A node of FedSPA that was asked to train in round 1, its peers' keys and its replies."""
    from fedgraph_flwr.secure.sealed import Sealer

    def make(*overrides, **kwargs):
        asked = node("strategy=fedspa", "strategy.fisher_exchange=scalar", *overrides, **kwargs)
        keys = [asked.request("publish_key")["key"]["key"].numpy()]
        keys += [np.frombuffer(Sealer(i).public, np.uint8) for i in (1, 2)]

        def peers(clients, nodes=48):
            return {
                "clients": np.array(clients),
                "keys": np.stack([keys[c] for c in clients]),
                "nodes": np.array([nodes]),
            }

        return asked, peers, asked.request("train", 1, {"model": model_of(asked), "peers": peers([0, 1, 2])})

    return make


def test_no_second_sum_of_a_round_but_over_those_left(adding):
    """With other Σ N and the same peers the masks were the same, and the difference of two shares revealed the diagonal."""
    asked, peers, first = adding(state=True)
    assert not isinstance(first, str)
    for clients, nodes in (([0, 1, 2], 48), ([0, 1, 2], 96), ([2, 1, 0], 48), ([0, 1, 1], 48), ([1, 2], 48), ([0], 12)):
        reply = asked.request("share_again", 1, {"peers": peers(clients, nodes)})
        assert isinstance(reply, str), clients
    again = asked.request("share_again", 1, {"peers": peers([0, 1], 28)})
    asked.restart()
    assert "after one over [0, 1], expected fewer of the same clients" in asked.request(
        "share_again", 1, {"peers": peers([0, 2], 32)}
    )
    for name, share in from_record(again["fisher"]).items():  # fresh masks: what differs is as random as a share
        difference = share - from_record(first["fisher"])[name]
        assert difference.dtype == np.uint64
        assert (difference > 2**60).mean() > 0.5


def test_the_masks_name_all_that_changes_what_is_masked(monkeypatch, adding):
    from fedgraph_flwr.secure.masked import digest
    from fedgraph_flwr.secure.sealed import Sealer

    drawn = []
    stream = Sealer.stream
    monkeypatch.setattr(
        Sealer, "stream", lambda self, peer, step, n: drawn.append((peer, step)) or stream(self, peer, step, n)
    )
    steps = []
    for _ in range(2):
        asked, peers, _ = adding()
        steps.append(f"fisher 1 {digest(peers([0, 1, 2])).hex()}")
        asked.request("share_again", 1, {"peers": peers([0, 1], 28)})
    assert len(drawn) == len(set(drawn)) == 6
    assert [step for _, step in drawn][:2] == [steps[0]] * 2
    assert digest(peers([0, 1, 2], 47)) != digest(peers([0, 1, 2], 48)), "the number of nodes scales what is masked"


def test_a_party_says_with_how_many_it_adds_up(adding):
    asked, peers, first = adding("strategy.min_clients=3", policy={"min_clients": 3})
    assert not isinstance(first, str)
    reply = asked.request("share_again", 1, {"peers": peers([0, 1], 28)})
    assert "over clients [0, 1], but its node's policy requires at least 3 (min_clients)" in reply


def test_a_party_says_behind_how_many_a_secure_sum_hides_it(node, monkeypatch):
    from fedgraph_flwr.secure.secagg import Member

    overrides = ("privacy.secagg=true", "num_clients=5", "strategy.min_clients=4")
    monkeypatch.setattr(settings, "check_secure_node", lambda _: None)  # a node needs pinned keys
    for others, refused in ((2, "with 2 others, expected at least 3"), (3, "")):
        asked = node(*overrides, policy={"min_clients": 4})
        published = [{k: v.numpy() for k, v in asked.request("secagg_keys", 1)["secagg"].items()}]
        published += [Member(client, 2 / 3, 24).publish(1) for client in range(1, others + 1)]
        down = {name: np.stack([record[name] for record in published]) for name in ("keys", "sizes")}
        reply = asked.request("secagg_shares", 1, {"secagg": {"clients": np.arange(len(published)), **down}})
        assert (refused in reply) if refused else not isinstance(reply, str)


def test_secure_sums_need_pinned_keys_and_a_ledger(node):
    """Without pins, a server's own keys open a sum, and sizes are its choice; without a state folder, a node forgets sums."""
    missing = {"key": {}, "peers": {"key": "x"}, "state": {"key": "x", "peers": "x"}}
    for name, config in missing.items():
        reply = node("privacy.secagg=true", **config).request("describe", 0)
        assert f"this node needs {name}= in its --node-config" in reply


def test_no_checkpoint_brings_a_key_back(node, adding, tmp_path):
    """A resumed run publishes new keys; with the old ones its masks would be drawn twice."""
    from fedgraph_flwr.data.graph import read_tensors

    asked, peers, _ = adding(state=True)
    reply = asked.request("train", 2, {"model": model_of(asked), "peers": peers([0, 1, 2])}, checkpoint=True, run="a")
    assert not isinstance(reply, str)
    kept, _ = read_tensors(next((tmp_path / "state").rglob("round_000002.safetensors")))
    assert not [name for name in kept if "key" in name or "summed" in name]
    assert [name for name in kept if "fisher" in name]


# --- what a server names ----------------------------------------------------------------------------------------------

NASTY = ["x/../../../../ESCAPED", "..", ".", "/tmp/x", "", "a" * 65, "a b", "a\x00", "x\n", "ü"]


@pytest.mark.parametrize("name", NASTY)
def test_no_name_leads_out_of_a_folder(tmp_path, name):
    with pytest.raises(FedGraphError, match="is not a name: expected 1 to 64 letters, digits, _ or -"):
        file_name(name, "run")
    for names in ((name, "local"), ("run", name)):
        with pytest.raises(FedGraphError):
            StateFolder(tmp_path, names[0], names[1], 0)


@pytest.mark.parametrize("name", NASTY[:4])
def test_a_run_that_is_named_like_a_path_writes_nothing(node, tmp_path, name):
    asked = node(state=True)
    model = {"model": model_of(asked)}
    before = set(tmp_path.rglob("*"))
    assert "is not a name: expected" in asked.request("train", 1, model, checkpoint=True, run=name)
    written = {path.name for path in set(tmp_path.rglob("*")) - before}
    assert written == {"audit.jsonl", "audit.jsonl.lock", "audit.head"}, "the node's own log, which names the refusal"
    assert not list(tmp_path.parent.rglob("ESCAPED*"))


@pytest.mark.parametrize(
    ("run_config", "message"),
    [
        ({"config": "/etc/passwd"}, "the server's config= is not JSON: a node reads no file named by a server"),
        ({"config": "conf/config.yaml"}, "the server's config= is not JSON"),
        ({"config": "{"}, "config= is not valid JSON"),
        ({"overrides": "dataset.name=${oc.env:HOME}"}, "dataset '${oc.env:HOME}' is unknown"),
        ({"overrides": "seed=${oc.env:HOME}"}, "contains '${': a node resolves no variables for a server"),
        ({"config": '{"dataset": {"name": "${oc.env:HOME}"}}'}, "contains '${'"),
        ({"num-clients": "${oc.env:HOME}"}, "contains '${'"),
        ({"num-clients": r'"\x24{oc.env:HOME}"'}, "contains '${'"),
        ({"config": r'{"seed": "\u0024{oc.env:HOME}"}'}, "contains '${'"),
        ({"overrides": r"seed=$\{oc.env:HOME}"}, "contains '${'"),
        ({"overrides": 'seed="$"{oc.env:HOME}'}, "contains '${'"),
        ({"model.name": r'"\x24{oc.env:HOME}"'}, "model '${oc.env:HOME}' is unknown"),
        ({"overrides": "strategy=../../../../etc/passwd"}, "strategy '../../../../etc/passwd' is unknown"),
        ({"overrides": "dataset=../secrets"}, "dataset=../secrets has no file in conf/dataset"),
        ({"overrides": "'"}, "cannot split overrides into key=value"),
        (
            {"overrides": "strategy.client=subprocess:Popen"},
            "refuses strategy.client=subprocess:Popen: it accepts modules none",
        ),
        ({"overrides": "strategy.client=antigravity"}, "refuses strategy.client=antigravity"),
        ({"overrides": "strategy.client=clients.x.y:Z"}, "refuses strategy.client=clients.x.y:Z"),
        ({"overrides": "model=subprocess:Popen"}, "refuses model=subprocess:Popen"),
        ({"overrides": "evaluation.metric=os:listdir"}, "refuses evaluation.metrics (listdir)=os:listdir"),
        (
            {"overrides": "strategy.client=fedgraph_flwr.cli:main"},
            "strategy.client=fedgraph_flwr.cli:main is not a client",
        ),
        ({"overrides": "evaluation.metric=fedgraph_flwr.cli:main"}, "refuses evaluation.metrics (main)="),
        ({"overrides": "strategy.client=fedgraph_flwr_other.cli:main"}, "refuses strategy.client="),
    ],
)
def test_a_servers_configuration_names_nothing_here(node, monkeypatch, run_config, message):
    monkeypatch.setenv("HOME", "/home/secret")
    asked = node()
    asked.context.run_config = {"num-clients": 3, "overrides": "", "config": "", **run_config}
    reason = asked.request("describe")
    assert message in reason
    assert "root:" not in reason
    assert "secret" not in reason.replace("../secrets", "")


def test_an_operator_may_name_a_file(tmp_path):
    (tmp_path / "c.yaml").write_text("rounds: 7\n")
    assert from_run_config({"config": str(tmp_path / "c.yaml")}).rounds == 7


def test_a_fleet_under_policies_runs(run, monkeypatch, tmp_path):
    """All clients with a policy that fits, to the same parameters; with one that does not, without that client."""
    from tests.support import assert_same_arrays

    overrides = ["rounds=2", "strategy.min_clients=2", "model.dropout=0"]
    whole = run(*overrides)
    files = [Path(whole.cfg.graph) / f"client_{i:04d}.safetensors" for i in range(3)]
    (tmp_path / "policy.yaml").write_text("strategies: [fedavg]\nmin_clients: 2\nphases: [train, evaluate]\n")
    start = InlineGrid.__init__

    def found(self, *args, **kwargs):
        start(self, *args, **kwargs)
        for context, file in zip(self.contexts.values(), files, strict=True):
            context.node_config = {"graph": str(file), "policy": str(tmp_path / "policy.yaml")}

    monkeypatch.setattr(InlineGrid, "__init__", found)
    assert_same_arrays(run(*overrides).arrays, whole.arrays)
    with pytest.raises((FedGraphError, RunFailed), match="policy refuses strategy=fedprox"):
        run(*overrides, "strategy=fedprox")
