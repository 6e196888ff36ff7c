"""LangGraph's graphs: calling one is inference if one of its nodes runs inference, or if it is not known what a node does.

The nodes are known from `add_node`, in the file that makes the graph; where that is not known, all graphs of the project count.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from hangup.lint.names import Key, Names
from hangup.lint.value import Value

GRAPH_VERBS = frozenset("invoke ainvoke stream astream astream_events astream_log batch abatch".split())
MANY_FUNCTIONS = 300  # below a node, above which it is taken for one that runs inference
_CLASSES = frozenset({"StateGraph", "MessageGraph", "Graph", "CompiledStateGraph", "CompiledGraph", "Pregel"})
_NAMED = re.compile(r"graph|workflow", re.I)
_TOOLS = "ToolNode"  # runs tools, not a model


class Graphs:
    def __init__(self, names: Names, running: Container[Key]) -> None:
        """`running` are the functions that run inference, as far as is known."""
        self.names = names
        self.running = running

    def may_be_graph(self, key: Key, ref: str) -> bool:
        """Return whether a call such as `graph.ainvoke` is one of a graph: by what made the receiver, else by its name."""
        receiver, _, verb = ref.rpartition(".")
        if not receiver or verb not in GRAPH_VERBS:
            return False
        value = self.names.find(*key, receiver)
        if value is None or (value.kind == "made" and not value.name.startswith("langgraph.")):
            return _NAMED.search(receiver.rpartition(".")[2]) is not None
        return _is_graph(value)

    def runs_model(self, key: Key, ref: str) -> bool:
        """Return whether a node of the called graph runs inference, as far as is known by now."""
        value = self.names.find(*key, ref.rpartition(".")[0])
        own = list(self._nodes(value.path)) if value is not None and value.path else []
        if not own:
            self.names.source.read_users("add_node", method=True)
        nodes = own or [node for path in sorted(self.names.files) for node in self._nodes(path)]
        return not nodes or any(self._node_runs(builder, target) for builder, target in nodes)

    def _nodes(self, path: str) -> Iterator[tuple[Key, str]]:
        facts = self.names.files.get(path)
        for number, function in enumerate(facts.functions if facts is not None else ()):
            for spawn in function.spawns:
                if spawn.kind == "node":
                    yield (path, number), spawn.target

    def _node_runs(self, builder: Key, target: str) -> bool:
        if target.startswith("#"):
            return self._may_run([(builder[0], int(target[1:]))])
        if target.rpartition(".")[2] == f"{_TOOLS}()" or self.names.is_harmless(builder[0], target):
            return False
        value = self.names.find(*builder, target)
        if value is not None and value.kind == "made":
            return _TOOLS not in value.name and not _is_graph(value)  # another graph counts where it is called
        found = self.names.callees(*builder, target)
        return not found or self._may_run(found)

    def _may_run(self, functions: list[Key]) -> bool:
        """Return whether one of these functions, or what they call, runs inference, or they are too many to tell."""
        seen, todo = set(functions), list(functions)
        while todo:
            key = todo.pop()
            if key in self.running or len(seen) > MANY_FUNCTIONS:
                return True
            found = self.names.inside(key)
            for call in self.names.function(key).calls:
                found += self.names.callees(*key, call.ref)
            todo += [k for k in found if k not in seen]
            seen.update(found)
        return False


def _is_graph(value: Value) -> bool:
    parts = value.name.split(".")
    return value.kind == "made" and parts[0] == "langgraph" and not _CLASSES.isdisjoint(parts)
