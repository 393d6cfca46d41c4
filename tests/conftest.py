"""Fixtures that many tests use: small client graphs, runs in this process, and the raw public data.

torch and the package are imported where they are used: pytest-xdist's own process, which runs no test, does without.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from fedgraph_flwr.data.graph import ClientGraph

gc.disable()  # until all tests are collected
gc.set_threshold(20_000, 10, 100)  # full collections pass over a million objects of imported modules
os.fsync = lambda file: None  # no test cuts the power
# Tests interrupt processes that they start; a shell's background job ignores that signal, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# CI draws the same examples every time; elsewhere each run draws new ones. Times of single examples depend on the machine.
hypothesis.settings.register_profile("new-examples", deadline=None)
hypothesis.settings.register_profile("same-examples", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("same-examples" if os.environ.get("CI") == "true" else "new-examples")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def shared_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``shared_data("Planetoid/Cora")`` copies that raw folder under a temporary data root, or skips the test."""
    root = tmp_path / "data-root"
    monkeypatch.setenv("FEDGRAPH_DATA", str(root))

    def copy(folder: str) -> Path:
        if not (SHARED_DATA / folder).exists():
            pytest.skip(f"raw files of {folder} are missing ({SHARED_DATA})")
        shutil.copytree(SHARED_DATA / folder, root / folder, dirs_exist_ok=True)
        return root

    return copy


def client_graph(
    client: int,
    num_nodes: int = 16,
    num_features: int = 5,
    num_classes: int = 3,
    seed: int = 0,
    num_edge_features: int = 0,
) -> ClientGraph:
    """A small random undirected client graph whose features tell the class, a little."""
    import torch

    from fedgraph_flwr.data.graph import ClientGraph

    generator = torch.Generator().manual_seed(100 * seed + client)
    y = torch.arange(num_nodes) % num_classes
    x = torch.randn(num_nodes, num_features, generator=generator)
    x[torch.arange(num_nodes), y] += 1.5
    ends = torch.randint(0, num_nodes, (2, 2 * num_nodes), generator=generator)
    ends = ends[:, ends[0] < ends[1]].unique(dim=1)
    fold = torch.rand(num_nodes, generator=generator).argsort().argsort() % 4
    return ClientGraph(
        x=x,
        edge_index=torch.cat([ends, ends.flip(0)], dim=1),
        y=y,
        train_mask=fold < 2,
        val_mask=fold == 2,
        test_mask=fold == 3,
        num_classes=num_classes,
        name="toy",
        node_id=torch.arange(num_nodes) + 1000 * client,
        client=client,
        num_clients=3,
        num_global_nodes=1000 * max(3, client + 1),
        edge_attr=torch.randn(2 * ends.size(1) if num_edge_features else 0, num_edge_features, generator=generator),
    )


def uneven_clients(folder: Path, zero: bool = False) -> Path:
    """Files of three clients of 12, 16 and 20 nodes, of which 6, 3 and 8 train: the two numbers weigh differently.

    ``zero`` makes all their features 0. Returns the folder, for ``graph=FOLDER``.
    """
    for client, (num_nodes, num_train) in enumerate(((12, 6), (16, 3), (20, 8))):
        graph = client_graph(client, num_nodes)
        graph.train_mask[graph.train_mask.nonzero().view(-1)[num_train:]] = False
        if zero:
            graph.x.zero_()
        graph.save(folder / f"client_{client:04d}.safetensors")
    return folder


@pytest.fixture(scope="session")
def _client_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """Files of clients of these sizes, made once a session; to copy, not to change."""

    @functools.cache
    def made(sizes: tuple[int, ...], **kwargs: Any) -> list[Path]:
        folder, paths = tmp_path_factory.mktemp("clients"), []
        for client, size in enumerate(sizes):
            graph = client_graph(client, size, **kwargs)
            graph.num_clients, graph.num_global_nodes = len(sizes), 1000 * len(sizes)
            paths.append(folder / f"client_{client:04d}.safetensors")
            graph.save(paths[-1])
        return paths

    return made


@pytest.fixture
def client_files(tmp_path: Path, _client_files: Callable[..., list[Path]]) -> Callable[..., str]:
    """``client_files(sizes)`` writes client files of these sizes and returns ``graph=FOLDER`` for `compose`."""

    def write(sizes: tuple[int, ...] = (12, 16, 20), **kwargs: Any) -> str:
        folder = tmp_path / f"clients-{'-'.join(map(str, sizes))}-{kwargs.get('seed', 0)}"
        folder.mkdir(exist_ok=True)
        for path in _client_files(tuple(sizes), **kwargs):
            shutil.copyfile(path, folder / path.name)
        return f"graph={folder}"

    return write


@pytest.fixture
def run(tmp_path: Path, client_files: Callable[..., str]) -> Callable[..., Any]:
    """``run("strategy=fedprox", ...)`` trains on three small clients in this process; returns summary, rounds, parameters."""
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.launch.prepare import with_folder
    from fedgraph_flwr.launch.simulations import run_inline
    from tests.support import Finished

    count = iter(range(1000))

    def go(*overrides: str, sizes: tuple[int, ...] = (12, 16, 20), **kwargs: Any) -> Finished:
        graph = (
            client_files(sizes, **kwargs) if not any(w.startswith(("graph=", "dataset=")) for w in overrides) else None
        )
        defaults = [f"num_clients={len(sizes)}", "rounds=3", "model.hidden=8", f"out={tmp_path / f'run{next(count)}'}"]
        defaults += [graph] if graph else []
        cfg = with_folder(compose([*defaults, *overrides]))
        return Finished(cfg, run_inline(cfg))

    return go


@pytest.fixture(scope="session")
def _baselines() -> dict[tuple[str, ...], Any]:
    return {}


@pytest.fixture
def baseline(run: Callable[..., Any], _baselines: dict[tuple[str, ...], Any]) -> Callable[..., Any]:
    """``baseline("strategy=fedprox", ...)``: `run` without patches, once a session; what runs of several tests are compared with.

    Overrides that name a folder of one test are not for it.
    """

    def get(*overrides: str) -> Any:
        if overrides not in _baselines:
            _baselines[overrides] = run(*overrides)
        return _baselines[overrides]

    return get


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """``go("fedprox", "key=value", ...)``: three rounds of any method on three small clients in this process."""
    from tests.methods.small_runs import small_runs

    with small_runs(tmp_path_factory.mktemp("small-runs")) as go:
        yield go


@pytest.fixture
def node(client_files: Callable[..., str], tmp_path: Path) -> Callable[..., Any]:
    """``node("strategy=fedavg", ..., policy={...})``: a node with a graph of 12 nodes."""
    from fedgraph_flwr.config import compose
    from tests.nodes import Node

    def make(*overrides: str, policy: Any = None, size: int = 12, state: bool = False, **config: str) -> Node:
        folder = Path(client_files((size, 16, 20)).partition("=")[2])
        cfg = compose(["num_clients=3", "rounds=5", "model.hidden=8", "model.dropout=0", *overrides])
        values = {"graph": str(folder / "client_0000.safetensors"), **config}
        if policy is not None:
            (tmp_path / "policy.yaml").write_text(policy if isinstance(policy, str) else json.dumps(policy))
            values["policy"] = str(tmp_path / "policy.yaml")
        return Node(cfg, **values, **({"state": str(tmp_path / "state")} if state else {}))

    return make


@pytest.fixture
def train(run: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``train("strategy=fedstruct", ...)`` on clients that are joined by edges; see `tests.methods.worlds.trainer`."""
    from tests.methods.worlds import trainer

    return trainer(run, tmp_path)


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """A Ray instance for all tests of the group "one ray", which `pytest.mark.xdist_group` runs in one process."""
    from fedgraph_flwr.engine.ray import ray_session

    with ray_session():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--gpu`` lets tests see a GPU, which those of `tests.methods.test_gpu` need; others compare bits of the CPU."""
    parser.addoption("--gpu", action="store_true", help="let tests see a GPU")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from this process and those that it starts."""
    if not config.getoption("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


SLOW_PART = "slow and not faults"
LONG = (
    "tests/test_docs.py",
    "tests/test_notebook.py",
    "tests/party/test_flagship.py",
    "tests/engine/test_between_page.py",
)
"""Their tests begin first, so that no process works on one of them alone at the end."""


@functools.cache
def _has_slow_tests(path: Path) -> bool:
    """Whether a file's text has the mark, or `tests.methods.small_runs.sampled`, which sets it."""
    text = path.read_text()
    return "slow" in text.lower() or "sampled(" in text


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the slow part, leave out files without slow tests, whose import would take each process seconds."""
    of_tests = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if config.option.markexpr == SLOW_PART and of_tests and not _has_slow_tests(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--dist loadgroup``, one process runs the tests that share what their module makes once, or once a method."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    hidden = {item.path for item in items if item.get_closest_marker("slow")}
    if missed := [path for path in hidden if not _has_slow_tests(path)]:
        raise pytest.UsageError(
            f"{missed[0]} has slow tests that the slow part would not find: write the mark in that file"
        )
    for item in (item for item in items if isinstance(item, pytest.Function)):
        made = {name: definitions[-1] for name, definitions in item._fixtureinfo.name2fixturedefs.items()}
        shared = any(one.scope == "module" and one.func.__module__ == item.module.__name__ for one in made.values())
        if shared and not item.get_closest_marker("xdist_group"):
            words = item.callspec.params if hasattr(item, "callspec") else {}
            form = words.get("form", words.get("method", ""))
            method = form if isinstance(form, str) else "".join(form[:1])
            item.add_marker(pytest.mark.xdist_group(f"{item.module.__name__} {method}".strip()))


def pytest_collection_finish() -> None:
    """Leave what is imported by now to no further collection of garbage."""
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    gc.enable()
