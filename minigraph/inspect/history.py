"""The graph of a function after each pass; a node that a pass does not change keeps its id.

A pass rebuilds each node with a new operand, so object identity does not identify nodes.  Two nodes
are the same if their order, op and results are equal.  Graphs inside of ops are flattened and items
are skipped: an entry reads the entries that compute its operands, also within a fused kernel.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigraph.graph import Constant, Graph, GraphOp, Input, Item, Node, Parameter
from minigraph.inspect.record import Removed, Rewired, Stage, VertexRecord
from minigraph.jit.fused import HorizontalFusion, meaning
from minigraph.passes.notes import PassRecord

Key = tuple[Any, ...]  # equal for nodes that may be the same in two graphs
MAX_READERS = 3  # readers of a removed node whose replacements count as its replacements


@dataclass(eq=False)
class GraphEntry:
    """A node of a graph, or of a graph inside of one of its ops.

    reads  entries that compute its inputs
    box    entry of the op whose graph contains the node
    """

    node: Node
    reads: list[GraphEntry]
    box: GraphEntry | None
    kind: str
    key: Key
    id: int = 0
    role: str = "forward"


def _kind(node: Node) -> str:
    if isinstance(node, Parameter):
        return "parameter"
    if isinstance(node.op, Input):
        return "input"
    return "constant" if isinstance(node.op, Constant) else "op"


class FlatGraph:
    """A graph as a list of entries, operands first.

    entry_of  the entry of each node
    outputs   entries that compute the graph's outputs
    """

    def __init__(self, graph: Graph, texts: dict[int, str]) -> None:
        self.entries: list[GraphEntry] = []
        self.entry_of: dict[Node, GraphEntry] = {}
        self._texts = texts
        self._results: dict[Node, list[GraphEntry]] = {}  # of nodes with graphs inside
        self.outputs = self._add(graph, {}, None)

    def _add(
        self, graph: Graph, arguments: Mapping[Node, GraphEntry], box: GraphEntry | None
    ) -> list[GraphEntry]:
        """Add the nodes of a graph; return the entries that compute its outputs.

        arguments  entries of the graph's inputs
        """
        entry_of = dict(arguments)
        for node in graph:
            if node in entry_of:
                continue
            if isinstance(node.op, Item):
                inner = self._results.get(node.inputs[0])
                entry_of[node] = inner[node.op.index] if inner else entry_of[node.inputs[0]]
                continue
            reads = [entry_of[x] for x in node.inputs]
            entry_of[node] = self._entry(node, reads, box)
            if isinstance(node.op, GraphOp | HorizontalFusion):
                self._results[node] = self._add_inner(node, reads, entry_of[node])
                if not node.is_bundle:
                    entry_of[node] = self._results[node][0]
        return [entry_of[y] for y in graph.outputs]

    def _add_inner(self, node: Node, reads: list[GraphEntry], box: GraphEntry) -> list[GraphEntry]:
        """Add the nodes inside of an op; return the entries that compute its results."""
        op = node.op
        if isinstance(op, GraphOp):
            return self._add(op.graph, dict(zip(op.graph.inputs, reads, strict=True)), box)
        assert isinstance(op, HorizontalFusion)
        results: list[GraphEntry] = []
        specs = [x.spec for x in node.inputs]
        for (part, inputs), (_, each) in zip(op.groups(reads), op.groups(specs), strict=True):
            graph = meaning(part, each)
            results += self._add(graph, dict(zip(graph.inputs, inputs, strict=True)), box)
        return results

    def _entry(self, node: Node, reads: list[GraphEntry], box: GraphEntry | None) -> GraphEntry:
        if isinstance(node.op, GraphOp | HorizontalFusion):
            kind, text = "box", node.op.name
        else:
            kind = _kind(node)
            text = self._texts.get(id(node.op)) or self._texts.setdefault(id(node.op), str(node.op))
        entry = GraphEntry(node, reads, box, kind, (node.order[0], text, node.specs))
        self.entries.append(entry)
        self.entry_of[node] = entry
        return entry


@dataclass
class History:
    """The stages of a function's graph, and the ids of the nodes in the last stage.

    results  number of outputs that the caller gets; the others are new values of `changes`
    passes   records of the passes that made the stages after the first
    """

    results: int
    changes: Sequence[Parameter]
    passes: list[PassRecord] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    last: FlatGraph | None = None

    def __post_init__(self) -> None:
        self._last_id = 0
        self._layers: dict[int, str] = {}  # by id, for nodes made outside of layers
        self._texts: dict[int, str] = {}
        self._ops: list[Graph] = []  # keeps the ops alive whose `id` is a key of `_texts`
        self._folder = os.getcwd() + os.sep

    def add(self, graph: Graph, record: PassRecord | None = None) -> None:
        """Add the graph as written or, with its record, after a pass."""
        before = self.last
        if record:
            self.passes.append(record)
        if before is not None and self._ops[-1] is graph:
            self.stages.append(Stage(stops=_stops(record, before.entries)))
            return
        self._ops.append(graph)
        flat = FlatGraph(graph, self._texts)
        self._assign_ids(before, flat)
        self._assign_roles(flat)
        self._assign_layers(flat)
        old = {entry.id: entry for entry in before.entries} if before else {}
        new = {entry.id: entry for entry in flat.entries}
        added = [entry for entry in flat.entries if entry.id not in old]
        self.stages.append(
            Stage(
                added=tuple(map(self._record, added)),
                removed=_removed(before, flat, added) if before else (),
                rewired=tuple(
                    Rewired(entry.id, _ids(entry.reads), _box(entry))
                    for entry in flat.entries
                    if (old_entry := old.get(entry.id))
                    and (_box(old_entry), _ids(old_entry.reads)) != (_box(entry), _ids(entry.reads))
                ),
                stops=_stops(record, old.values(), new),
            )
        )
        self.last = flat

    def ids_of(self, graph: Graph, recomputed: PassRecord | None = None) -> dict[Node, int]:
        """Return the ids of the nodes of a graph that another run of the same passes has made.

        recomputed  record of a pass that ran after these, if any

        Each run of a pass gives its new nodes other orders.  A graph that differs from the last
        one, because an algorithm was measured meanwhile, becomes another stage.
        """
        assert self.last is not None, "the graph as written was added"
        flat = FlatGraph(graph, self._texts)
        same = [e.key[1:] for e in flat.entries] == [e.key[1:] for e in self.last.entries]
        if recomputed or not same:
            before, after = len(self._ops[-1].order), len(graph.order)
            self.add(graph, recomputed or PassRecord("as it runs", before, after, 0.0))
            return {node: entry.id for node, entry in self.last.entry_of.items()}
        id_of = {x: y.id for x, y in zip(flat.entries, self.last.entries, strict=True)}
        return {node: id_of[entry] for node, entry in flat.entry_of.items()}

    def _assign_ids(self, before: FlatGraph | None, flat: FlatGraph) -> None:
        """Give each entry the id of the same entry in the previous graph, or a new id."""
        pool: defaultdict[Key, list[GraphEntry]] = defaultdict(list)
        same: dict[Node, GraphEntry] = {}
        for entry in before.entries if before else ():
            pool[entry.key].append(entry)
            same.setdefault(entry.node, entry)
        matched = {same[e.node] for e in flat.entries if e.node in same}
        for entry in flat.entries:
            match = same.pop(entry.node, None)
            if match is None:
                free = [e for e in pool[entry.key] if e not in matched]
                reads = _ids(entry.reads)
                match = next((e for e in free if _ids(e.reads) == reads), free[0] if free else None)
                if match is not None:
                    matched.add(match)
            if match is None:
                self._last_id += 1
            entry.id = match.id if match else self._last_id

    def _assign_roles(self, flat: FlatGraph) -> None:
        """Set the role of entries that compute gradients, and of those that serve only updates."""
        needed = set(flat.outputs[: self.results])
        for entry in reversed(flat.entries):
            if entry.node.source.backward and entry.kind != "box":
                entry.role = "backward"
                needed.update(entry.reads)
            elif entry in needed and entry.kind != "box":
                needed.update(entry.reads)
        gradients = {entry for entry in flat.entries if entry.role == "backward"}
        for entry in flat.entries:
            reads_gradient = not gradients.isdisjoint(entry.reads)
            if entry.kind in ("op", "constant") and entry not in gradients:
                if reads_gradient or entry not in needed:
                    entry.role = "update"
                if reads_gradient:
                    gradients.add(entry)
        inner_roles: defaultdict[GraphEntry, list[str]] = defaultdict(list)
        for entry in flat.entries:
            if entry.box:
                inner_roles[entry.box].append(entry.role)
        for box, roles in inner_roles.items():
            box.role = max(("update", "backward", "forward"), key=roles.count)

    def _assign_layers(self, flat: FlatGraph) -> None:
        """Give nodes made outside of modules the layer of the only parameter that they update."""
        names = {e.node.name for e in flat.entries if e.kind == "parameter"}
        layers = {e.node.source.layer for e in flat.entries}
        updated: defaultdict[GraphEntry, set[str]] = defaultdict(set)
        for parameter, entry in zip(self.changes, flat.outputs[self.results :], strict=True):
            updated[entry].add(layer_of(parameter.name, names, layers))
        for entry in reversed(flat.entries):
            if entry.kind == "parameter":
                self._layers.setdefault(entry.id, layer_of(entry.node.name, names, layers))
            elif entry.role == "update" and entry.kind == "op":
                owners = updated[entry]
                if len(owners) == 1 and not entry.node.source.layer:
                    self._layers.setdefault(entry.id, *owners)
                for x in entry.reads:
                    updated[x] |= owners

    def _record(self, entry: GraphEntry) -> VertexRecord:
        node, source, has_line = entry.node, entry.node.source, entry.kind in ("op", "box")
        name = node.name if entry.kind in ("op", "box", "parameter", "input") else str(node.op)
        text = entry.key[1]
        return VertexRecord(
            id=entry.id,
            name=name,
            kind=entry.kind,
            results=tuple(map(str, node.specs)),
            reads=_ids(entry.reads),
            text=text if text != name and entry.kind == "op" else "",
            line=f"{source.file.removeprefix(self._folder)}:{source.line}" if has_line else "",
            layer=self._layers.get(entry.id, node.source.layer),
            role=entry.role,
            order=node.order[0],
            box=_box(entry),
        )


def layer_of(name: str, names: set[str], layers: set[str]) -> str:
    """Return the layer of a parameter, or of an optimizer's state for a parameter.

    names   of all parameters: the state of "conv1.weight" is "adam.exp_avg.conv1.weight"
    layers  of all nodes
    """
    if name.rpartition(".")[0] in layers:
        return name.rpartition(".")[0]
    parts = name.split(".")
    owners = (".".join(parts[i:]) for i in range(1, len(parts)))
    return next((owner for owner in owners if owner in names), name).rpartition(".")[0]


def _ids(entries: Sequence[GraphEntry]) -> tuple[int, ...]:
    return tuple([entry.id for entry in entries])


def _box(entry: GraphEntry) -> int:
    return entry.box.id if entry.box else 0


def _removed(
    before: FlatGraph, after: FlatGraph, added: Sequence[GraphEntry]
) -> tuple[Removed, ...]:
    """Return the entries that a pass removed, each with the ids of its replacements."""
    new = {entry.id: entry for entry in after.entries}
    by_order: defaultdict[int, list[GraphEntry]] = defaultdict(list)
    for entry in added:
        if entry.kind != "constant" or entry.node.order[0] >= 0:
            by_order[entry.node.order[0]].append(entry)
    replacements_of: dict[GraphEntry, set[int]] = defaultdict(set)
    readers: defaultdict[GraphEntry, list[GraphEntry]] = defaultdict(list)
    for y, z in zip(before.outputs, after.outputs, strict=True):
        replacements_of[y].add(z.id)
    records = []
    for entry in reversed(before.entries):  # readers before their operands
        successor = new.get(entry.id)
        for i, x in enumerate(entry.reads):
            if successor is None:
                readers[x].append(entry)
            elif len(successor.reads) == len(entry.reads) and entry.kind != "box":
                replacements_of[x].add(successor.reads[i].id)
        if successor is None:
            replacements = replacements_of[entry]
            new_nodes = by_order[entry.node.order[0]]
            same_op = [e for e in new_nodes if e.node.op.name == entry.node.op.name]
            replacements.update(e.id for e in same_op or (() if replacements else new_nodes))
            if not replacements:
                for reader in readers[entry][:MAX_READERS]:
                    replacements |= replacements_of[reader]
            records.append(Removed(entry.id, tuple(sorted(replacements))))
    return tuple(reversed(records))


def _stops(
    record: PassRecord | None, before: Iterable[GraphEntry], after: Container[int] | None = None
) -> tuple[tuple[int, int], ...]:
    """Return the pairs of neighbours that a pass did not fuse, by id: 0 for a removed node."""
    ids = {(e.node.order[0], e.node.op.name): e.id for e in before if e.kind != "box"}

    def id_of(order: int, name: str) -> int:
        id = ids.get((order, name), 0)
        return id if after is None or id in after else 0

    stops = ((*stop.orders, stop) for stop in (record.stops if record else ()))
    return tuple((id_of(a, stop.producer), id_of(b, stop.consumer)) for a, b, stop in stops)
