"""Find the chain of a user's traced module: embedding, repeated blocks, head.

The blocks are the members of that `nn.ModuleList` or `nn.Sequential` which hold most of
the operators, and each of which takes the result of the one before, and nothing else.
What comes before them is the embedding, what follows them the head.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import fx, nn

from estimators.tracing.node_kinds import (
    is_counted,
    kind_of,
    live_inputs,
    live_nodes,
    shown_target,
)
from estimators.tracing.shaped_tracer import ROOT, value_of
from topologies.errors import InputError

_CHAIN = (
    "an nn.ModuleList or nn.Sequential of at least two blocks with linear layers, each "
    "called once, with the result of the one before alone"
)


_BLOCK = frozenset({"linear", "matmul", ""})
_SKIPS = "has a tensor that skips over blocks, or is changed between them"


class ModulePart(NamedTuple):
    """One layer of the chain."""

    path: str
    """Path of the block's module; empty for what stands around the blocks."""

    nodes: tuple[fx.Node, ...]
    """Calls that depend on what the model is given, in the order of execution."""

    entering: fx.Node | None
    """Node of the hidden states that enter; None for the first layer."""

    leaving: fx.Node
    """Node of the result."""


class ModuleChain(NamedTuple):
    """A model in parts."""

    embedding: ModulePart
    """What stands before the blocks."""
    blocks: tuple[ModulePart, ...]
    """Repeated blocks."""
    head: ModulePart
    """What follows the blocks."""
    live: frozenset[fx.Node]
    """Nodes that depend on what the model is given; others are constants."""


def split_chain(graph: fx.Graph, root: nn.Module) -> ModuleChain:
    """Split a traced model.

    Raises
    ------
    InputError
        If it is no chain of blocks.
    """
    live = live_nodes(graph)
    calls = [n for n in graph.nodes if n in live and n.op.startswith("call")]
    blocks = _Calls(calls, live, root).blocks()
    inside = {node for block in blocks for node in block.nodes}
    first, last = (calls.index(blocks[end].nodes[end]) for end in (0, -1))
    before, after = calls[:first], calls[last + 1 :]
    for node in calls[first:last]:
        if node not in inside:
            raise _no_chain(
                "has operators between its blocks", shown_target(node, root)
            )
    for node in before:
        if any(user in set(after) for user in node.users):
            raise _no_chain(_SKIPS, shown_target(node, root))
    entering, leaving = blocks[0].entering, blocks[-1].leaving
    assert entering is not None, "every block takes hidden states"
    (output,) = (node for node in graph.nodes if node.op == "output")
    if output.all_input_nodes != [leaving] and not after:
        raise _no_chain("returns no tensor that its blocks lead to", str(output.args))
    return ModuleChain(
        ModulePart("", tuple(before), None, entering),
        tuple(blocks),
        ModulePart("", tuple(after), leaving, output.all_input_nodes[0]),
        live,
    )


def _no_chain(problem: str, got: str) -> InputError:
    return InputError(f"the model {problem}", got=got, expected=_CHAIN)


class _Member(NamedTuple):
    """A module of a list."""

    path: str
    """Path of the module from the root."""

    nodes: tuple[fx.Node, ...]
    """What it calls."""


class _Calls(NamedTuple):
    """What is called in a model."""

    nodes: Sequence[fx.Node]
    """Calls that depend on what the model is given, in the order of execution."""

    live: frozenset[fx.Node]
    """Everything that depends on what the model is given."""

    root: nn.Module
    """Module that paths start at."""

    def blocks(self) -> list[ModulePart]:
        """Return the blocks."""
        lists = [
            (path, members)
            for path, module in self.root.named_modules()
            if isinstance(module, nn.ModuleList | nn.Sequential)
            for members in [self._members(path, len(module))]
            if len(members) > 1
        ]
        lists.sort(key=lambda one: -sum(len(member.nodes) for member in one[1]))
        for path, members in lists:
            if isinstance(self.root.get_submodule(path), nn.Sequential):
                run = self._longest_run(members)
                if len(run) > 1:
                    return run
            else:
                return self._checked_run(members)
        found = ", ".join(path.removeprefix(f"{ROOT}.") for path, _ in lists)
        raise _no_chain("has no repeated blocks", found or "no list of called modules")

    def _members(self, path: str, count: int) -> list[_Member]:
        """Return those members of a list that have products, in the order of calls.

        What has no price counts as a product here: it is refused by its name later.
        """
        names = {f"{path}.{i}" for i in range(count)}
        nodes: dict[str, list[fx.Node]] = {}
        for node in self.nodes:
            for name in names.intersection(n.partition("@")[0] for n in _modules(node)):
                nodes.setdefault(name, []).append(node)
        return [
            _Member(name, tuple(found))
            for name, found in nodes.items()
            if any(kind_of(node, self.root) in _BLOCK for node in found)
        ]

    def _part(self, member: _Member) -> ModulePart:
        """Return a block.

        Raises
        ------
        InputError
            If it takes or returns more than one tensor, or another shape.
        """
        own, path = set(member.nodes), member.path.removeprefix(f"{ROOT}.")
        if any(f"{member.path}@" in name for n in own for name in _modules(n)):
            raise _no_chain("calls a block more than once", path)
        read = dict.fromkeys(
            source
            for node in member.nodes
            for source in live_inputs(node, self.live)
            if source not in own
        )
        (entering, *others), names = (
            read,
            ", ".join(shown_target(node, self.root) for node in read),
        )
        if others or not is_counted(entering):
            raise _no_chain(_SKIPS, f"{path} takes the results of {names}")
        leaving = [n for n in member.nodes if any(user not in own for user in n.users)]
        if len(leaving) != 1:
            raise _no_chain(_SKIPS, f"{path} has {len(leaving)} results")
        before, after = value_of(entering).shape, value_of(leaving[0]).shape
        if before != after:
            raise _no_chain(
                "has blocks whose results are not like what they take",
                f"{path}: {list(before)} to {list(after)}",
            )
        return ModulePart(path, member.nodes, entering, leaving[0])

    def _longest_run(self, members: Sequence[_Member]) -> list[ModulePart]:
        """Return the longest run of blocks among what is called in a row."""
        best: list[ModulePart] = []
        run: list[ModulePart] = []
        for member in members:
            try:
                part = self._part(member)
            except InputError:
                run = []
                continue
            follows = bool(run) and part.entering is run[-1].leaving
            run = [*run, part] if follows else [part]
            best = max(best, run, key=len)
        return best

    def _checked_run(self, members: Sequence[_Member]) -> list[ModulePart]:
        """Return all members of a list as blocks."""
        run: list[ModulePart] = []
        for member in members:
            part = self._part(member)
            if run and part.entering is not run[-1].leaving:
                assert part.entering is not None, "every block takes hidden states"
                source = shown_target(part.entering, self.root)
                raise _no_chain(_SKIPS, f"{part.path} takes the result of {source}")
            run.append(part)
        return run


def _modules(node: fx.Node) -> list[str]:
    """Return the paths of the modules that a node is called in, outermost first."""
    return list(node.meta.get("nn_module_stack", {}))
