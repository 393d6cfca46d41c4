"""Parts that an external package brings: MOON and SCAFFOLD run from one unchanged, and give the same bits."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedgraph_flwr.clients import moon, scaffold
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.key_docs import own_keys_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.strategies import scaffold as scaffold_server
from tests.support import Finished, assert_same_arrays, same_result

ROOT = Path(__file__).parents[2]
PARTS = '''
"""Two parts."""

from dataclasses import dataclass

from fedgraph_flwr.methods.parts import SCAFFOLD
from fedgraph_flwr.plugin import ARRAYS, Input, Mean, Part, choice, number


@dataclass
class ContrastKeys:
    mu: float = 1.0  # weight of the term
    temperature: float = number(0.5, without_low=True)


@dataclass
class ControlKeys:
    option: str = choice("auto", ("auto", "I", "II"))
    server_lr: float = 1.0


CONTRAST = Part("objective", ContrastKeys, "outside_parts.moon:Moon", hooks=("logits", "loss"), shared="contrasts with")
CONTROL = Part(
    "variates",
    ControlKeys,
    "outside_parts.client:Scaffold",
    "outside_parts.server:Scaffold",
    {"variates": Mean(ARRAYS, weight="shares")},
    {"heard": SCAFFOLD.downlink["heard"], "variates": Input("the server's variate", zero=True)},
    mean=True,
    step="sums over clients",
)
NOT_A_PART = 3
fraction = Part("objective", ContrastKeys, "outside_parts.moon:Moon")
'''
YAML = "# Contrast, from a package.\nname: contrast\nobjective: ['outside_parts:CONTRAST']\n"
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "outside-parts"
version = "1.0"

[project.entry-points."fedgraph_flwr.conf"]
outside_parts = "outside_parts"

[tool.setuptools]
packages = ["outside_parts"]

[tool.setuptools.package-data]
outside_parts = ["conf/strategy/*.yaml"]
"""
SAME = {
    ("strategy.objective=[moon]", "strategy.moon.mu=0.7"): (
        "strategy.objective=[outside_parts:CONTRAST]",
        "strategy.CONTRAST.mu=0.7",
    ),
    ("strategy.variates=scaffold", "strategy.scaffold.server_lr=0.5"): (
        "strategy.variates=outside_parts:CONTROL",
        "strategy.CONTROL.server_lr=0.5",
    ),
}


def source(module: ModuleType) -> str:
    return Path(inspect.getfile(module)).read_text()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder of a package with copies of our files."""
    folder = tmp_path_factory.mktemp("outside") / "outside_parts"
    (folder / "conf" / "strategy").mkdir(parents=True)
    files = {"__init__": PARTS, "moon": source(moon), "client": source(scaffold), "server": source(scaffold_server)}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "conf" / "strategy" / "contrast.yaml").write_text(YAML)
    return folder


@pytest.fixture
def known(package, monkeypatch):
    monkeypatch.syspath_prepend(package.parent)


@pytest.mark.parametrize("ours", SAME)
@pytest.mark.parametrize("protection", [(), ("privacy.secagg=true",)], ids=["plain", "secagg"])
def test_a_part_of_a_module_gives_the_same_bits_as_the_built_in_one(known, run, ours, protection):
    one, two = run(*ours, *protection), run(*SAME[ours], *protection)
    assert_same_arrays(one.arrays, two.arrays)
    assert one.summary["bytes_by_phase"].keys() == two.summary["bytes_by_phase"].keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategy.objective=[outside_parts:CONTRAST]", "strategy.CONTRAST.nu=1"], "'nu' is unknown"),
        (["strategy.objective=[outside_parts:CONTRAST]", "strategy.CONTRAST.temperature=0"], "temperature must be > 0"),
        (["strategy.variates=outside_parts:CONTRAST"], "is a part for strategy.objective"),
        (["strategy.objective=[outside_parts:NOT_A_PART]"], "is a int, expected a Part"),
        (["strategy.objective=[outside_parts:fraction]"], "strategy.fraction is a built-in key"),
        (["strategy.objective=[outside_parts:MISSING]"], "cannot be imported"),
        (["strategy=local", "strategy.objective=[outside_parts:CONTRAST]"], "contrasts with the shared parameters"),
        (["strategy=fednova", "strategy.variates=outside_parts:CONTROL"], "sums over clients, and strategy=fednova"),
        (["strategy=adafgl", "strategy.objective=[outside_parts:CONTRAST]"], "has its own `loss`"),
        (["strategy.CONTRAST.mu=1"], "'CONTRAST' is unknown"),
    ],
)
def test_what_a_part_of_a_module_cannot_do_is_refused(known, words, message):
    with pytest.raises(FedGraphError, match=message):
        check_method(compose(words))


def test_its_keys_are_described(known, package):
    keys = {key.name: key for key in own_keys_of("strategy", package / "conf" / "strategy" / "contrast.yaml")}
    assert keys["strategy.CONTRAST.mu"].meaning == "weight of the term"


def test_a_node_permits_the_module_before_it_imports_it(known, node, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("outside_parts")]:
        monkeypatch.delitem(sys.modules, name)
    words = "strategy.objective=[outside_parts:CONTRAST]"
    refused = "policy refuses strategy part CONTRAST=outside_parts:CONTRAST: it accepts modules none"
    assert refused in node(words, policy={}).request("describe")
    assert "outside_parts" not in sys.modules
    assert not isinstance(node(words, policy={"modules": ["outside_parts"]}).request("describe"), str)


@pytest.mark.slow
def test_an_installed_package_brings_a_method_and_parts(package, tmp_path):
    pytest.importorskip("setuptools")
    built, site = tmp_path / "built", tmp_path / "site"
    built.mkdir()
    (built / "pyproject.toml").write_text(PROJECT)
    (built / "outside_parts").symlink_to(package)
    install = [
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        str(site),
        str(built),
    ]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)
    few = ["rounds=2", "num_clients=3", "--quiet", "--no-report", "dataset=csbm", "dataset.nodes_per_client=[40,40]"]
    given = [
        ["run", "strategy=contrast", *few, "out=theirs"],
        ["run", "strategy.objective=[moon]", *few, "out=ours"],
        ["run", "strategy=contrast", "strategy.variates=outside_parts:CONTROL", *few, "out=both_theirs"],
        ["run", "strategy.objective=[moon]", "strategy.variates=scaffold", *few, "out=both_ours"],
    ]
    code = f"import sys; from fedgraph_flwr.cli import main; sys.exit(max([main(args) for args in {given!r}]))"
    environment = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "FEDGRAPH_DATA": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    def finished(name: str) -> Finished:
        return Finished(compose([f"out={tmp_path / name}"]), json.loads((tmp_path / name / "summary.json").read_text()))

    same_result(finished("theirs"), finished("ours"))
    same_result(finished("both_theirs"), finished("both_ours"))
