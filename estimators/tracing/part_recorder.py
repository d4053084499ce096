"""Write down what one part of a user's module does, as a traced layer.

Each operator is described by the rule of the library's operator that does the same
(`estimators.tracing.rules`). What frameworks run as one operator counts as one, as in
the library: linear layers side by side of one input, a norm that is written out, the
rotary embeddings of queries and keys, and scale, mask and softmax of attention scores.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from estimators.tracing.graph import TracedLayer, TracedParameter
from estimators.tracing.rules import (
    Tape,
    TracedCall,
    cross_entropy_rule,
    dropout_rule,
    flash_rule,
    linear_rule,
    matmul_rule,
    memory_rule,
)
from estimators.tracing.tensor_splits import AttentionSplit, Core, Splits
from estimators.tracing.user_nodes import (
    ModulePart,
    has_parameter,
    is_counted,
    kind_of,
    path_of,
    value_of,
)

_RULES: Mapping[str, Callable[[TracedCall], None]] = MappingProxyType(
    {
        "add": memory_rule("add"),
        "join": memory_rule("add"),
        "reduction": memory_rule("add"),
        "repeat": memory_rule("repeat"),
        "norm": memory_rule("norm", keeps="inputs"),
        "activation": memory_rule("activation", keeps="inputs"),
        "function": memory_rule("activation", keeps="output"),
        "softmax": memory_rule("softmax", keeps="output"),
        "matmul": matmul_rule,
        "cross entropy": cross_entropy_rule,
    }
)
"""Kind of an operator -> its rule, where nothing else must be known."""

_PARTS = (("query", "tensor"), ("key", "groups"), ("value", "groups"))
"""Name and layout of what each role of a projection makes."""

_ROLES = MappingProxyType({1: ((0, 1, 2),), 2: ((0,), (1, 2)), 3: ((0,), (1,), (2,))})
"""Number of projections -> which of queries, keys and values each of them makes."""


class PartRecorder:
    """Goes through the nodes of one part of a chain.

    Parameters
    ----------
    part, splits, root
        The part, what can be split of it, and the module that paths start at.
    vocab_size
        Rows of the embedding of token ids.
    """

    def __init__(
        self, part: ModulePart, splits: Splits, root: nn.Module, vocab_size: int
    ) -> None:
        self.tape = Tape()
        self.layouts: dict[str, str] = {}
        self.heads_of: dict[str, dict[int, int]] = {}
        self._part, self._splits, self._root = part, splits, root
        self._vocab_size = vocab_size
        self._norms = {node: norm for norm in splits.norms for node in norm.nodes}
        self._columns = {n: split for split in splits.inner for n in split.columns}
        self._rows = {split.row for split in (*splits.inner,)}
        self._rows |= {split.out for split in splits.attention}
        self._attention = {
            n: split for split in splits.attention for n in split.projections
        }
        self._roles = {n: split for split in splits.attention for n in split.roles}
        self._cores = {node: core for core in splits.cores for node in core.nodes}
        self._heads: dict[int, list[int]] = {}
        if part.entering is not None:
            size = value_of(part.entering).numel()
            self.tape.numbers[part.entering] = (
                self.tape.add(size, "sequence", "model"),
            )

    def record(self, *, loss: bool) -> None:
        """Write everything down.

        Parameters
        ----------
        loss
            Whether a cross entropy over the result's last dimension follows.
        """
        for node in self._part.nodes:
            before = len(self.tape.operators)
            if is_counted(node):
                self._record(node)
            self._name(node, before)
        leaving = self._part.leaving
        if loss:
            before = len(self.tape.operators)
            self._apply(
                cross_entropy_rule, leaving, self._numbers(leaving), scalar=True
            )
            self._name(leaving, before)

    def layer(self, parameters: Sequence[tuple[str, str, nn.Parameter]]) -> TracedLayer:
        """Return the layer.

        Parameters
        ----------
        parameters
            Path from the root, name in the layer, and parameter.
        """
        found: list[TracedParameter] = []
        for path, name, parameter in parameters:
            count = parameter.numel()
            widths = self.heads_of.get(path, {})
            for role, width in widths.items():
                part, layout = _PARTS[role]
                full_name = name if len(widths) == 1 else f"{name}.{part}"
                size = count * width // sum(widths.values())
                found.append(TracedParameter(full_name, size, layout))
            if widths:
                continue
            layout = self.layouts.get(path, "whole")
            found.append(TracedParameter(name, count, layout))
        return TracedLayer(
            tensors=tuple(self.tape.tensors),
            parameters=tuple(found),
            operators=tuple(self.tape.operators),
            hidden_input=None if self._part.entering is None else 0,
        )

    def _name(self, node: fx.Node, before: int) -> None:
        """Name what a node wrote down by its place in the layer, and mark the core."""
        path = path_of(node).removeprefix(self._part.path).removeprefix(".")
        core, shared = node in self._cores, node in self._roles
        operators = self.tape.operators
        for place in range(before, len(operators)):
            operator = operators[place]
            name = path if node.op == "call_module" else f"{path}.{operator.operation}"
            operators[place] = operator._replace(
                name=name.lstrip("."),
                core=core or (shared and operator.operation == "repeat"),
            )

    def _record(self, node: fx.Node) -> None:
        kind = kind_of(node, self._root)
        if node in self._norms and node not in self._roles:
            norm = self._norms[node]
            if node is norm.nodes[-1]:
                self._apply(_RULES["norm"], node, self._numbers(norm.entering))
        elif node in self._attention:
            self._project(self._attention[node])
        elif node in self._roles:
            self._to_heads(node, kind, self._roles[node])
        elif node in self._cores:
            self._core(node, kind)
        elif node in self._columns:
            self._column(node)
        elif kind == "linear" or (kind == "matmul" and len(self._inputs(node)) == 1):
            self._linear(node)
        else:
            self._plain(node, kind)

    def _numbers(self, node: fx.Node) -> tuple[int, ...]:
        return self.tape.numbers.get(node, ())

    def _inputs(self, node: fx.Node) -> tuple[int, ...]:
        return tuple(
            n for source in node.all_input_nodes for n in self._numbers(source)
        )

    def _apply(
        self,
        rule: Callable[[TracedCall], None],
        node: fx.Node,
        inputs: tuple[int, ...],
        target: Any = None,
        *,
        scalar: bool = False,
    ) -> None:
        """Describe a node by a rule of the library."""
        value = torch.empty((), device="meta") if scalar else value_of(node)
        results = tuple(value) if isinstance(value, tuple | list) else (value,)
        rule(TracedCall(self.tape, node, target, inputs, results))

    def _set(self, node: fx.Node, numbers: tuple[int, ...]) -> None:
        self.tape.numbers[node] = numbers

    def _plain(self, node: fx.Node, kind: str) -> None:
        """Describe what is split by the layout of its tensors alone."""
        inputs = self._inputs(node)
        recorders = {
            "view": self._view,
            "part": self._take,
            "parts": self._parts,
            "multiply": self._multiply,
            "dropout": self._dropout,
        }
        if kind == "embedding":
            self._embedding(node)
        elif inputs and kind in recorders:
            recorders[kind](node, inputs)
        elif inputs:
            self._apply(_RULES[kind], node, inputs)

    def _multiply(self, node: fx.Node, inputs: tuple[int, ...]) -> None:
        """Keep the inputs, unless the other factor is a constant."""
        keeps = "inputs" if self._has_gradient(node) else ""
        self._apply(memory_rule("multiply", keeps=keeps), node, inputs)

    def _dropout(self, node: fx.Node, inputs: tuple[int, ...]) -> None:
        self._apply(dropout_rule, node, inputs, SimpleNamespace(p=self._chance(node)))

    def _parts(self, node: fx.Node, inputs: tuple[int, ...]) -> None:
        self._set(node, self._new(node, inputs))

    def _new(self, node: fx.Node, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """Return numbers of results that are tensors by themselves."""
        value = value_of(node)
        layout = self.tape.tensors[inputs[0]].layout
        results = value if isinstance(value, tuple | list) else (value,)
        return tuple(
            self.tape.add(result.numel(), layout, "model") for result in results
        )

    def _view(self, node: fx.Node, inputs: tuple[int, ...]) -> None:
        """Share the tensor, unless there is more of it than before."""
        if value_of(node).numel() > self.tape.tensors[inputs[0]].elements:
            self._apply(_RULES["repeat"], node, inputs)
        else:
            self._set(node, inputs[:1])

    def _take(self, node: fx.Node, inputs: tuple[int, ...]) -> None:
        source, place = node.args[0], node.args[1]
        assert isinstance(source, fx.Node), "parts are those of a tensor"
        if isinstance(value_of(source), tuple | list) and isinstance(place, int):
            self._set(node, (inputs[place],))
        elif value_of(node).numel() == value_of(source).numel():
            self._set(node, inputs[:1])
        else:
            self._set(node, self._new(node, inputs[:1]))

    def _has_gradient(self, node: fx.Node) -> bool:
        """Return whether the backward pass of a product needs its inputs.

        That of a product with a constant does not, that of one with a parameter does.
        """
        return len(self._inputs(node)) > 1 or any(
            has_parameter(source) for source in node.all_input_nodes
        )

    def _chance(self, node: fx.Node) -> float:
        if node.op == "call_module":
            module = self._root.get_submodule(str(node.target))
            assert isinstance(module, nn.Dropout), "a dropout"
            return module.p if module.training else 0.0
        given = dict(zip(("input", "p", "training"), node.args, strict=False))
        given = {"p": 0.5, "training": True, **given, **node.kwargs}
        return float(given["p"]) if given["training"] else 0.0  # type: ignore[arg-type]  # a number

    def _embedding(self, node: fx.Node) -> None:
        """Split the embedding of token ids by its rows; count no other's constants."""
        path, weight = self._weight(node)
        split = weight.shape[0] == self._vocab_size
        number = self.tape.add(value_of(node).numel(), "sequence", "model")
        call = TracedCall(self.tape, node, None, (), ())
        call.emit("embedding", (number,), sharding="row" if split else "")
        if split:
            self.layouts[path] = "vocab"

    def _weight(self, node: fx.Node) -> tuple[str, Tensor]:
        """Return the path of a product's weight, and the weight as rows of results."""
        if node.op == "call_module":
            module = self._root.get_submodule(str(node.target))
            weight = module.weight
            assert isinstance(weight, Tensor), "a layer with a weight"
            return f"{node.target}.weight", weight
        source = node.args[1] if len(node.args) > 1 else node.kwargs["weight"]
        assert isinstance(source, fx.Node), "a weight is a node"
        weight = value_of(source)
        if kind_of(node, self._root) == "matmul":
            weight = weight.transpose(-1, -2)
        return str(source.target), weight

    def _linear(self, node: fx.Node) -> None:
        """Describe a product with a weight that no other is merged with."""
        path, weight = self._weight(node)
        sharding, layout = "", ""
        if node in self._rows:
            sharding, layout = "row", "sequence"
            self.layouts[path] = "tensor"
        elif self._makes_logits(node, weight):
            sharding = layout = "vocab"
            self._set_layout(node, path, "vocab")
        target = SimpleNamespace(weight=weight)
        self._apply(linear_rule(sharding, layout), node, self._inputs(node), target)

    def _set_layout(self, node: fx.Node, path: str, layout: str) -> None:
        """Lay out a weight and the bias beside it."""
        self.layouts[path] = layout
        bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        if isinstance(bias, fx.Node):
            self.layouts[str(bias.target)] = layout
        elif node.op == "call_module":
            self.layouts[f"{node.target}.bias"] = layout

    def _makes_logits(self, node: fx.Node, weight: Tensor) -> bool:
        """Return whether nothing stands between a product and the loss over words."""
        if self._part.path or weight.shape[0] != self._vocab_size:
            return False
        while node is not self._part.leaving:
            users = [user for user in node.users if user in self._part.nodes]
            if len(users) != 1:
                return False
            (node,) = users
            kind = kind_of(node, self._root)
            if kind == "cross entropy":
                return True
            if kind != "view":
                return False
        return True

    def _column(self, node: fx.Node) -> None:
        """Describe linear layers of one input as one product, at the first of them."""
        split = self._columns[node]
        if node is not split.columns[0]:
            return
        for column in split.columns:
            self._set_layout(column, self._weight(column)[0], "tensor")
        outputs = self._merged(split.columns, "column")
        if len(split.columns) > 1:
            for column in split.columns:
                size = value_of(column).numel()
                self._set(column, (self.tape.add(size, "tensor", "model"),))
        else:
            self._set(node, outputs)

    def _merged(
        self, linears: Sequence[fx.Node], sharding: str, parts: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Write one product of several weights down; return its results."""
        first = linears[0]
        inputs = self._inputs(first)
        weights = [self._weight(linear)[1] for linear in linears]
        width, inner = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
        rows = self.tape.tensors[inputs[0]].elements // inner
        layouts = ("tensor", "groups", "groups") if parts else ("tensor",)
        outputs = tuple(
            self.tape.add(rows * size, layout, "model")
            for size, layout in zip(parts or (width,), layouts, strict=True)
        )
        call = TracedCall(self.tape, first, None, inputs, ())
        call.emit(
            "linear",
            outputs,
            saved=inputs[:1],
            sharding=sharding,
            dims=(rows, width, inner, 1),
        )
        return outputs

    def _project(self, split: AttentionSplit) -> None:
        """Describe the projections of an attention as one, at the first of them."""
        if id(split) in self._heads:
            return
        query, _, value = (value_of(source) for source in split.core.sources)
        sizes = (
            split.heads * query.shape[-1],
            split.groups * query.shape[-1],
            split.groups * value.shape[-1],
        )
        for projection, roles in zip(
            split.projections, _ROLES[len(split.projections)], strict=True
        ):
            path, _ = self._weight(projection)
            for name in (path, f"{path.removesuffix('weight')}bias"):
                self.heads_of[name] = {role: sizes[role] for role in roles}
        self._heads[id(split)] = list(self._merged(split.projections, "qkv", sizes))

    def _to_heads(self, node: fx.Node, kind: str, split: AttentionSplit) -> None:
        """Follow queries, keys and values on their way to the core."""
        current, roles = self._heads[id(split)], split.roles[node]
        if node in self._norms:
            if node is self._norms[node].nodes[-1]:
                self._renew(node, current, roles, "norm")
        elif kind in {"norm", "repeat"}:
            self._renew(node, current, roles, kind)
        elif kind == "view" and len(roles) == 1:
            (role,) = roles
            if value_of(node).numel() > self.tape.tensors[current[role]].elements:
                self._renew(node, current, roles, "repeat")
        elif node is self._last_turn(split):
            self._rotary(node, current, split)

    def _renew(
        self, node: fx.Node, current: list[int], roles: frozenset[int], kind: str
    ) -> None:
        for role in sorted(roles):
            inputs = (current[role],)
            rule = _RULES[kind]
            if kind == "repeat":
                rule = memory_rule("repeat", layout="tensor")
            self._apply(rule, node, inputs)
            (current[role],) = self._numbers(node)

    def _turns(self, split: AttentionSplit) -> list[fx.Node]:
        """Return what turns queries and keys: products with constants, sums, joins."""
        return [
            node
            for node in self._part.nodes
            if node in split.roles
            and node not in self._norms
            and kind_of(node, self._root) in {"multiply", "add", "join"}
        ]

    def _last_turn(self, split: AttentionSplit) -> fx.Node | None:
        """Return the last of them; None if they only scale by a number."""
        turns = self._turns(split)
        with_tables = any(
            source not in split.roles and value_of(source).dim() > 0
            for node in turns
            for source in node.all_input_nodes
        )
        return turns[-1] if with_tables else None

    def _rotary(self, node: fx.Node, current: list[int], split: AttentionSplit) -> None:
        """Describe all of them as one operator that keeps nothing."""
        turned = sorted(
            {role for turn in self._turns(split) for role in split.roles[turn]}
        )
        inputs = tuple(current[role] for role in turned)
        outputs = tuple(
            self.tape.add(*self.tape.tensors[number][:2], "model") for number in inputs
        )
        TracedCall(self.tape, node, None, inputs, ()).emit("rotary", outputs)
        for role, number in zip(turned, outputs, strict=True):
            current[role] = number

    def _core(self, node: fx.Node, kind: str) -> None:
        """Describe a node of an attention core."""
        core = self._cores[node]
        if core.is_fused:
            self._apply(
                flash_rule, node, tuple(self._source(core, i) for i in range(3))
            )
        elif node is core.nodes[0]:
            inputs = self._source(core, 0), self._source(core, 1)
            self._apply(matmul_rule, node, inputs)
        elif node is core.nodes[-1]:
            scores = self._numbers(node.all_input_nodes[0])[0]
            self._apply(matmul_rule, node, (scores, self._source(core, 2)))
        elif kind in {"softmax", "dropout"}:
            self._plain(node, kind)
        else:
            self._set(node, self._inputs(node)[:1])

    def _source(self, core: Core, role: int) -> int:
        """Return the number of queries (0), keys (1) or values (2)."""
        for split in self._splits.attention:
            if split.core is core:
                return self._heads[id(split)][role]
        return self._numbers(core.sources[role])[0]
