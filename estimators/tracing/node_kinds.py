"""What the nodes of a user's traced module do, by their names.

A function, a tensor's method and a module of torch that do the same have one name in
``node_kinds.toml``, and names that cost the same one kind. What has no kind is refused:
nothing is priced by a guess.
"""

import operator
from collections.abc import Mapping, Sequence
from importlib import resources

import tomli
from torch import Tensor, fx, nn

from estimators.tracing.shaped_tracer import value_of
from topologies.errors import InputError

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
