"""Capabilities: what classes declare by attributes, as plug-ins do, is one value per class."""

import torch
from torch import nn

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import ClientPart
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.readout import GraphReadout, attach
from fedgraph_flwr.models.sign import SIGN
from fedgraph_flwr.tasks.graphs import GraphsMultiLabel


class Plugin(GraphClient):
    serves = frozenset({"nodes", "links"})
    samples = "blocks"
    stacks = ("anchor",)
    units = frozenset({"row"})
    makes_graphs = True


class Child(Plugin):
    pass


class Overrides(Plugin):
    def loss(self):
        return torch.zeros(())


class Mixin:
    stacks = ("prior",)
    samples = "whole"

    def loss(self):
        return torch.zeros(())


class Mixed(Mixin, GraphClient):
    pass


class Later(Mixed):
    pass


class OfNodes(ClientPart):
    of_nodes = True
    samples = False


def test_class_attributes_of_a_plug_in_are_its_capabilities():
    capabilities = Plugin.capabilities
    assert (capabilities.serves, capabilities.samples, capabilities.stacks) == (
        frozenset({"nodes", "links"}),
        "blocks",
        ("anchor",),
    )
    assert capabilities.units == {"row"}
    assert capabilities.makes_graphs


def test_a_subclass_declares_again_what_another_training_may_lose():
    """Tasks, samplers and units; and what its objective reads, if it has another objective."""
    capabilities = Child.capabilities
    assert (capabilities.serves, capabilities.samples, capabilities.units) == (frozenset({"nodes"}), "", frozenset())
    assert (capabilities.stacks, capabilities.makes_graphs) == (("anchor",), True)
    assert Overrides.capabilities.stacks is None
    assert GraphClient.capabilities.samples == "blocks"
    assert len(GraphClient.capabilities.serves) == 9


def test_a_mixin_declares_for_the_classes_that_it_is_mixed_into():
    assert (Mixed.capabilities.stacks, Mixed.capabilities.samples) == (("prior",), "whole")
    assert Later.capabilities.samples == ""


def test_a_part_has_the_values_of_its_base_unless_it_declares_others():
    capabilities = OfNodes.capabilities
    assert (capabilities.of_nodes, capabilities.samples, capabilities.stacks, capabilities.adds) == (
        True,
        False,
        True,
        False,
    )


def test_a_model_may_differ_from_its_class():
    class Changing(Model):
        stacks = True
        drops = False

        def __init__(self) -> None:
            super().__init__()
            self.stacks, self.dense_features = False, True

    assert (Changing.capabilities.stacks, Changing.capabilities.dense_features) == (True, False)
    capabilities = Changing().capabilities
    assert (capabilities.stacks, capabilities.dense_features, capabilities.drops) == (False, True, False)


def test_rows_are_read_alone_by_a_model_that_propagates_nothing():
    """Also with a readout, whose class is made of the model's."""
    keys = {"hidden": 4, "layers": 2, "dropout": 0.0}
    alone, propagates = SIGN(3, 2, hops=0, **keys), SIGN(3, 2, hops=1, **keys)
    assert alone.capabilities.row_wise
    assert not propagates.capabilities.row_wise
    assert not SIGN.capabilities.row_wise
    assert not type("Reads", (SIGN,), {})(3, 2, hops=0, **keys).capabilities.row_wise
    whole = attach(alone, GraphReadout(2, 2, hidden=4, dropout=0.0, pool="mean"))
    assert isinstance(whole, nn.Module)
    assert whole.capabilities.row_wise


def test_a_task_inherits_from_both_of_its_bases():
    can = GraphsMultiLabel.capabilities
    assert (can.targets, can.passes, can.samples, can.far_ends, can.classes) == (True, True, False, False, False)
