"""Collaborative acquisition of hop rows: equal to the dense powers of the whole graph, whatever the partition."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import hops
from fedgraph_flwr.methods.hops import HopExchange, Pruning, RowMessage
from fedgraph_flwr.numerics.hops import hop_weights
from fedgraph_flwr.strategies.base import GraphStrategy
from tests.methods.worlds import N, clients_of, dense_step, edges_of, partition_of


def acquire(
    graphs: list[ClientGraph], weights: np.ndarray, pruning: Pruning = hops.EXACT, columns: slice | None = None
) -> list[HopExchange]:
    """Algorithm 3 with messages handed over directly, through their wire form."""
    owner = np.empty(graphs[0].num_global_nodes, np.int64)
    for graph in graphs:
        owner[graph.node_id.numpy()] = graph.client
    clients = [HopExchange(graph, weights, pruning, owner, columns=columns) for graph in graphs]
    while True:
        if pruning.active("global"):
            spectra = [hops.spectrum(client.current) for client in clients]
            for client in clients:
                client.keep_hop(spectra)
        if clients[0].hop == clients[0].hops:
            return clients
        sent = [client.messages() for client in clients]
        for client in clients:
            inbox = {k: out[client.client].arrays() for k, out in enumerate(sent) if client.client in out}
            width = client.current.shape[1]
            client.receive({k: RowMessage.of(arrays, width) for k, arrays in inbox.items()})


def dense_of(matrix: hops.Matrix) -> np.ndarray:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def gathered(clients: list[HopExchange], combination: int = 0) -> np.ndarray:
    dense = np.zeros((N, clients[0].current.shape[1]))
    for client in clients:
        dense[client.nodes] = dense_of(client.totals[combination])
    return dense


FORMS = {"dense from the first": -1.0, "dense when well filled": 0.1, "never dense": 2.0}


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_columns_in_either_form_make_up_the_powers(monkeypatch, form):
    monkeypatch.setattr(hops, "DENSE_ABOVE", FORMS[form])
    monkeypatch.setattr(hops, "HELD", 17 * N)
    edges, weights = edges_of("directed"), hop_weights([0.5, 0.0, -0.2, 0.7], 4)
    graphs = clients_of(edges, partition_of("random", edges))
    columns = hops.blocks(N, 4)
    assert [c.stop - c.start for c in columns] == [17, 17, 17, 9]
    ends = [acquire(graphs, weights, columns=block) for block in columns]
    step = dense_step(edges)
    wanted = sum(b * np.linalg.matrix_power(step, h + 1) for h, b in enumerate([0.5, 0.0, -0.2, 0.7]))
    np.testing.assert_allclose(np.hstack([gathered(clients) for clients in ends]), wanted, atol=1e-12, rtol=0)
    for clients in zip(*ends, strict=True):
        rows = hops.joined([client.totals[0] for client in clients])
        assert form == "dense when well filled" or isinstance(rows, np.ndarray) == (form == "dense from the first")
        np.testing.assert_allclose(dense_of(rows), wanted[clients[0].nodes], atol=1e-12)
        held, (support, kept) = wanted[clients[0].nodes].any(axis=0), hops.supported([rows])
        np.testing.assert_array_equal(support, np.flatnonzero(held))
        np.testing.assert_allclose(dense_of(kept), wanted[clients[0].nodes][:, held], atol=1e-12)


def test_rows_without_their_empty_columns_lie_in_memory_as_a_file_gives_them_back():
    rows = np.arange(12.0).reshape(3, 4) * [1, 0, 1, 1]
    _, kept = hops.supported([rows])
    assert kept.shape == (3, 3)
    assert kept.flags.c_contiguous


def test_blocks_are_bounded_in_size_and_number_and_one_where_rows_are_compared():
    assert hops.blocks(2708, 20) == [slice(0, 2708)]
    columns = hops.blocks(19717, 20)
    assert [b.start for b in columns[1:]] == [b.stop for b in columns[:-1]]
    assert (columns[0].start, columns[-1].stop) == (0, 19717)
    assert max(b.stop - b.start for b in columns) * 19717 <= hops.HELD
    assert len(hops.blocks(10**6, 2)) == hops.MAX_BLOCKS
    assert len(hops.blocks(10**6, 1)) == len(hops.blocks(10**6, 9, Pruning(30))) == 1


def test_a_few_full_columns_do_not_make_the_whole_dense():
    full, empty = np.ones((5, 2)), hops.sp.csr_matrix((5, 98))
    joined = hops.joined([full, empty])
    assert hops.sp.issparse(joined)
    np.testing.assert_array_equal(joined.toarray()[:, :2], full)


@pytest.mark.parametrize("partition", ["random", "louvain", "kmeans"])
@pytest.mark.parametrize("kind", ["undirected", "directed"])
def test_collaborative_rows_equal_powers_of_the_whole_graph(kind, partition):
    edges = edges_of(kind)
    beta = [0.5, 0.0, -0.2, 0.7]
    clients = acquire(clients_of(edges, partition_of(partition, edges)), hop_weights(beta, 4))
    step = dense_step(edges)
    wanted = sum(b * np.linalg.matrix_power(step, h + 1) for h, b in enumerate(beta))
    np.testing.assert_allclose(gathered(clients), wanted, atol=1e-12, rtol=0)
    isolated = gathered(clients)[N - 1]
    assert isolated[N - 1] == pytest.approx(sum(beta))
    assert np.count_nonzero(isolated) == 1


@pytest.mark.parametrize(("beta", "total"), [("last", 1.0), ("uniform", 1.0), ([0.3, 0.3, 0.3], 0.9)])
def test_rows_sum_to_the_sum_of_beta(beta, total):
    edges = edges_of("directed")
    rows = gathered(acquire(clients_of(edges, partition_of("random", edges)), hop_weights(beta, 3)))
    np.testing.assert_allclose(rows.sum(1), total, atol=1e-12)
    assert (rows >= 0).all()


def test_learned_beta_keeps_every_power_apart():
    edges = edges_of("undirected")
    clients = acquire(clients_of(edges, partition_of("random", edges)), hop_weights("learned", 3))
    for power in (1, 2, 3):
        wanted = np.linalg.matrix_power(dense_step(edges), power)
        np.testing.assert_allclose(gathered(clients, power - 1), wanted, atol=1e-12)


@pytest.mark.parametrize("length", [1, 3, 30])
def test_the_entries_of_the_powers_are_told_from_the_clients_edges(length):
    edges = edges_of("directed")
    graphs = clients_of(edges, partition_of("random", edges))
    power = np.linalg.matrix_power(dense_step(edges), length)
    assert hops.SAMPLE >= N  # the sample is all of them
    assert hops.expected_entries(graphs, length) == pytest.approx(np.count_nonzero(power))
    assert hops.expected_entries(graphs, length, 2) <= 2 * N


def test_a_run_that_the_machine_has_no_memory_for_is_refused_before_it_starts(run, monkeypatch):
    free = 100
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free, total=free))
    monkeypatch.setattr(GraphStrategy, "start", lambda *_: pytest.fail("it started"))
    with pytest.raises(FedGraphError) as error:
        run("strategy=fedstruct", "model.structure_hops=6", sizes=(40, 40, 40))
    assert re.fullmatch(
        r"strategy=fedstruct needs about 0\.0 GB for its clients, but this machine has 0\.0 GB free: set "
        r"strategy\.prune \(30 in the paper\), or lower model\.structure_hops",
        str(error.value),
    )


def test_the_memory_told_is_what_clients_hold(monkeypatch):
    """Full rows: themselves, a block of columns twice, and what is on its way four times; else by entry."""
    edges, weights = edges_of("undirected"), hop_weights("uniform", 30)
    owner = partition_of("random", edges)
    graphs = clients_of(edges, owner)
    crossing = {(v, owner[u]) for v, u in edges.T if owner[v] != owner[u]}
    assert hops.expected_entries(graphs, 30) > 0.5 * N**2
    wanted = 4 * (N**2 + 2 * N**2 + 4 * len(crossing) * N)
    assert hops.bytes_held(graphs, weights, hops.EXACT, 4) == pytest.approx(wanted)
    handed = hops.bytes_held(graphs, weights, hops.EXACT, 4, handed_on=True)
    assert handed == pytest.approx(max(wanted, 4 * 6 * N**2))
    entries = hops.expected_entries(graphs, 30, 2)
    assert hops.bytes_held(graphs, weights, Pruning(2), 4) == pytest.approx(hops.BYTES * entries)
    monkeypatch.setattr(hops, "HELD", 20 * N)  # three blocks, which rows are made of in the end
    wanted = 4 * (2 * N**2 + 2 * N * 20 + 4 * len(crossing) * 20)
    assert hops.bytes_held(graphs, weights, hops.EXACT, 4) == pytest.approx(wanted)


def combined_rows(adjacency: sp.csr_matrix, weights: np.ndarray, pruning: Pruning = hops.EXACT) -> np.ndarray:
    """Σ_l weights[l] Â^l of a whole graph [n, n] from Ã, each power pruned as the clients prune theirs."""

    def pruned(matrix: sp.csr_matrix) -> sp.csr_matrix:
        if pruning.active("global"):
            return hops.top_globally(matrix, [hops.spectrum(matrix)], 0, pruning.keep * N)
        return hops.top_per_row(matrix, pruning.keep) if pruning.active("per_row") else matrix

    step = hops.row_normalized(adjacency)
    current = pruned(step)
    total = weights[0] * current.toarray()
    for weight in weights[1:]:
        current = pruned(step @ current)
        total += weight * current.toarray()
    return total


def test_central_rows_equal_powers():
    edges, loops = edges_of("directed"), np.arange(N)
    adjacency = hops.with_loops(edges[0], edges[1], loops, (N, N))
    rows = combined_rows(adjacency, hop_weights("last", 5)[0])
    np.testing.assert_allclose(rows, np.linalg.matrix_power(dense_step(edges), 5), atol=1e-12)


@pytest.mark.parametrize("mode", ["per_row", "per_block", "global"])
def test_pruning_to_n_keeps_everything(mode):
    edges = edges_of("undirected")
    graphs = clients_of(edges, partition_of("random", edges))
    weights = hop_weights("last", 4)
    pruned = gathered(acquire(graphs, weights, Pruning(N, mode)))
    np.testing.assert_allclose(pruned, gathered(acquire(graphs, weights)), rtol=1e-14)


@pytest.mark.parametrize("mode", ["per_row", "global"])
@pytest.mark.parametrize("partition", ["random", "louvain"])
def test_pruned_rows_equal_those_pruned_centrally(mode, partition):
    edges = edges_of("directed", seed=3)
    owner = np.sort(partition_of(partition, edges))  # ties of global pruning go by client, then row: here, by row
    clients = acquire(clients_of(edges, owner), hop_weights("uniform", 4), Pruning(4, mode))
    adjacency = hops.with_loops(edges[0], edges[1], np.arange(N), (N, N))
    wanted = combined_rows(adjacency, hop_weights("uniform", 4)[0], Pruning(4, mode))
    np.testing.assert_allclose(gathered(clients), wanted, atol=1e-12)
    entries = sum(client.current.nnz for client in clients)
    assert entries <= 4 * N
    if mode == "per_row":
        assert all((np.diff(client.current.indptr) <= 4).all() for client in clients)
        assert all((np.diff(client.current.indptr) > 0).all() for client in clients)


def test_top_per_row_keeps_the_largest_by_hand():
    row = hops.sp.csr_matrix(np.array([[0.1, 0.4, 0.2, 0.2], [0.0, 0.9, 0.0, 0.0]]))
    np.testing.assert_array_equal(hops.top_per_row(row, 2).toarray(), [[0.0, 0.4, 0.2, 0.0], [0.0, 0.9, 0.0, 0.0]])


def test_per_block_keeps_the_largest_of_each_block_sent():
    """Appendix L.2.1 by hand: of every block B_ij^k the p·n_i largest entries."""
    edges = edges_of("undirected", seed=5)
    owner = partition_of("random", edges)
    graphs = clients_of(edges, owner)
    exact = {c.client: c.messages() for c in (HopExchange(g, hop_weights("last", 2)) for g in graphs)}
    for graph in graphs:
        sent = HopExchange(graph, hop_weights("last", 2), Pruning(1, "per_block"), owner).messages()
        for peer, message in sent.items():
            whole, kept = exact[graph.client][peer].rows.toarray(), message.rows.toarray()
            for j in range(4):
                block, limit = kept[:, owner == j], int((owner == peer).sum())
                entries = np.sort(whole[:, owner == j].ravel())[::-1]
                wanted = entries[:limit][entries[:limit] > 0]
                np.testing.assert_allclose(np.sort(block[block > 0])[::-1], wanted)


def test_messages_hold_boundary_rows_only_and_none_between_strangers():
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])  # a path 0-1-2 and N - 3 isolated nodes
    owner = np.array([0, 1, 1] + [2] * (N - 3))
    clients = acquire(clients_of(edges, owner), hop_weights("last", 1))
    sent = [client.messages() for client in clients]
    assert [set(out) for out in sent] == [{1}, {0}, set()]
    assert sent[0][1].nodes.tolist() == [1]
    np.testing.assert_allclose(sent[0][1].rows.toarray()[0, :3], [0.5, 0.5, 0.0])


def test_state_survives_between_messages():
    edges = edges_of("undirected")
    graphs, weights = clients_of(edges, partition_of("random", edges)), hop_weights("uniform", 3)
    (done, *_) = acquire(graphs, weights)
    fresh = HopExchange(graphs[0], weights)
    fresh.restore(done.state())
    assert fresh.hop == 3
    np.testing.assert_array_equal(dense_of(fresh.totals[0]), dense_of(done.totals[0]))
    np.testing.assert_array_equal(dense_of(fresh.current), dense_of(done.current))


def test_wrong_messages_are_refused():
    edges = edges_of("undirected")
    graphs, weights = clients_of(edges, partition_of("random", edges)), hop_weights("last", 2)
    client, other = HopExchange(graphs[0], weights), HopExchange(graphs[1], weights)
    with pytest.raises(FedGraphError, match="expects rows"):
        client.receive({})
    good = {k: HopExchange(graphs[k], weights).messages()[0] for k in (1, 2, 3)}
    for odd in (RowMessage(other.nodes[:1], other.current[:1]), RowMessage(client.nodes[[0, 0]], np.ones((2, N)))):
        with pytest.raises(FedGraphError, match="not its own"):
            client.receive(good | {1: odd})
    narrow = {"nodes": client.nodes[:2].astype(np.int32), "dense": np.ones((1, N))}
    for arrays in (narrow, narrow | {"values": np.ones(3)}, {"nodes": client.nodes[:2]}):
        with pytest.raises(
            FedGraphError,
            match="the message of another client does not hold 2 rows of a matrix, got arrays",
        ):
            RowMessage.of(arrays, N)


def test_limits_and_options_are_checked():
    edges = edges_of("undirected")
    graph = clients_of(edges, partition_of("random", edges))[0]
    with pytest.raises(FedGraphError, match=r"more than 3: set strategy\.prune"):
        HopExchange(graph, hop_weights("last", 2), max_entries=3)
    with pytest.raises(FedGraphError, match="3 hops"):
        hop_weights([0.5, 0.5], 3)
    with pytest.raises(FedGraphError, match="'first'"):
        hop_weights("first", 3)
