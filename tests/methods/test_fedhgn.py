"""FedHGN: networks against dense derivations, the alignment loss, the rounds, and what leaves a client."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.fedhgn import FedHGNClient
from fedgraph_flwr.clients.state import restore_state, state_of
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.methods.coefficients import alignment, shuffled_pool
from fedgraph_flwr.models.hetero import TypeWeight
from fedgraph_flwr.models.rgcn import RGCN
from fedgraph_flwr.models.simple_hgn import SimpleHGN
from fedgraph_flwr.partition import store
from fedgraph_flwr.partition.hetero import share_schema
from fedgraph_flwr.wire.messages import weighted_mean
from tests.support import assert_same_arrays, recorded_messages
from tests.typed_graphs import TYPES, B, C, H, built, flat_edges, typed_client


def means(graph):
    """D_r^{-1} A_r [N, N] of every edge type the slow way, parallel edges counted."""
    matrices = []
    start = dict(zip(graph.counts, graph.offsets(), strict=False))
    for (a, _, b), index in graph.edges.items():
        matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
        for s, t in index.t().tolist():
            matrix[start[b] + t, start[a] + s] += 1
        matrices.append(matrix / matrix.sum(1, keepdim=True).clamp(min=1))
    return matrices


def rows_of(graph):
    """Row of the weights that each edge type reads: its own, or with names for types that of its name."""
    names = [name for _, name, _ in graph.edges]
    first = sorted(set(names), key=names.index)
    return [first.index(name) if graph.by_name else r for r, name in enumerate(names)]


def weight_of(model, name):
    """θ of every type by a sum over bases, Eq. (2)."""
    if not model.num_bases:
        return model.free[name]
    beta, v = model.coefficients[name], model.bases[name]
    return torch.stack([sum(beta[t, i] * v[i] for i in range(len(v))) for t in range(len(beta))])


def node_types(graph):
    return torch.repeat_interleave(torch.arange(len(graph.counts)), torch.tensor(list(graph.counts.values())))


def initial(model, graph):
    """Initial states [N, H] by node."""
    h = torch.zeros(graph.num_nodes, H, dtype=torch.float64)
    if model.type_embedding != "decoupled":
        h = h + model.entities["table"]
    if model.type_embedding != "entity":
        h = h + weight_of(model, "state")[node_types(graph)]
    for i, kind in enumerate(graph.counts):
        if kind in graph.x:
            rows = (node_types(graph) == i).nonzero().view(-1)
            projection = (model.entities if model.num_bases else model.free)[f"projection_{i}"]
            h = h.index_copy(0, rows, graph.x[kind].double() @ projection)
    return h


def edge_states(model, graph):
    """ε of every edge by type, [E_r, H] each, one feature after the other; 0 where a type has no features."""
    epsilons = []
    for r, (edge, index) in enumerate(graph.edges.items()):
        states = torch.zeros(index.size(1), H, dtype=torch.float64)
        for d in range(graph.edge_attr[edge].size(1) if edge in graph.edge_attr else 0):
            weight = (model.entities if model.num_bases else model.free)[f"projection_{len(graph.counts) + r}"][d]
            states = states + torch.outer(graph.edge_attr[edge][:, d].double(), weight)
        epsilons.append(states)
    return epsilons


def mean_states(graph, states):
    """Mean of edge states [E_r, H] over the edges of each type into each node: [N, H] by type, edge by edge."""
    averages = []
    start = dict(zip(graph.counts, graph.offsets(), strict=False))
    for ((_, _, b), index), rows in zip(graph.edges.items(), states, strict=True):
        into = [[] for _ in range(graph.num_nodes)]
        for t, state in zip(index[1].tolist(), rows, strict=True):
            into[start[b] + t].append(state)
        averages.append(torch.stack([sum(s) / len(s) if s else torch.zeros(H, dtype=torch.float64) for s in into]))
    return averages


def targets(graph):
    return (node_types(graph) == list(graph.counts).index(graph.target)).nonzero().view(-1)


def dense_rgcn(model, graph):
    """Every layer on all nodes, one relation after the other."""
    h, kinds = initial(model, graph), node_types(graph)
    of_edges = mean_states(graph, edge_states(model, graph))
    for layer in range(model.num_layers):
        out = torch.zeros_like(h)
        for r, mean in enumerate(means(graph)):
            message = mean @ h + of_edges[r]
            out = out + (message @ weight_of(model, f"edge_{layer}")[rows_of(graph)[r]] if layer else message)
        if layer and model.profile == "paper":
            weights = weight_of(model, f"node_{layer}")[kinds]
            out = out + torch.einsum("nh,nhk->nk", h, weights)
        if model.self_loop:
            out = out + h @ model.common.loop[layer]
        h = out + model.common.bias[layer]
        h = h if layer == model.num_layers - 1 else h.relu()
    return model.common.decoder(h.relu())[targets(graph)]


def dense_simple_hgn(model, graph):
    """Every node's softmax over its own list of in-edges, head by head."""
    h = initial(model, graph)
    if model.profile == "paper":
        h = torch.einsum("nh,nhk->nk", h, weight_of(model, "node_0")[node_types(graph)])
    source, target, relation = flat_edges(graph)
    states = torch.cat(edge_states(model, graph))
    for i, layer in enumerate(model.common.attention):
        heads, out = layer.to_source.shape
        r = weight_of(model, f"edge_{i}")
        rows = []
        for v in range(graph.num_nodes):
            into = np.flatnonzero(target == v)
            parts = []
            for k in range(heads):
                w = layer.weight[:, k * out : (k + 1) * out]
                we = layer.edge[:, k * H : (k + 1) * H]
                rest = h[v] @ layer.residual[:, k * out : (k + 1) * out]
                if len(into):
                    score = torch.stack(
                        [
                            (h[source[e]] @ w) @ layer.to_source[k]
                            + (h[v] @ w) @ layer.to_target[k]
                            + ((r[rows_of(graph)[relation[e]]] + states[e]) @ we) @ layer.to_edge[k]
                            for e in into
                        ]
                    )
                    alpha = F.leaky_relu(score, model.slope).softmax(0)
                    rest = rest + sum(a * ((h[source[e]] + states[e]) @ w) for a, e in zip(alpha, into, strict=True))
                parts.append(rest)
            last = i == model.num_layers - 1
            rows.append(torch.stack(parts).mean(0) if last else F.elu(torch.cat(parts)))
        h = torch.stack(rows)
    return (h / h.norm(dim=1, keepdim=True))[targets(graph)]


LINKS = typed_client().without_reverse()
LINKS.edges = {(a, "cites" if name == "cites" else "links", b): index for (a, name, b), index in LINKS.edges.items()}
LINKS = replace(LINKS, by_name=True).with_reverse()  # six edge types of four names
NUMBERED = replace(LINKS, edge_attr={r: torch.randn(14, d) for r, d in zip(LINKS.edges, (2, 3), strict=False)})

VARIANTS = [
    {},
    {"bases": 0},
    {"profile": "paper"},
    {"profile": "paper", "bases": 0, "type_embedding": "both"},
    {"type_embedding": "decoupled", "layers": 2},
    {"graph": typed_client(1, features=True)},
    {"graph": typed_client(1, features=True), "bases": 0, "profile": "paper"},
    {"graph": LINKS},
    {"graph": LINKS, "bases": 0},
    {"graph": typed_client(1, of_edges=True)},
    {"graph": typed_client(1, features=True, of_edges=True), "bases": 0, "profile": "paper"},
    {"graph": NUMBERED, "bases": 0},
]


@pytest.mark.parametrize("variant", [*VARIANTS, {"self_loop": True, "layers": 2}, {"bases": 20}])
def test_rgcn_and_its_gradients_are_those_of_a_relation_loop(variant):
    model, inputs, graph = built(**variant)
    _same_with_gradients(model, model(inputs), dense_rgcn(model, graph))


@pytest.mark.parametrize("variant", VARIANTS)
def test_simple_hgn_and_its_gradients_are_those_of_a_node_loop(variant):
    model, inputs, graph = built(SimpleHGN, heads=2, **variant)
    _same_with_gradients(model, model(inputs), dense_simple_hgn(model, graph))


@pytest.mark.parametrize("bases", [0, B])
@pytest.mark.parametrize("cls", [RGCN, SimpleHGN])
def test_edge_features_of_zero_give_the_model_without_any(cls, bases):
    """Bit for bit, with the parameters of the model without; other features give other logits and reach their projections."""
    kwargs = {"bases": bases} | ({"heads": 2} if cls is SimpleHGN else {})
    without, inputs, plain = built(cls, typed_client(1), **kwargs)
    given = typed_client(1, of_edges=True)
    assert given.num_features == [*plain.num_features, *([2, 0, 3] * 2)]
    zero = replace(given, edge_attr={r: torch.zeros_like(rows) for r, rows in given.edge_attr.items()})
    logits = []
    for graph in (zero, given):
        model, model_inputs, _ = built(cls, graph, **kwargs)
        missing, unexpected = model.load_state_dict(without.state_dict(), strict=False)
        logits.append(model(model_inputs))
        assert not unexpected
        assert len(missing) == 4  # one projection for each type with features and its reverse
    assert torch.equal(logits[0], without(inputs))
    assert not torch.allclose(logits[1], logits[0])
    logits[1].square().sum().backward() if cls is RGCN else logits[1][:, 0].sum().backward()
    assert all(dict(model.named_parameters())[name].grad.abs().max() > 1e-6 for name in missing)


def _same_with_gradients(model, ours, oracle):
    torch.testing.assert_close(ours, oracle)
    probe = torch.randn_like(oracle)
    grads = []
    for logits in (ours, oracle):
        model.zero_grad()
        (logits * probe).sum().backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    zero = {n for n in grads[1] if not grads[1][n].any()}  # the loop also visits layers that nothing depends on
    assert grads[0].keys() - zero == grads[1].keys() - zero
    for name in grads[1].keys() - zero:
        torch.testing.assert_close(grads[0][name], grads[1][name], msg=name)


@pytest.mark.parametrize(("n", "types"), [(1, 2), (50, 2), (50, 30), (1, 30)])
def test_relation_wise_and_basis_wise_products_agree(n, types):
    """Both orders of the sum, whichever is chosen for the current sizes: Σ_t x_t Σ_i β_ti v_i."""
    x, beta = torch.randn(n, types, H, dtype=torch.float64), torch.randn(40, B, dtype=torch.float64)
    v, kinds = torch.randn(B, H, 5, dtype=torch.float64), torch.randperm(40)[:types]
    expected = torch.einsum("nth,tb,bhk->nk", x, beta[kinds], v)
    torch.testing.assert_close(TypeWeight(v, beta).times(x, kinds), expected)
    free = torch.einsum("tb,bhk->thk", beta, v)
    torch.testing.assert_close(TypeWeight(free, None).times(x, kinds), expected)
    torch.testing.assert_close(TypeWeight(v, beta).all(), free)


def test_one_hot_coefficients_give_free_weights():
    """B = R and β = I: W_r = V_r, the same logits, and dL/dV_r = dL/dW_r (I1)."""
    graph = typed_client()
    count = len(graph.edges)
    decoupled, inputs, _ = built(graph=graph, bases=count)
    free, free_inputs, _ = built(graph=graph, bases=0)
    with torch.no_grad():
        for name in decoupled.coefficients:
            decoupled.coefficients[name].copy_(torch.eye(count))
            free.free[name].copy_(decoupled.bases[name])
    free.common.load_state_dict(decoupled.common.state_dict())
    free.entities.load_state_dict(decoupled.entities.state_dict())
    torch.testing.assert_close(decoupled(inputs), free(free_inputs))
    probe = torch.randn_like(decoupled(inputs))
    for model, x in ((decoupled, inputs), (free, free_inputs)):
        (model(x) * probe).sum().backward()
    for name in decoupled.bases:
        torch.testing.assert_close(decoupled.bases[name].grad, free.free[name].grad)


@pytest.mark.parametrize("kind", ["permutation", "invertible"])
def test_a_change_of_bases_changes_nothing(kind):
    """(V, β) → (T V, β T^-1) leaves W, hence the logits (I3, D9)."""
    model, inputs, _ = built(bases=5)
    before = model(inputs)
    for name, v in model.bases.items():
        t = torch.eye(5)[torch.randperm(5)] if kind == "permutation" else torch.randn(5, 5) + 3 * torch.eye(5)
        t = t.double()
        with torch.no_grad():
            v.copy_(torch.tensordot(t, v, dims=1))
            model.coefficients[name].copy_(model.coefficients[name] @ torch.linalg.inv(t))
    torch.testing.assert_close(model(inputs), before)


def test_clients_draw_alike_only_what_is_shared():
    one, two = (built(graph=typed_client(client))[0] for client in (0, 2))  # both with six edge types
    torch.testing.assert_close(one.bases["edge_1"], two.bases["edge_1"])
    torch.testing.assert_close(one.common.decoder.weight, two.common.decoder.weight)
    assert one.coefficients["edge_1"].shape == two.coefficients["edge_1"].shape
    assert not torch.isin(one.coefficients["edge_1"].detach(), two.coefficients["edge_1"].detach()).any()
    assert not torch.isin(one.entities["table"].detach(), two.entities["table"].detach()).any()
    assert one.coefficients["edge_1"].abs().max() <= (2 * 6 / (1 + B)) ** 0.5
    nobody = RGCN([0, 0], C, hidden=H, layers=3, dropout=0.0, bases=B)
    assert {n: t.shape for n, t in nobody.shared(["bases", "common"]).items()} == {
        n: t.shape for n, t in one.shared(["bases", "common"]).items()
    }
    assert not one.shared(["entities"])


def test_some_targets_give_the_rows_of_all():
    model, inputs, _ = built()
    some = np.array([1, 4, 5])
    part = model.inputs_for(some)
    torch.testing.assert_close(model(part), model(inputs)[some])
    assert part.nodes.numel() <= inputs.nodes.numel()


# --- alignment --------------------------------------------------------------------------------------------------------


def test_alignment_by_hand():
    vectors = torch.tensor([[0.0, 0.0], [1.0, 1.0], [4.0, 4.0]], requires_grad=True)
    pool = torch.tensor([[0.0, 1.0], [3.0, 3.0]])
    loss = alignment(vectors, pool)  # 1 to the first, 1 to the first (8 to the second), 2 to the second
    assert float(loss.detach()) == pytest.approx(1 + 1 + 2)
    loss.backward()
    nearest = torch.tensor([[0.0, 1.0], [0.0, 1.0], [3.0, 3.0]])
    torch.testing.assert_close(vectors.grad, 2 * (vectors.detach() - nearest))


def test_alignment_is_zero_exactly_where_all_are_in_the_pool():
    """... whatever its order; numbers where a product of matrices would lose the digits that tell them apart (I4, I5)."""
    embeddings = (torch.arange(30.0 * B).view(30, B) * 1e-3 + 100).requires_grad_()
    pool = torch.cat([embeddings.detach(), embeddings.detach() + 5e-4])
    order = torch.randperm(60)
    for vectors in (pool, pool[order]):
        loss = alignment(embeddings, vectors)
        (gradient,) = torch.autograd.grad(loss, embeddings)
        assert float(loss.detach()) == 0
        assert not gradient.any()
    away = embeddings.detach() + 7.0
    gradients = []
    for vectors in (away, away[torch.randperm(30)]):
        (gradient,) = torch.autograd.grad(alignment(embeddings, vectors), embeddings)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)
    assert float(alignment(embeddings, away).detach()) > 0
    assert float(alignment(embeddings, torch.zeros(0, B)).detach()) == 0


def test_pools_hold_the_others_vectors_and_no_order():
    known = {
        c: {"edge_1": np.arange(c * 100, c * 100 + 2 * (c + 1) * B, dtype=np.float32).reshape(-1, B)} for c in range(4)
    }
    pools = [shuffled_pool(known, 1, "edge_1", np.random.default_rng(seed)) for seed in (0, 1)]
    others = np.concatenate([known[c]["edge_1"] for c in (0, 2, 3)])
    for pool in pools:
        assert sorted(map(tuple, pool)) == sorted(map(tuple, others))
        assert not np.array_equal(pool, others)
    assert not np.array_equal(*pools)


# --- rounds -----------------------------------------------------------------------------------------------------------

WORDS = ["strategy=fedhgn", "model.bases=3", "train.optimizer=sgd", "train.lr=0.1", "train.weight_decay=0"]


@pytest.fixture
def typed_files(tmp_path):
    """``typed_files()`` writes three clients' files, of private schemas by default."""

    def write(shared=False, count=3):
        graphs = [typed_client(client) for client in range(count)]
        for client, graph in enumerate(share_schema(graphs) if shared else graphs):
            graph.num_clients = count
            graph.save(tmp_path / f"typed{shared}{count}" / f"client_{client:04d}.safetensors")
        return f"graph={tmp_path / f'typed{shared}{count}'}"

    return write


def words_of(content):
    """All text in a message but its Flower framing."""
    words = []
    for key, record in content.items():
        words.append(key)
        for name, value in record.items():
            words += [name, str(value) if isinstance(value, str | bytes) else ""]
    return " ".join(words)


def arrays_of(content):
    return {(group, n): a.numpy() for group, record in content.array_records.items() for n, a in record.items()}


def test_messages_name_no_type_and_hold_no_entity(run, typed_files, monkeypatch):
    """Every message of a run; and the floats of a training reply are P_c + T_k B, with N_k and the loss as numbers (I6)."""
    with recorded_messages(monkeypatch) as seen:
        run(*WORDS, typed_files(), "model.profile=paper", "model.type_embedding=both", "model.layers=2")
    names = {kind for types in TYPES.values() for a, r, b in types for kind in (a, r, b)}
    for _, _, content in seen:
        assert not re.search("|".join(names | {"rev_", "entities"}), words_of(content))
        for (group, name), array in arrays_of(content).items():
            assert group in ("model", "coefficients", "pool")
            if group == "model":
                assert name.startswith(("bases.", "common."))
            else:
                assert name in ("edge_1", "node_1", "state")
                assert array.shape[1] == 3
    trained = [(n, c) for way, n, c in seen if way == "up" and ("model", "common.decoder.bias") in arrays_of(c)]
    assert len(trained) == 9
    h, bases = 8, 3
    common = 2 * bases * h * h + bases * h + 2 * h + h * C + C  # V of edge_1 and node_1, q of state, biases, decoder
    for node, content in trained:
        graph = typed_client(node - 1)
        coefficients = bases * (len(graph.edges) + 2 * len(graph.counts))
        assert sum(a.size for a in arrays_of(content).values()) == common + coefficients
        description = content.metric_records["metrics"]
        assert set(description) - {"client", "num_train", "train-loss"} <= {
            k for k in description if k.startswith(("val-", "test-"))
        }
        assert description["num_train"] == 3
    described = [c.metric_records["metrics"] for way, _, c in seen if way == "up" and not c.array_records]
    assert not any("num_features" in description for description in described)


def test_pools_travel_as_sent_shuffled_for_each_receiver_and_round(run, typed_files, monkeypatch):
    with recorded_messages(monkeypatch) as seen:
        run(*WORDS, typed_files(), "rounds=3")
    sent, rounds, orders = {}, 0, set()
    pools = []
    for way, node, content in seen:
        arrays = arrays_of(content)
        if way == "down" and ("pool", "edge_1") in arrays:
            pools.append((node, arrays["pool", "edge_1"], dict(sent)))
        if way == "up" and ("coefficients", "edge_1") in arrays:
            sent = {**sent, node: arrays["coefficients", "edge_1"]}
    assert len(pools) == 9
    for start in range(0, 9, 3):  # messages of a round leave before its replies come
        known = pools[start][2]
        for node, pool, _ in pools[start : start + 3]:
            others = np.concatenate([known[other] for other in sorted(known) if other != node])
            assert sorted(map(tuple, pool)) == sorted(map(tuple, others))
            place = tuple(int(np.flatnonzero((others == row).all(1))[0]) for row in pool)
            orders.add(place)
            rounds += place == tuple(range(len(pool)))
    assert rounds == 0
    assert len(orders) == 9


@pytest.mark.parametrize(("first", "rows"), [("empty", 0), ("zeros", 1), ("initial", 12)])
def test_first_pool(run, typed_files, monkeypatch, first, rows):
    """The pool of round 1: nothing, a zero vector, or the others' initial coefficients (D2)."""
    with recorded_messages(monkeypatch) as seen:
        run(*WORDS, typed_files(), "rounds=1", f"strategy.first_pool={first}")
    pools = [arrays_of(c).get(("pool", "edge_1")) for way, _, c in seen if way == "down" and "model" in c.array_records]
    assert [0 if pool is None else len(pool) for pool in pools[:3]] == [rows] * 3
    assert first != "zeros" or not any(pool.any() for pool in pools[:3])


def test_zero_placeholders_pull_once_a_layer():
    """β ← β − η λ · layers · 2 β where no task gradient reaches β: the authors' first round (D2)."""
    overrides = [*WORDS, "model.layers=2", "strategy.first_pool=zeros", "train.local_steps=1", "dtype=float64"]
    client = client_of(*overrides)
    client.server_round = 1
    before = client.model.coefficients["edge_1"].detach().clone()
    client.receive({"pool": {"edge_1": np.zeros((1, 3))}})
    client.train()
    still = [i for i, (_, _, b) in enumerate(client.graph.edges) if b != "person"]  # relations into other types
    torch.testing.assert_close(
        client.model.coefficients["edge_1"].detach()[still], before[still] * (1 - 0.1 * 0.5 * 2 * 2)
    )


def client_of(*overrides, client=0, cls=FedHGNClient, graph=None):
    cfg = compose([*overrides, "model.hidden=8", "dataset=aifb"])
    return cls(cfg, graph or typed_client(client), "cpu")


def test_clients_not_sampled_keep_their_coefficients(run, typed_files, monkeypatch):
    """Their last vectors stay in the others' pools (line 9)."""
    with recorded_messages(monkeypatch) as seen:
        run(*WORDS, typed_files(), "rounds=6", "strategy.fraction=0.34", "seed=1")
    last, absent = {}, 0
    for way, node, content in seen:
        arrays = arrays_of(content)
        if way == "up" and ("coefficients", "edge_1") in arrays:
            last[node] = arrays["coefficients", "edge_1"]
        if way == "down" and ("pool", "edge_1") in arrays:
            others = np.concatenate([last[n] for n in sorted(last) if n != node])
            assert sorted(map(tuple, arrays["pool", "edge_1"])) == sorted(map(tuple, others))
            absent += 1
    assert absent == 6


def test_the_server_averages_by_training_nodes_and_no_coefficient(run, typed_files, monkeypatch):
    with recorded_messages(monkeypatch) as seen:
        finished = run(*WORDS, typed_files(), "rounds=1")
    replies = [c for way, _, c in seen if way == "up" and "model" in c.array_records]
    groups = [{n: a.numpy() for n, a in c.array_records["model"].items()} for c in replies]
    assert_same_arrays(
        finished.arrays, weighted_mean(groups, [c.metric_records["metrics"]["num_train"] for c in replies])
    )
    assert not any(name.startswith("coefficients") for name in finished.arrays)


def test_one_hot_round_is_a_fedavg_round_on_free_weights():
    """I2: B = R, β = I and fixed, one schema, λ = 0: the averages of V and of W are equal after a round."""
    graphs = [typed_client(0, people=n) for n in (9, 12)]
    count = len(graphs[0].edges)
    overrides = [*WORDS, "train.local_steps=2", "dtype=float64", f"model.bases={count}", "strategy.align=0"]
    averages = []
    for cls, bases in ((FedHGNClient, count), (GraphClient, 0)):
        replies, weights = [], []
        for number, graph in enumerate(graphs):
            graph.client = number
            words = (
                overrides
                if cls is FedHGNClient
                else ["strategy=fedavg", "model=rgcn", *overrides[2:5], "dtype=float64"]
            )
            client = client_of(*words, f"model.bases={bases}", "train.local_steps=2", cls=cls, graph=graph)
            generator = torch.Generator().manual_seed(5)
            with torch.no_grad():
                weight = torch.randn(count, 8, 8, generator=generator, dtype=torch.float64)
                (client.model.bases if bases else client.model.free)["edge_1"].copy_(weight)
                for parameter in client.model.common.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            if bases:
                client.model.coefficients["edge_1"] = torch.nn.Parameter(torch.eye(count, dtype=torch.float64), False)
            client.train()
            parameters = dict(client.model.common.named_parameters())
            parameters["W"] = client.model.bases["edge_1"] if bases else client.model.free["edge_1"]
            replies.append({n: t.detach().numpy() for n, t in parameters.items()})
            weights.append(client.num_train)
        averages.append(weighted_mean(replies, weights))
    assert weights == [3, 4]
    for name in averages[0]:
        np.testing.assert_allclose(averages[0][name], averages[1][name], rtol=1e-9, err_msg=name)


def test_alone_and_without_alignment_it_is_local_training(typed_files, run):
    """I7: K = 1, λ = 0: the run equals a loop over SGD steps on the same network."""
    finished = run(*WORDS, typed_files(count=1), "num_clients=1", "strategy.align=0", "dtype=float64", "seed=4")
    cfg = finished.cfg
    client = FedHGNClient(cfg, typed_client(0), "cpu")
    model, graph = client.model, client.graph
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(cfg.rounds * cfg.train.local_steps):
        optimizer.zero_grad()
        F.cross_entropy(model(client.inputs)[graph.train_mask], graph.y[graph.train_mask]).backward()
        optimizer.step()
    for name, array in finished.arrays.items():
        np.testing.assert_allclose(array, model.state_dict()[name].numpy(), rtol=1e-7, atol=1e-9, err_msg=name)


def test_weighted_accuracy_is_that_of_all_predictions_together():
    """I8, for two clients of unequal size."""
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(n, C, generator=generator) for n in (5, 17)]
    y = [torch.randint(C, (n,), generator=generator) for n in (5, 17)]
    everyone = [torch.ones(n, dtype=torch.bool) for n in (5, 17)]
    scores = {}
    for a, b, mask in zip(logits, y, everyone, strict=True):
        for key, value in metrics.Scored(b, {"test": mask}).score(a, ("accuracy",)).items():
            scores.setdefault(key, []).extend(value)
    together = float((torch.cat(logits).argmax(1) == torch.cat(y)).double().mean())
    assert metrics.averages(scores)["test_accuracy_by_test_nodes"] == pytest.approx(together)
    assert metrics.averages(scores)["test_accuracy"] != pytest.approx(together)


def test_a_client_goes_on_from_its_private_state():
    """Embeddings and coefficients survive; bases and common weights come with the next message."""
    one, two = client_of(*WORDS), client_of(*WORDS)
    one.train()
    restore_state(two, state_of(one))
    two.set_parameters(one.get_parameters({}))
    torch.testing.assert_close(one.predict(), two.predict())
    assert {name.split(".")[0] for name in state_of(one)["model"]} == {"entities", "coefficients"}


def test_an_interrupted_run_goes_on(run, typed_files, tmp_path):
    overrides = [*WORDS, typed_files(), "strategy.fraction=0.67", "checkpoint_every=1"]
    whole = run(*overrides, "rounds=4")
    half = run(*overrides, "rounds=2")
    resumed = run(*overrides, "rounds=4", f"resume={half.out}", f"out={half.out}")
    assert_same_arrays(resumed.arrays, whole.arrays)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["rgcn", "simple_hgn"])
@pytest.mark.parametrize("profile", ["code", "paper"])
def test_both_networks_learn_in_both_profiles(run, typed_files, model, profile):
    overrides = [*WORDS, f"model={model}", f"model.profile={profile}", "model.hidden=8", "rounds=10", typed_files()]
    losses = [r["train"]["train_loss"] for r in run(*overrides, "strategy.align=0").rounds]
    assert losses[-1] < losses[0]


# --- baselines and ablations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "local"])
def test_baselines_share_the_schema_and_keep_entities(run, typed_files, monkeypatch, strategy):
    with recorded_messages(monkeypatch) as seen:
        finished = run(f"strategy={strategy}", "model=rgcn", "model.bases=0", *WORDS[2:], typed_files(shared=True))
    shapes = {name: a.shape for name, a in finished.arrays.items()}
    edge_types = len(share_schema([typed_client(c) for c in range(3)])[0].edges)
    assert shapes.get("free.edge_1") == (None if strategy == "local" else (edge_types, 8, 8))
    for _, _, content in seen:
        assert not any("entities" in name for _, name in arrays_of(content))


def test_weights_of_types_a_client_lacks_stay_as_they_came():
    graph = share_schema([typed_client(c) for c in range(3)])[0]
    client = client_of("strategy=fedavg", "model=rgcn", "model.bases=0", *WORDS[2:], cls=GraphClient, graph=graph)
    before = client.model.free["edge_1"].detach().clone()
    client.train()
    lacking = [i for i, index in enumerate(graph.edges.values()) if not index.size(1)]
    assert lacking
    assert torch.equal(client.model.free["edge_1"].detach()[lacking], before[lacking])
    assert not torch.equal(client.model.free["edge_1"].detach(), before)


def test_schemas_that_differ_cannot_be_averaged(run, typed_files):
    with pytest.raises(FedGraphError, match="client 1 has num_features="):
        run("strategy=fedavg", "model=rgcn", typed_files())


@pytest.mark.parametrize("align", [0.0, 0.5])
@pytest.mark.parametrize("shared", ["[coefficients,common]", "[bases,coefficients,common]"])
def test_ablations_average_coefficients_over_those_that_hold_the_type(run, typed_files, monkeypatch, shared, align):
    overrides = [*WORDS, typed_files(shared=True), "strategy.private_schema=false", f"strategy.shared={shared}"]
    with recorded_messages(monkeypatch) as seen:
        finished = run(*overrides, f"strategy.align={align}", "rounds=1")
    assert ("bases.edge_1" in finished.arrays) == ("bases" in shared)
    graphs = share_schema([typed_client(c) for c in range(3)])
    replies = {n - 1: arrays_of(c) for way, n, c in seen if way == "up" and "model" in c.array_records}
    for row, kind in enumerate(graphs[0].edges):
        holders = [c for c in range(3) if graphs[c].edges[kind].size(1)]
        rows = [replies[c]["model", "coefficients.edge_1"][row] for c in holders]
        np.testing.assert_allclose(finished.arrays["coefficients.edge_1"][row], np.mean(rows, axis=0), rtol=1e-6)
    sent = {c: len(replies[c]["coefficients", "edge_1"]) for c in range(3)}
    assert sent == {c: sum(index.size(1) > 0 for index in graphs[c].edges.values()) for c in range(3)}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.bases=0"], "needs a model with bases"),
        (["strategy.shared=[bases,coefficients,common]"], "set strategy.private_schema=false"),
        (["model.profile=both"], r"model\.profile 'both' is unknown"),
        (["model=simple_hgn", "model.heads=3"], r"model\.heads must divide model\.hidden=8, got 3"),
        (["strategy.first_pool=none"], "first_pool"),
        (["model=gcn"], "needs a model with bases"),
        (["strategy=fedavg", "model=gcn"], "model=gcn needs a graph with one node type"),
    ],
)
def test_wrong_input_is_one_sentence(run, typed_files, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        run("strategy=fedhgn", *overrides, typed_files())


def test_graphs_of_one_type_are_refused(run):
    with pytest.raises(FedGraphError, match="needs a heterogeneous graph, got one type of nodes"):
        run("strategy=fedhgn")
    with pytest.raises(FedGraphError, match="model=rgcn needs a graph with typed nodes and edges"):
        run("strategy=fedavg", "model=rgcn")


def test_central_of_the_published_graph(run, shared_data):
    """The pooled graph is one client, scored on its 36 test nodes."""
    shared_data("FedHGN")
    finished = run("protocol=fedhgn", "dataset=aifb-published", "strategy=central", "rounds=2", "evaluation.patience=0")
    assert finished.rounds[-1]["clients"]["test-count"] == [36.0]


def test_the_published_graphs_have_78_names_of_104_edge_types(shared_data):
    shared_data("FedHGN")
    values = {}
    for how in ("triple", "name"):
        cfg = compose(["protocol=fedhgn", "strategy=fedavg", f"dataset.edge_types={how}"])
        values[how] = [store.load_client(cfg, client).num_features[1] for client in range(3)]
    assert values == {"triple": [104] * 3, "name": [78] * 3}
