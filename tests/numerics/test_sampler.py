"""The neighbour sampler: which neighbours, which ids, whose streams."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import chi2

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics import draws, sampler
from fedgraph_flwr.numerics.sampler import NeighbourSampler, RowBuffer

BACKENDS = ["numpy", pytest.param("numba", marks=pytest.mark.skipif(not sampler.has_numba(), reason="needs numba"))]


def csr(degrees, nodes, seed=0, dtype=np.int32):
    """In-neighbours without repeats, of these degrees."""
    random = np.random.default_rng(seed)
    lists = [random.choice(nodes, size, replace=False) for size in degrees]
    return np.concatenate([[0], np.cumsum(degrees)]), np.concatenate([*lists, np.empty(0)]).astype(dtype)


def mixed(nodes=300, most=40):
    """Degrees from 0 up."""
    return csr(np.random.default_rng(1).integers(0, most, nodes), nodes)


def equal(one, other):
    assert one.ends == other.ends
    np.testing.assert_array_equal(one.nodes, other.nodes)
    for hop, (mine, theirs) in enumerate(zip(one.hops, other.hops, strict=True)):
        for name, array in mine._asdict().items():
            np.testing.assert_array_equal(array, getattr(theirs, name), err_msg=f"{name} of hop {hop}")


@pytest.mark.parametrize("stable", [False, True])
def test_streams_are_splitmix64(stable):
    """The draws of one row, in Python's whole numbers."""
    word = 2**64 - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & word
        return z ^ (z >> 31)

    indptr, indices = csr([20], 100)
    indptr, indices = np.append(indptr, [20] * 99), indices
    state, chosen = mix(987654321 ^ mix(0)), []
    for index in range(5):
        last = 15 + index
        draw = (mix((state + (index + 1) * 0x9E3779B97F4A7C15) & word) >> 32) * (last + 1) >> 32
        chosen.append(last if draw in chosen else draw)
    if stable:
        chosen = sorted(range(20), key=lambda place: mix(state ^ mix(int(indices[place]))))[:5]
    block = NeighbourSampler(indptr, indices, [5], stable=stable, backend="numpy").sample(np.array([0]), 987654321)
    assert block.hops[0].position.tolist() == chosen
    assert block.nodes[1:].tolist() == indices[chosen].tolist()


@pytest.mark.slow
@pytest.mark.skipif(not sampler.has_numba(), reason="needs numba")
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_numba_and_numpy_draw_the_same(stable, dtype):
    indptr, indices = mixed()
    made = [
        NeighbourSampler(indptr, indices.astype(dtype), [4, -1, 3], stable=stable, backend=b)
        for b in ("numpy", "numba")
    ]
    for key in (0, 1, 2**63 - 1):
        seeds = np.random.default_rng(key).permutation(300)[:20]
        equal(*[neighbour_sampler.sample(seeds, key) for neighbour_sampler in made])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stable", [False, True])
def test_rows_are_neighbours_without_repeats(backend, stable):
    indptr, indices = mixed()
    seeds = np.array([7, 3, 250])
    block = NeighbourSampler(indptr, indices, [6, 4], stable=stable, backend=backend).sample(seeds, 5)
    assert block.nodes[:3].tolist() == [7, 3, 250]
    assert len(set(block.nodes.tolist())) == len(block.nodes) == block.ends[-1]
    assert [len(hop.degree) for hop in block.hops] == list(block.ends[:2])
    for hop, fanout in zip(block.hops, (6, 4), strict=True):
        np.testing.assert_array_equal(block.nodes[hop.col], indices[hop.position])
        for row, node in enumerate(block.nodes[: len(hop.degree)]):
            entries = hop.position[hop.pointer[row] : hop.pointer[row + 1]]
            degree = indptr[node + 1] - indptr[node]
            assert hop.degree[row] == degree
            assert len(entries) == len(set(entries.tolist())) == min(degree, fanout)
            assert (indptr[node] <= entries).all()
            assert (entries < indptr[node + 1]).all()
    cols = np.concatenate([hop.col for hop in block.hops])
    firsts = [int(np.argmax(cols == local)) for local in range(3, len(block.nodes))]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_degrees_at_the_fanout(backend):
    """No neighbour and d = f take what there is, in the order of the file; d = f + 1 leaves one out; a loop is an edge."""
    indptr, indices = csr([5, 6, 0, 1, 0, 0, 0], 7)
    indices[-1] = 3
    block = NeighbourSampler(indptr, indices, [5], backend=backend).sample(np.array([0, 1, 2, 3]), 1)
    (hop,) = block.hops
    assert np.diff(hop.pointer).tolist() == [5, 5, 0, 1]
    assert hop.position[:5].tolist() == [0, 1, 2, 3, 4]
    assert hop.col[-1] == 3
    assert hop.rows.tolist() == [0] * 5 + [1] * 5 + [3]
    assert hop.scale.tolist() == [1.0] * 5 + [6 / 5] * 5 + [1.0]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stable", [False, True])
def test_each_neighbour_is_hit_equally_often(backend, stable):
    """10,000 keys of one node, and one key of 10,000 nodes; NumPy is slow, and its draws are the same."""
    degree, fanout, draws_made = 30, 7, 10_000
    indptr, indices = csr([degree] + [0] * 99, 100)
    one = NeighbourSampler(indptr, indices, [fanout], stable=stable, backend=backend)
    by_key = np.zeros(degree)
    for key in range(draws_made if backend == "numba" else 1000):
        by_key[one.sample(np.array([0]), key).hops[0].position] += 1
    many = NeighbourSampler(
        np.arange(draws_made + 1) * degree,
        np.random.default_rng(2).integers(draws_made, size=degree * draws_made),
        [fanout],
        stable=stable,
        backend=backend,
    )
    by_node = np.bincount(many.sample(np.arange(draws_made), 3).hops[0].position % degree, minlength=degree)
    share = fanout / degree
    for counts in (by_key, by_node):
        size = counts.sum() / fanout
        spread = ((counts - share * size) ** 2).sum() / (size * share * (1 - share))
        statistic = spread * (degree - 1) / degree
        assert size in (1000, draws_made)
        assert chi2.sf(statistic, degree - 1) > 1e-3


def test_mean_is_unbiased():
    """Scaled sums of two hops on linear layers have the full sums as their mean, within four standard errors."""
    indptr, indices = mixed(60, 20)
    full = sp.csr_matrix((np.ones(len(indices)), indices, indptr), shape=(60, 60))
    x = np.random.default_rng(3).normal(size=60)
    wanted = (full @ (full @ x))[:10]
    made = NeighbourSampler(indptr, indices, [3, 4])
    sums = []
    for key in range(4000):
        block = made.sample(np.arange(10), key)
        h = x[block.nodes]
        for hop in reversed(block.hops):
            h = np.bincount(hop.rows, hop.scale * h[hop.col], len(hop.degree))
        sums.append(h)
    error = np.std(sums, axis=0) / len(sums) ** 0.5
    assert (np.abs(np.mean(sums, axis=0) - wanted) < 4 * error + 1e-9).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stable", [False, True])
def test_threads_and_batches_do_not_change_a_draw(backend, stable):
    indptr, indices = mixed()
    batches = [np.random.default_rng(key).permutation(300)[:30] for key in range(24)]

    def run(start, step):
        neighbour_sampler = NeighbourSampler(indptr, indices, [5, 5], stable=stable, backend=backend)
        return {key: neighbour_sampler.sample(batches[key], key).copy() for key in range(start, 24, step)}

    expected = run(0, 1)
    for threads in (2, 8):
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(run, range(threads), [threads] * threads))
        for part in parts:
            for key, block in part.items():
                equal(block, expected[key])


def test_a_row_does_not_depend_on_the_other_seeds():
    indptr, indices = mixed()
    made = NeighbourSampler(indptr, indices, [5])
    alone, among = (made.sample(np.array(seeds), 9).copy() for seeds in ([42], [1, 42, 7]))
    (one,), (more,) = alone.hops, among.hops
    np.testing.assert_array_equal(one.position, more.position[more.pointer[1] : more.pointer[2]])


def neighbours(block, row):
    (hop,) = block.hops
    return set(block.nodes[hop.col[hop.pointer[row] : hop.pointer[row + 1]]].tolist())


def test_deleted_edge_changes_only_stable_draws_that_held_it():
    indptr, indices = csr([40] * 50, 50)
    gone = 7
    rows = np.repeat(np.arange(50), 40)
    kept = indices != gone
    fewer = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=50))])
    before = NeighbourSampler(indptr, indices, [6], stable=True).sample(np.arange(50), 4).copy()
    after = NeighbourSampler(fewer, indices[kept], [6], stable=True).sample(np.arange(50), 4)
    held = 0
    for row in range(50):
        old, new = (neighbours(block, row) for block in (before, after))
        held += gone in old
        assert old - {gone} <= new
        assert gone in old or old == new
    assert 0 < held < 50


def test_buffers_are_reused_and_restored():
    indptr, indices = mixed()
    made = NeighbourSampler(indptr, indices, [5, 5])
    first = made.sample(np.arange(100), 1)
    again = first.copy()
    second = made.sample(np.arange(50), 2)
    assert np.shares_memory(first.nodes, second.nodes)
    assert (made._local == -1).all()
    equal(made.sample(np.arange(100), 1), again)


def test_wrong_arrays_and_fanouts_are_refused():
    indptr, indices = mixed()
    with pytest.raises(FedGraphError, match=r"end with the number of edges, \d+; a truncated file"):
        NeighbourSampler(indptr, indices[:-3], [5])
    with pytest.raises(FedGraphError, match=r"numbers >= 1, or -1 for all neighbours, got \[5, 0\]"):
        NeighbourSampler(indptr, indices, [5, 0])


def test_reads_memory_mapped_files(tmp_path):
    indptr, indices = mixed()
    for name, array in (("indptr", indptr), ("indices", indices)):
        np.save(tmp_path / f"{name}.npy", array)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices")]
    made = NeighbourSampler(*mapped, [5, 5])
    assert np.shares_memory(made.sides[0].indices, mapped[1])
    equal(made.sample(np.arange(20), 1), NeighbourSampler(indptr, indices, [5, 5]).sample(np.arange(20), 1))


def test_without_numba(monkeypatch):
    monkeypatch.setattr(sampler, "has_numba", lambda: False)
    assert sampler.backend_of("auto") is draws
    with pytest.raises(FedGraphError, match=r"pip install 'fedgraph-flwr\[fast\]'"):
        sampler.backend_of("numba")


@pytest.mark.parametrize("stored", [torch.float16, torch.float32, torch.bfloat16])
def test_rows_are_gathered_into_the_same_memory(stored):
    x = torch.rand(50, 3).to(stored)
    rows = RowBuffer(x)
    first = rows.take(np.array([4, 2, 49, 4]))
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, x[[4, 2, 49, 4]].float(), rtol=0, atol=0)
    assert rows.take(np.array([1])).data_ptr() == first.data_ptr()
    if stored != torch.bfloat16:
        torch.testing.assert_close(RowBuffer(x.numpy()).take(np.array([7, 3])), x[[7, 3]].float(), rtol=0, atol=0)
