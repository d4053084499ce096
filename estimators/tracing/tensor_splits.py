"""Which linear layers of a user's block a tensor-parallel group can split.

Two patterns are known, those of Megatron-LM [1]_. *Attention*: linear layers of one
input make queries, keys and values, which reach the attention core by views, rotary
embeddings, norms and repeats alone; its result goes to one linear layer.
*Feed-forward*: linear layers of one input, elementwise functions, one linear layer. The
first ones are column parallel, the last one is row parallel. Whatever fits neither is
computed whole by every rank; attention that does not fit keeps the model whole.

References
----------
.. [1] Shoeybi et al., "Megatron-LM", 2019, section 3.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, fx, nn

from estimators.tracing.user_nodes import (
    ModulePart,
    has_parameter,
    kind_of,
    live_inputs,
    path_of,
    value_of,
)

_SCORES = frozenset({"multiply", "add", "view", "dropout"})
"""Kinds of what may stand between the products of attention, beside the softmax."""

_TO_HEADS = frozenset(
    {"view", "part", "parts", "join", "multiply", "add", "repeat", "norm"}
)
"""Kinds of what may stand between projections and the attention core."""

_INNER = frozenset(
    {"activation", "function", "multiply", "add", "dropout", "part", "parts", "view"}
)
"""Kinds of what may stand between the linear layers of a feed-forward layer."""

_IN_NORM = frozenset({"view", "add", "multiply", "activation", "function", "reduction"})


class WrittenNorm(NamedTuple):
    """A norm that a module of the user writes out."""

    nodes: tuple[fx.Node, ...]
    """What it computes, in the order of execution."""

    entering: fx.Node
    """What is normalised."""


class Core(NamedTuple):
    """The attention core: fused, or two products with a softmax between them."""

    nodes: tuple[fx.Node, ...]
    """What it computes, in the order of execution; one node if it is fused."""

    sources: tuple[fx.Node, fx.Node, fx.Node]
    """Queries, keys and values."""

    is_fused: bool
    """Whether it is one kernel."""

    is_causal: bool
    """Whether it hides later tokens: by ``is_causal``, or by a mask in what is written
    out."""


class AttentionSplit(NamedTuple):
    """Attention that a tensor-parallel group can split."""

    core: Core
    """Attention core."""

    projections: tuple[fx.Node, ...]
    """Linear layers of queries, keys and values: three, or one of all of them, or one
    of queries and one of the others."""

    roles: Mapping[fx.Node, frozenset[int]]
    """Node between projections and core -> which of queries (0), keys (1) and values
    (2) it leads to."""

    out: fx.Node
    """Linear layer of the result."""

    heads: int
    """Heads of queries."""

    groups: int
    """Heads of keys and of values."""


class InnerSplit(NamedTuple):
    """A feed-forward layer that a tensor-parallel group can split."""

    columns: tuple[fx.Node, ...]
    """First linear layers."""

    row: fx.Node
    """Last linear layer."""

    is_gated: bool
    """Whether a half of the inner activations multiplies the other."""


class Splits(NamedTuple):
    """What can be split of a block."""

    norms: tuple[WrittenNorm, ...]
    """Norms that are written out."""

    cores: tuple[Core, ...]
    """All attention cores."""

    attention: tuple[AttentionSplit, ...]
    """Those that can be split."""

    inner: tuple[InnerSplit, ...]
    """Feed-forward layers that can be split."""

    whole: tuple[str, ...]
    """Paths of linear layers that every rank computes whole."""

    products: tuple[str, ...]
    """Paths of products of two activations that are no attention."""

    problem: str
    """Why nothing of the model is split; empty if it is."""


def find_splits(part: ModulePart, root: nn.Module) -> Splits:
    """Return what a tensor-parallel group can split of a block."""
    return _Finder(
        part, root, frozenset(part.nodes), written_norms(part, root)
    ).splits()


def written_norms(part: ModulePart, root: nn.Module) -> tuple[WrittenNorm, ...]:
    """Return the norms that modules of the user write out.

    Such a module has no module inside, divides by a root of what it reduces over the
    last dimension, and returns what is like its input. It counts as one operator, as it
    would in a framework.
    """
    groups: dict[str, list[fx.Node]] = {}
    for node in part.nodes:
        stack = list(node.meta.get("nn_module_stack", {}))
        if node.op != "call_module" and stack:
            groups.setdefault(stack[-1], []).append(node)
    norms = []
    for path, nodes in groups.items():
        module = root.get_submodule(path.partition("@")[0])
        kinds = {kind_of(node, root) for node in nodes}
        if next(module.children(), None) is not None or not kinds <= _IN_NORM:
            continue
        inside, live = set(nodes), frozenset(part.nodes) | {part.entering}
        entering = {n for node in nodes for n in live_inputs(node, live)} - inside
        if "reduction" not in kinds or not _has_root(nodes) or len(entering) != 1:
            continue
        (source,) = entering
        if value_of(source).shape == value_of(nodes[-1]).shape:
            norms.append(WrittenNorm(tuple(nodes), source))
    return tuple(norms)


def _has_root(nodes: Sequence[fx.Node]) -> bool:
    names = {str(getattr(node.target, "__name__", node.target)) for node in nodes}
    powers = [node.args[1] for node in nodes if len(node.args) > 1]
    return bool(names & {"rsqrt", "sqrt"}) or -0.5 in powers or 0.5 in powers


class _Finder(NamedTuple):
    """Looks through one block."""

    part: ModulePart
    """Block."""
    root: nn.Module
    """Module that paths start at."""
    own: frozenset[fx.Node]
    """Nodes of the block."""
    norms: tuple[WrittenNorm, ...]
    """Norms that are written out."""

    def splits(self) -> Splits:
        """Return what can be split."""
        cores = tuple(self._cores())
        candidates = [(core, self._attention(core)) for core in cores]
        attention = tuple(split for _, split in candidates if split is not None)
        taken = {n for one in attention for n in (*one.projections, one.out)}
        inner: list[InnerSplit] = []
        for node in self.part.nodes:
            split = self._inner(node, taken)
            if split is not None:
                inner.append(split)
                taken |= {*split.columns, split.row}
        inside = {node for core in cores for node in core.nodes}
        products = {"linear", "matmul"}
        left = [
            node
            for node in self.part.nodes
            if self._kind(node) in products and node not in taken | inside
        ]
        return Splits(
            norms=self.norms,
            cores=cores,
            attention=attention,
            inner=tuple(inner),
            whole=tuple(dict.fromkeys(path_of(node) for node in left)),
            products=tuple(path_of(n) for n in left if self._is_of_two(n)),
            problem=self._problem(candidates, [n for n in left if self._is_of_two(n)]),
        )

    def _problem(
        self,
        candidates: Sequence[tuple[Core, AttentionSplit | None]],
        products: Sequence[fx.Node],
    ) -> str:
        for core, split in candidates:
            if split is None:
                where = path_of(core.nodes[0])
                return (
                    f"the attention in {where} does not stand between linear layers "
                    "that can be split"
                )
        if products:
            where = path_of(products[0])
            return f"the product of two activations in {where} is no attention"
        return ""

    def _kind(self, node: fx.Node) -> str:
        return kind_of(node, self.root)

    def _live(self, node: fx.Node) -> list[fx.Node]:
        """Return what a node reads of the block, and the hidden states that enter."""
        entering = self.part.entering
        return [n for n in node.all_input_nodes if n in self.own or n is entering]

    def _is_of_two(self, node: fx.Node) -> bool:
        return self._kind(node) == "matmul" and len(self._live(node)) > 1

    def _cores(self) -> list[Core]:
        cores = []
        for node in self.part.nodes:
            core = None
            if self._kind(node) == "attention":
                names = ("query", "key", "value")
                given = dict(zip(names, node.args, strict=False)) | node.kwargs
                query, key, value = (given[name] for name in names)
                causal = node.kwargs.get("is_causal", (*node.args, *_NO_ARGS)[5])
                core = Core((node,), (query, key, value), True, bool(causal))  # type: ignore[arg-type]  # nodes
            elif self._kind(node) == "softmax":
                core = self._written_core(node)
            if core is not None:
                cores.append(core)
        return cores

    def _written_core(self, softmax: fx.Node) -> Core | None:
        before, first = self._only(softmax, backward=True)
        behind, second = self._only(softmax, backward=False)
        if (
            first is None
            or second is None
            or second.args[0] is not (behind or [softmax])[-1]
        ):
            return None
        query, key = first.args[:2]
        masks = [node for node in before if self._is_mask(node)]
        nodes = (first, *reversed(before), softmax, *behind, second)
        return Core(nodes, (query, key, second.args[1]), False, bool(masks))  # type: ignore[arg-type]  # nodes

    def _is_mask(self, node: fx.Node) -> bool:
        """Return whether a sum hides scores: with a constant that is not learned."""
        constants = [
            source for source in node.all_input_nodes if source not in self.own
        ]
        return self._kind(node) == "add" and any(
            not has_parameter(constant) for constant in constants
        )

    def _only(
        self, node: fx.Node, *, backward: bool
    ) -> tuple[list[fx.Node], fx.Node | None]:
        """Return what leads to the next product of two activations, and it."""
        passed: list[fx.Node] = []
        while True:
            nodes = self._live(node) if backward else list(node.users)
            if len(nodes) != 1:
                return passed, None
            (node,) = nodes
            if self._is_of_two(node):
                return passed, node
            if self._kind(node) not in _SCORES or node not in self.own:
                return passed, None
            passed.append(node)

    def _attention(self, core: Core) -> AttentionSplit | None:
        """Return the split of an attention; None if it is none that can be split."""
        roles: dict[fx.Node, frozenset[int]] = {}
        ends: list[list[fx.Node]] = []
        for role, source in enumerate(core.sources):
            passed = self._back(source, _TO_HEADS)
            if passed is None:
                return None
            ends.append(passed[1])
            for node in passed[0]:
                roles[node] = roles.get(node, frozenset()) | {role}
        projections = tuple(dict.fromkeys(node for nodes in ends for node in nodes))
        out = self._out(core.nodes[-1])
        inside = {*roles, *core.nodes}
        if (
            out is None
            or any(len(nodes) != 1 for nodes in ends)
            or (ends[1] != ends[2] and ends[0] in ends[1:])
            or not self._is_closed((*projections, *roles), inside)
        ):
            return None
        sizes = _head_counts(core, ends)
        if sizes is None:
            return None
        return AttentionSplit(core, projections, roles, out, *sizes)

    def _inner(self, row: fx.Node, taken: set[fx.Node]) -> InnerSplit | None:
        if self._kind(row) != "linear" or row in taken:
            return None
        passed = self._back(self._live(row)[0], _INNER)
        if passed is None:
            return None
        nodes, columns = passed
        closed = self._is_closed((*columns, *nodes), {*nodes, row})
        if not columns or taken.intersection(columns) or not closed:
            return None
        gates = [
            node
            for node in nodes
            if self._kind(node) == "multiply" and len(self._live(node)) > 1
        ]
        return InnerSplit(tuple(columns), row, bool(gates))

    def _back(
        self, source: fx.Node, kinds: frozenset[str]
    ) -> tuple[list[fx.Node], list[fx.Node]] | None:
        """Return what leads to a node from linear layers, and those; None if others."""
        in_norms = {node for norm in self.norms for node in norm.nodes}
        passed: dict[fx.Node, None] = {}
        ends: dict[fx.Node, None] = {}
        waiting = [source]
        while waiting:
            node = waiting.pop()
            if node in passed or node in ends:
                continue
            if node not in self.own:
                return None
            if self._kind(node) == "linear":
                ends[node] = None
                continue
            allowed = "norm" in kinds if node in in_norms else self._kind(node) in kinds
            if not allowed:
                return None
            passed[node] = None
            waiting += reversed(self._live(node))
        order = {node: place for place, node in enumerate(self.part.nodes)}
        return sorted(passed, key=order.__getitem__), sorted(
            ends, key=order.__getitem__
        )

    def _is_closed(self, nodes: Sequence[fx.Node], inside: set[fx.Node]) -> bool:
        """Return whether nothing else reads some nodes, and they read one input."""
        linear = [node for node in nodes if self._kind(node) == "linear"]
        return len({self._live(node)[0] for node in linear}) == 1 and all(
            user in inside for node in nodes for user in node.users
        )

    def _out(self, node: fx.Node) -> fx.Node | None:
        """Return the linear layer that a core's result goes to, and nothing else."""
        while len(node.users) == 1:
            (node,) = node.users
            if self._kind(node) == "linear":
                return node
            if self._kind(node) != "view":
                return None
        return None


_NO_ARGS = (None,) * 6
"""Arguments of fused attention that are not given."""


def _head_counts(
    core: Core, ends: Sequence[Sequence[fx.Node]]
) -> tuple[int, int] | None:
    """Return the heads of queries and of keys; None if they are no whole numbers."""
    query, key, value = (value_of(source) for source in core.sources)
    if not core.is_fused:
        key = key.transpose(-1, -2)
    if any(projection.dim() != 4 for projection in (query, key, value)):
        return None
    heads, width = query.shape[-3], query.shape[-1]
    queries, keys, values = (_out_features(nodes[0]) for nodes in ends)
    if ends[1] == ends[2]:
        if value.shape[-1] != width:
            return None
        keys -= heads * width if ends[0] == ends[1] else 0
        keys, values = keys // 2, keys // 2
    groups = keys // width
    fits = groups > 0 and heads % groups == 0
    fits = fits and groups * width == keys and groups * value.shape[-1] == values
    fits = fits and (ends[0] == ends[1] or queries == heads * width)
    return (heads, groups) if fits else None


def _out_features(linear: fx.Node) -> int:
    result = value_of(linear)
    assert isinstance(result, Tensor), "a linear layer has one result"
    return int(result.shape[-1])
