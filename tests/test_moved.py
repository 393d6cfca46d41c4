"""Names of earlier releases: old modules import their successors with a warning; old hooks are refused."""

import importlib
import pickle
import subprocess
import sys
import warnings

import pytest

from fedgraph_flwr import moved
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.prediction_input import InputSpec
from fedgraph_flwr.moved import HOOKS, MOVED, PACKAGE, successor
from fedgraph_flwr.runs.prediction import Predictor

EVERY = """
import contextlib, importlib, pkgutil, warnings, fedgraph_flwr
warnings.filterwarnings("error", "fedgraph_flwr", FutureWarning)
for found in pkgutil.walk_packages(fedgraph_flwr.__path__, "fedgraph_flwr."):
    if not found.name.endswith("__main__"):
        with contextlib.suppress(ModuleNotFoundError):  # of an extra that is not installed
            importlib.import_module(found.name)
"""


@pytest.fixture
def forgotten(monkeypatch):
    """No old name was imported before."""
    for old in MOVED:
        monkeypatch.delitem(sys.modules, f"{PACKAGE}.{old}", raising=False)


def test_an_old_attribute_warns_and_reads_the_new_one():
    spec = InputSpec(("ok", "fraud"), 3)
    predictor = Predictor(RunConfig(), None, {}, {}, 0, spec)
    with pytest.warns(FutureWarning, match="read input_spec instead"):
        assert predictor.meaning is spec


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_is_the_new_module_and_warns_where_it_is_imported(old, forgotten):
    with pytest.warns(
        FutureWarning, match=rf"^{PACKAGE}\.{old} is now {PACKAGE}\.{MOVED[old]}: change the import"
    ) as caught:
        found = importlib.import_module(f"{PACKAGE}.{old}")
    assert found is importlib.import_module(f"{PACKAGE}.{MOVED[old]}")
    assert found.__name__ == f"{PACKAGE}.{MOVED[old]}"
    assert sys.modules[f"{PACKAGE}.{old}"] is found
    assert len(caught) == 1


def test_the_warning_names_the_line_that_imports(forgotten):
    with pytest.warns(FutureWarning) as caught:
        from fedgraph_flwr.messages import derive_seed  # type: ignore[import-untyped]
    assert caught[0].filename == __file__
    from fedgraph_flwr.wire import messages

    assert derive_seed is messages.derive_seed


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_no_old_name_leads_to_another_and_none_is_still_a_module(forgotten):
    assert not MOVED.keys() & set(MOVED.values())
    for old in MOVED:
        loader = importlib.util.find_spec(f"{PACKAGE}.{old}").loader
        assert isinstance(loader, moved.OldNames), old


def test_a_name_outside_the_package_is_nobodys():
    """A module of the user's own, or one that is not installed, may have any of these names."""
    for old in MOVED:
        if "." not in old:
            assert successor(old) == old
            assert not isinstance(getattr(importlib.util.find_spec(old), "loader", None), moved.OldNames)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_pickles_and_configurations_with_old_names_load(forgotten):
    from fedgraph_flwr.clients.malicious import malicious
    from fedgraph_flwr.wire.reply_schema import ReplySchema

    stored = pickle.dumps(ReplySchema, protocol=0).replace(b"fedgraph_flwr.wire.reply_schema", b"fedgraph_flwr.answers")
    assert b"fedgraph_flwr.answers" in stored
    assert pickle.loads(stored) is ReplySchema
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a stored name is not the user's to change
        assert locate("fedgraph_flwr.clients.hostile:malicious") is malicious
        assert locate("clients.hostile:malicious") is malicious


@pytest.mark.slow
def test_only_an_old_name_warns():
    """The package itself uses none: every module is imported before the old name, whose warning is an error."""
    script = EVERY + "print('none of ours', flush=True)\nimport fedgraph_flwr.messages"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "none of ours\n", done.stderr
    assert done.returncode == 1
    assert "is now fedgraph_flwr.wire.messages" in done.stderr


@pytest.mark.parametrize(("old", "new"), HOOKS["client"].items())
def test_an_override_by_an_old_name_is_refused_with_the_new_one(old, new):
    assert hasattr(GraphClient, new)
    assert not hasattr(GraphClient, old)
    with pytest.raises(TypeError, match=rf"\.Mine defines '{old}', which a method no longer may: define {new} instead"):
        type("Mine", (GraphClient,), {old: lambda self: None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Mine", (GraphClient,), {new: lambda self: None})
