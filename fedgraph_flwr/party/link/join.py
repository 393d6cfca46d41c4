"""Columns that a party's nodes get from another party that has the same nodes: `link --entities columns --share COLUMNS`.

    network    payments that name accounts           asks each bank for the accounts that its payments place there
    bank       accounts with columns                 tells the network the columns of those that both have

Both match ids of nodes, privately (`--match ids`) or by hashes (`--match routed`), and each learns which accounts both have. Then
each tells the columns of ``share`` that its role has, in their declared form, for accounts that both have, and takes those that
its role does not have. Parties of one role match nothing. No edges are added. A file without payments has no records to count, so
the party with payments applies ``min_records``: it does not ask for an account of fewer. Where payments name the banks of
accounts, it asks each bank only for its own, so that no bank can claim those of another. Otherwise an account that two banks
hold gets no columns.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgraph_flwr.data.far_ends import Column, encoded, records
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.schema import NODE, Schema, agreed_schema, feature_names
from fedgraph_flwr.errors import FedGraphError, RunFailed, sanitize
from fedgraph_flwr.party.link.files import Ints
from fedgraph_flwr.party.link.protocol import LinkParty, array_of
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.wire.messages import Arrays


def party_of(rules: LinkRules) -> type[LinkParty]:
    """Return the class of a party under these rules."""
    return JoinParty if rules.joins else LinkParty


class JoinParty(LinkParty):
    """One party's state over the phases of a link run that joins columns.

    Attributes:
        claimed: own nodes that two other parties hold, which get no columns [K].
    """

    claimed: Ints = np.zeros(0, dtype=np.int64)

    @cached_property
    def schema(self) -> Schema:
        """The schema with the roles.

        Raises:
            FedGraphError: the file was imported without a role.
        """
        schema = agreed_schema(self.graph.schema, "the import")
        if schema is None or self.graph.linking.get("role") not in schema.roles:
            raise FedGraphError(
                f"the file of client {self.client} has no role, so entities=columns cannot say which columns it lacks: import it"
                " with --role NAME"
            )
        return schema

    def held(self, client: int) -> list[int]:
        """Return which of `columns` a party's role has, by position.

        Raises:
            RunFailed: the schema has no such role.
        """
        if (role := self.roles[client]) not in self.schema.roles:
            raise RunFailed(f"client {client} has role '{sanitize(role, 40)}', which the schema does not list")
        names = self.schema.roles[role].get(NODE, ())
        places = {place for name in names for place in self._places[name]}
        return [number for number, column in enumerate(self.columns) if column.place in places]

    @cached_property
    def _places(self) -> dict[str, range]:
        """Positions in ``x`` of each column of the schema."""
        places, start = {}, 0
        for name, column in self.schema.nodes[NODE].items():
            places[name] = range(start, start := start + len(feature_names({name: column})))
        return places

    @cached_property
    def few(self) -> Ints:
        """The own nodes with fewer than ``min_records`` records, for which it does not ask; none in a file without edges."""
        if not self.graph.edge_index.size(1):
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(records(self.graph) < self.rules.min_records)

    def nodes_for(self, peer: int) -> Ints:
        """Return the own nodes that a peer of another role may have: those that edges place there, with enough records."""
        if self.roles[peer] == self.roles[self.client]:
            return np.zeros(0, dtype=np.int64)
        nodes, homes = np.setdiff1d(np.arange(self.graph.num_nodes), self.few), self.graph.group.numpy()
        return nodes[homes[nodes] == self.place_of(peer)] if homes.size else nodes

    @property
    def told_of(self) -> tuple[ClientGraph, list[Column]]:
        """The party's file and the columns that its role has."""
        return self.graph, [self.columns[number] for number in self.held(self.client)]

    def told_to(self, peer: int) -> list[Column]:
        """Return the columns of its role, if both have an account."""
        return self.told_of[1] if self._ordered(peer).size else []

    def told(self, peer: int) -> tuple[Ints, list[NDArray[Any]], list[bytes]]:
        """Return what this party tells a peer: rows of its file [K], codes or values by column, and the accounts' ids."""
        rows = self.values(peer)[0][self._by_mask(peer)[0]]
        names = self._names_of(self.graph, rows)
        return rows, encoded(self.told_of[1], self.told_values(peer, rows), self.key_of_draws, names), names

    def _make_share(self, peer: int) -> Arrays:
        rows, codes, _ = self.told(peer)
        numbers = map(str, self.held(self.client))
        return {"account": np.arange(rows.size), **dict(zip(numbers, codes, strict=True))}

    def _take_share(self, peer: int, arrays: Arrays) -> None:
        count = self._ordered(peer).size
        array_of(arrays, "account", (count,), "int64")
        columns = {str(number): (self.columns[number], count) for number in self.held(peer)}
        self._take_columns(peer, arrays, columns)

    def result(self) -> ClientGraph:
        """Return the linked graph, whose nodes have the columns that the peers shared."""
        if self._done is None:
            graph, lacking = self.linked, {*range(len(self.columns))} - {*self.held(self.client)}
            x, (_, places, _) = graph.x.clone(), self._prepared
            told = {peer: lacking & {*self.held(peer)} for peer in self.peers}
            rows = {peer: places[self.values(peer)[0][self._ordered(peer)]] for peer in self.peers if told[peer]}
            holders = np.bincount(
                np.concatenate([np.zeros(0, dtype=np.int64), *rows.values()]), minlength=graph.num_nodes
            )
            gaps = [of for name, of in self._places.items() if self.schema.nodes[NODE][name].missing]
            for peer, nodes in rows.items():
                sole = holders[nodes] == 1
                for of in gaps:
                    if {self.columns[number].place for number in told[peer]} & {*of}:
                        x[nodes[sole], of[-1]] = 0
                for number in told[peer]:
                    values = self.columns[number].decode(self.pairs[peer]["share"][str(number)])
                    x[nodes[sole], self.columns[number].place] = torch.from_numpy(
                        np.asarray(values[sole], dtype=np.float32)
                    )
            self.claimed = np.flatnonzero(holders > 1)
            self._done = replace(graph, x=x)
        return self._done

    def report(self) -> list[str]:
        """Return lines for this party: numbers per peer, and accounts for which it did not ask or that get no columns."""
        lines = super().report()
        if len({*self.roles.values()}) == 1:
            lines.append(
                f"all parties have role '{sanitize(self.roles[self.client], 40)}', so that no accounts were matched"
            )
        if self.few.size:
            lines.append(f"{self.few.size} accounts have fewer than {self.rules.min_records} records: not asked for")
        homes, parties = self.graph.group.numpy(), self.graph.linking.get("parties", [])
        for number, count in enumerate(np.bincount(homes, minlength=len(parties)) if homes.size else ()):
            if count and parties[number] not in self.names.values():
                lines.append(
                    f"{count} accounts are at '{sanitize(parties[number], 60)}', which no client is: not asked for"
                )
        if not self.rules.dry_run and self.result() is not None and self.claimed.size:
            lines.append(f"{self.claimed.size} accounts are held by several parties: without columns")
        return lines

    def _pair_lines(self, peer: int) -> list[str]:
        return [] if self.roles[peer] == self.roles[self.client] else super()._pair_lines(peer)

    def _share_line(self, peer: int) -> str:
        lines = []
        for who, client in (("told", self.client), ("received", peer)):
            listing = ", ".join(f"{self.columns[n].name} ({self.columns[n].form})" for n in self.held(client))
            epsilon = sum(self.columns[n].epsilon for n in self.held(client))
            local = f" (local ε of an account {epsilon:g}, without a bound for other forms)" if epsilon else ""
            lines.append(f"{who} {listing or 'no columns'}{local}")
        return f"of {self._ordered(peer).size} accounts, {', '.join(lines)}"
