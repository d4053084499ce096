"""Trace a user's module by torch.fx, on tensors that know their shapes.

Plain symbolic tracing stops where code looks at a shape (``b, t = ids.shape``, ``assert
t <= self.longest``). Here every traced tensor carries its value on the meta device,
which has a shape and no numbers, so that code may do so; what depends on the numbers
themselves still cannot be traced.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

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
    losses = [one for one in results if value_of(one).dim() == 0]
    output.args = (losses[0] if losses else results[0] if results else None,)
    for node in reversed(list(graph.nodes)):
        if node.op not in {"placeholder", "output"} and not node.users:
            graph.erase_node(node)


class _ShapedProxy(fx.Proxy):
    """A traced tensor that knows its shape."""

    def __getattr__(self, k: str) -> Any:
        """Return what is known without numbers, else trace it."""
        found = getattr(value_of(self.node), k)
        if isinstance(found, Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, k), {})
        return super().__getattr__(k) if callable(found) else found

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
        return any(_has_tensor(one) for one in value)
    return isinstance(value, Tensor)
