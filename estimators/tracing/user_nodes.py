"""A user's module as nodes with shapes, kinds, and the chain of its blocks.

Plain symbolic tracing stops where code looks at a shape (``b, t = ids.shape``, ``assert
t <= self.longest``). Here every traced tensor carries its value on the meta device,
which has a shape and no numbers, so that code may do so; what depends on the numbers
themselves still cannot be traced.

What the nodes of a user's traced module do, by their names.

A function, a tensor's method and a module of torch that do the same have one name in
``node_kinds.toml``, and names that cost the same one kind. What has no kind is refused:
nothing is priced by a guess.

Find the chain of a user's traced module: embedding, repeated blocks, head.

The blocks are the members of that `nn.ModuleList` or `nn.Sequential` which hold most of
the operators, and each of which takes the result of the one before, and nothing else.
What comes before them is the embedding, what follows them the head.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import tomli
import torch
from torch import Tensor, fx, nn

from topologies.errors import InputError

VALUE = "value"
"""Key of a node's `meta` at which its value on the meta device stands."""

ROOT = "model"
"""Path of the user's module in what is traced."""


class ShapedTrace(NamedTuple):
    """One forward pass of a module."""

    graph: fx.Graph
    """What is called; each node has its value on the meta device in ``meta["value"]``.
    Nodes that the result does not depend on are left out."""

    root: nn.Module
    """Module that paths start at."""


class _OfTokens(nn.Module):
    """Calls a model with token ids, and leaves what has a default at that."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Any) -> Any:
        """Return what the model returns."""
        return self.model(tokens)


class _OfTokensAndLabels(_OfTokens):
    """Calls a model with token ids, and with the ids that follow them."""

    def forward(self, tokens: Any, labels: Any) -> Any:  # type: ignore[override]  # one input more
        """Return what the model returns."""
        return self.model(tokens, labels)


def trace_shapes(
    model: nn.Module, sequence_length: int, *, labels: bool
) -> ShapedTrace:
    """Return what one forward pass calls.

    Parameters
    ----------
    model
        On the meta device.
    sequence_length
        Tokens of the one sequence that it is called with.
    labels
        Whether it is called with labels, too.
    """
    ids = torch.zeros(1, sequence_length, dtype=torch.long, device="meta")
    root = _OfTokensAndLabels(model) if labels else _OfTokens(model)
    tracer = _ShapedTracer({"tokens": ids, "labels": ids})
    with torch.device("meta"), torch.no_grad():
        graph = tracer.trace(root)
    _keep_results(graph)
    return ShapedTrace(graph, root)


def value_of(node: fx.Node) -> Any:
    """Return what a node results in, on the meta device."""
    return node.meta.get(VALUE)


def _keep_results(graph: fx.Graph) -> None:
    """Let a graph result in the loss, or in the logits where there is none."""
    output = next(node for node in graph.nodes if node.op == "output")
    results = output.all_input_nodes
    losses = [result for result in results if value_of(result).dim() == 0]
    output.args = (losses[0] if losses else results[0] if results else None,)
    for node in reversed(list(graph.nodes)):
        if node.op not in {"placeholder", "output"} and not node.users:
            graph.erase_node(node)


class _ShapedProxy(fx.Proxy):
    """A traced tensor that knows its shape."""

    def __getattr__(self, k: str) -> Any:
        """Return what is known without numbers, else trace it."""
        attribute = getattr(value_of(self.node), k)
        if isinstance(attribute, Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, k), {})
        return super().__getattr__(k) if callable(attribute) else attribute

    def __len__(self) -> int:
        """Return the length, which is part of the shape."""
        return len(value_of(self.node))

    def __iter__(self) -> Iterator[Any]:
        """Go through several results, or the rows of one."""
        return iter(
            [
                self.tracer.create_proxy(
                    "call_function", operator.getitem, (self, place), {}
                )
                for place in range(len(self))
            ]
        )


class _ShapedTracer(fx.Tracer):
    """Runs each node on the meta device as soon as it is traced."""

    def __init__(self, given: dict[str, Tensor]) -> None:
        super().__init__()
        self._given = given
        self._evaluating = False

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return what the traced code holds for a node."""
        return _ShapedProxy(node, self)

    def create_proxy(self, *args: Any, **kwargs: Any) -> Any:
        """Trace a node; return the plain value where it results in no tensor."""
        proxy = super().create_proxy(*args, **kwargs)
        node = proxy.node
        node.meta[VALUE] = value = self._value(node)
        if _has_tensor(value):
            return proxy
        self.graph.erase_node(node)
        return value

    def getattr(
        self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]
    ) -> Any:
        """Let modules that run on the meta device have their parameters as they are."""
        if self._evaluating:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Trace the call of a module, unless it is running on the meta device."""
        if self._evaluating:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._given[str(node.target)]
        args = fx.map_arg(node.args, self._operand)
        kwargs = fx.map_arg(node.kwargs, self._operand)
        self._evaluating = True
        try:
            return self._result(node, args, kwargs)
        finally:
            self._evaluating = False

    def _result(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if node.op == "get_attr":
            return _attribute(self.root, target)
        if node.op == "call_module":
            return self.root.get_submodule(target)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _operand(self, node: fx.Node) -> Any:
        # Constants that the code made are nodes of their own, without being traced.
        if VALUE not in node.meta:
            node.meta[VALUE] = self._value(node)
        return node.meta[VALUE]


def _attribute(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name)
    return root


def _has_tensor(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_has_tensor(item) for item in value)
    return isinstance(value, Tensor)


_FILE = resources.files("estimators") / "tracing" / "node_kinds.toml"
_TABLES = tomli.loads(_FILE.read_text(encoding="utf-8"))

_MODULES: Mapping[type[nn.Module], str] = {
    getattr(nn, module): name for module, name in _TABLES["modules"].items()
}
"""Module of torch -> name of the function that does the same."""

_KINDS: Mapping[str, str] = {
    name: kind for kind, names in _TABLES["kinds"].items() for name in names
}
"""Name of a function -> its kind."""


def kind_of(node: fx.Node, root: nn.Module) -> str:
    """Return the kind of a node that is a call; "" if it has none."""
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        return _KINDS.get(_MODULES.get(type(module), ""), "")
    if node.op == "call_method":
        return _KINDS.get(_plain(str(node.target)), "")
    if node.target is operator.getitem:
        return "part"
    return _KINDS.get(_plain(getattr(node.target, "__name__", "")), "")


def _plain(name: str) -> str:
    """Return a name without what marks operators in place or from the right."""
    name = name.strip("_")
    if name in _KINDS or name[:1] not in {"i", "r"}:
        return name
    return name[1:]


def shown_target(node: fx.Node, root: nn.Module) -> str:
    """Return what a node calls, as users wrote it, and where."""
    where = path_of(node)
    if node.op == "call_module":
        kind = type(root.get_submodule(str(node.target))).__name__
        return f"{kind} at {where}"
    name = node.target if isinstance(node.target, str) else ""
    called = name or getattr(node.target, "__name__", str(node.target))
    return f"{called} in {where or 'the model'}"


def path_of(node: fx.Node) -> str:
    """Return the path of the innermost module that a node belongs to."""
    stack = list(node.meta.get("nn_module_stack", {}))
    path = str(node.target) if node.op == "call_module" else (stack or [""])[-1]
    return path.partition("@")[0].removeprefix("model").removeprefix(".")


def live_inputs(node: fx.Node, live: frozenset[fx.Node | None]) -> list[fx.Node]:
    """Return the nodes that a node reads and that depend on what the model is given."""
    return [source for source in node.all_input_nodes if source in live]


def live_nodes(graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the nodes that depend on what the model is given; others are constants."""
    live: set[fx.Node] = set()
    for node in graph.nodes:
        given = node.op == "placeholder"
        if given or (node.op != "output" and live.intersection(node.all_input_nodes)):
            live.add(node)
    return frozenset(live)


def is_counted(node: fx.Node) -> bool:
    """Return whether a node results in numbers of activations, not in ids or masks."""
    value = value_of(node)
    first = value[0] if isinstance(value, tuple | list) else value
    return isinstance(first, Tensor) and (
        first.is_floating_point() or first.is_complex()
    )


def has_parameter(node: fx.Node) -> bool:
    """Return whether a constant is a parameter, or made of one."""
    if node.op == "get_attr":
        return isinstance(value_of(node), nn.Parameter)
    if node.op == "call_module":
        return True
    return node.op != "placeholder" and any(map(has_parameter, node.all_input_nodes))


def refuse_unknown(
    nodes: Sequence[fx.Node], root: nn.Module, live: frozenset[fx.Node]
) -> None:
    """Refuse operators that have no kind, and those that are none of it.

    Raises
    ------
    InputError
        If there are any.
    """
    for node in nodes:
        kind = kind_of(node, root)
        if not kind:
            raise _no_price("uses an operator that has no price", node, root)
        if kind == "reduction" and not _is_over_channels(node):
            problem = "reduces over another dimension than the last"
            raise _no_price(problem, node, root)
        if kind == "matmul" and not _has_plain_weight(node, live):
            problem = "multiplies activations by a weight that is not a matrix behind"
            raise _no_price(f"{problem} them", node, root)


def refuse_mixing(
    nodes: Sequence[fx.Node], root: nn.Module, sequence_length: int
) -> None:
    """Refuse linear layers that mix tokens: ranks may have a part of them each.

    Raises
    ------
    InputError
        If there are any.
    """
    for node in nodes:
        if kind_of(node, root) != "linear":
            continue
        shape = value_of(node.all_input_nodes[0]).shape[:-1]
        if sequence_length not in shape:
            raise _no_price("has a linear layer that mixes tokens", node, root)


def _no_price(problem: str, node: fx.Node, root: nn.Module) -> InputError:
    return InputError(
        f"the model {problem}",
        got=shown_target(node, root),
        expected="nn.Linear, nn.Embedding, norms, activations, dropout, elementwise "
        "functions, matmul and scaled_dot_product_attention",
    )


def _has_plain_weight(node: fx.Node, live: frozenset[fx.Node]) -> bool:
    """Return whether a product is one of two activations, or with a matrix behind."""
    if len(live_inputs(node, live)) > 1 or len(node.all_input_nodes) == 1:
        return True
    source, weight = node.all_input_nodes
    return source in live and bool(value_of(weight).dim() == 2)


def _is_over_channels(node: fx.Node) -> bool:
    """Return whether a reduction keeps every token's sum to itself."""
    (source, *_), result = node.all_input_nodes, value_of(node)
    before = value_of(source).shape
    kept = result.shape[:-1] if result.dim() == len(before) else result.shape
    return bool(result.dim() > 0) and tuple(kept) == tuple(before[:-1])


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
        lists.sort(
            key=lambda path_and_members: (
                -sum(len(member.nodes) for member in path_and_members[1])
            )
        )
        for path, members in lists:
            if isinstance(self.root.get_submodule(path), nn.Sequential):
                run = self._longest_run(members)
                if len(run) > 1:
                    return run
            else:
                return self._checked_run(members)
        listed = ", ".join(path.removeprefix(f"{ROOT}.") for path, _ in lists)
        raise _no_chain("has no repeated blocks", listed or "no list of called modules")

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
            _Member(name, tuple(of_member))
            for name, of_member in nodes.items()
            if any(kind_of(node, self.root) in _BLOCK for node in of_member)
        ]

    def _part(self, member: _Member) -> ModulePart:
        """Return a block.

        Raises
        ------
        InputError
            If it takes or returns more than one tensor, or another shape.
        """
        inside, path = set(member.nodes), member.path.removeprefix(f"{ROOT}.")
        if any(f"{member.path}@" in name for n in inside for name in _modules(n)):
            raise _no_chain("calls a block more than once", path)
        read = dict.fromkeys(
            source
            for node in member.nodes
            for source in live_inputs(node, self.live)
            if source not in inside
        )
        (entering, *others), names = (
            read,
            ", ".join(shown_target(node, self.root) for node in read),
        )
        if others or not is_counted(entering):
            raise _no_chain(_SKIPS, f"{path} takes the results of {names}")
        leaving = [
            n for n in member.nodes if any(user not in inside for user in n.users)
        ]
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
