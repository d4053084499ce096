"""From a user's module to its `LayerGraph`: traced, split, each part written down.

Everything here needs torch; `estimators.tracing.user_module` is the door to it.
"""

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import fx, nn

from estimators.models.limits import MODULE_FAMILY
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.part_recorder import PartRecorder
from estimators.tracing.tensor_splits import Splits, find_splits
from estimators.tracing.user_nodes import (
    ROOT,
    ModuleChain,
    ModulePart,
    ShapedTrace,
    kind_of,
    refuse_mixing,
    refuse_unknown,
    split_chain,
    value_of,
)
from topologies.errors import InputError

_Named = tuple[str, str, nn.Parameter]
"""Path of a parameter from the root, its name in its layer, and the parameter."""


class ModuleGraph(NamedTuple):
    """A user's module as a chain of layers."""

    graph: LayerGraph
    """The chain."""

    whole: tuple[str, ...]
    """Paths of linear layers of blocks that every tensor-parallel rank computes
    whole."""


def module_graph(trace: ShapedTrace, sequence_length: int) -> ModuleGraph:
    """Return the chain of a user's module.

    Parameters
    ----------
    trace
        What was traced of it.
    sequence_length
        Tokens of a training sequence.

    Raises
    ------
    InputError
        If it is no chain of blocks, or does what has no price.
    """
    chain = split_chain(trace.graph, trace.root)
    return _Assembly(chain, trace.root, sequence_length).result()


def takes_labels(model: nn.Module) -> bool:
    """Return whether the forward pass needs labels beside token ids.

    Raises
    ------
    InputError
        If it needs anything else.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(model.forward).parameters.values()
    needed = [
        argument for argument in given if argument.default is inspect.Parameter.empty
    ]
    plain = [argument.name for argument in needed if argument.kind in kinds]
    only = [
        argument.name
        for argument in needed
        if argument.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    if len(plain) not in {1, 2} or only:
        raise InputError(
            "forward takes other inputs than token ids and labels",
            got=", ".join([*plain, *only]) or "nothing",
            expected="forward(self, tokens) or forward(self, tokens, labels), both of "
            "shape (batch, sequence); others with a default",
        )
    return len(plain) == 2


class _Assembly(NamedTuple):
    """Puts the layers together."""

    chain: ModuleChain
    """The model in parts."""
    root: nn.Module
    """Module that paths start at."""
    sequence_length: int
    """Tokens of a training sequence."""

    def result(self) -> ModuleGraph:
        """Return the chain, written down."""
        chain, words = self.chain, self._words()
        for part in (chain.embedding, *chain.blocks, chain.head):
            refuse_unknown(part.nodes, self.root, chain.live)
        self._check_hidden()
        for part in chain.blocks:
            refuse_mixing(part.nodes, self.root, self.sequence_length)
        named = [("embedding", chain.embedding)]
        named += [(f"block {i}", block) for i, block in enumerate(chain.blocks)]
        named += self._behind()
        splits = [self._splits(part) for _, part in named]
        parameters = [list(self._parameters(part)) for _, part in named]
        tied = self._tied(parameters, words)
        layers, last = [], len(named) - 1
        loss = value_of(chain.head.leaving).dim() > 0
        for place, (_, part) in enumerate(named):
            recorder = PartRecorder(part, splits[place], self.root, words.shape[0])
            recorder.record(loss=loss and place == last)
            layers.append(recorder.layer(parameters[place]))
        distinct = list(dict.fromkeys(layers))
        graph = LayerGraph(
            spec=self._spec(splits, words.shape[0], tied=tied),
            names=tuple(name for name, _ in named),
            kinds=tuple(distinct.index(layer) for layer in layers),
            layers=tuple(distinct),
        )
        _check_count(graph, self.root)
        whole = dict.fromkeys(
            path
            for (_, part), split in zip(named, splits, strict=True)
            for path in split.whole
            if part.path
        )
        return ModuleGraph(graph, tuple(whole))

    def _splits(self, part: ModulePart) -> Splits:
        """Return what can be split of a part: of the blocks alone, and the logits."""
        splits = find_splits(part, self.root)
        if part.path:
            return splits
        problem = "it has attention outside of its blocks" if splits.cores else ""
        return splits._replace(
            attention=(), inner=(), problem=problem or splits.problem
        )

    def _words(self) -> nn.Parameter:
        """Return the weight of the embedding of token ids."""
        for node in self.chain.embedding.nodes:
            if kind_of(node, self.root) == "embedding":
                for _, _, weight in self._constants([node]):
                    return weight
        raise InputError(
            "the model has no embedding of token ids before its blocks",
            got=self.chain.blocks[0].path,
            expected="an nn.Embedding that is called with the token ids",
        )

    def _check_hidden(self) -> None:
        shape = value_of(self.chain.embedding.leaving).shape
        if len(shape) < 2 or math.prod(shape[:-1]) != self.sequence_length:
            raise InputError(
                "the blocks take hidden states of another number of tokens",
                got=list(shape),
                expected=f"(1, {self.sequence_length}, width), or the like",
            )

    def _behind(self) -> list[tuple[str, ModulePart]]:
        """Return the head, and before it a final norm where there is one."""
        head = self.chain.head
        norms = find_splits(head, self.root).norms
        if norms and norms[0].nodes[0] is head.nodes[0]:
            count = len(norms[0].nodes)
        else:
            leaf = head.nodes and kind_of(head.nodes[0], self.root) == "norm"
            count = 1 if leaf else 0
        normed, rest = head.nodes[:count], head.nodes[count:]
        assert head.entering is not None, "the head takes hidden states"
        readers = {user for user in head.entering.users if user in rest}
        if not rest or not normed or readers:
            return [("head", head)]
        return [
            ("final norm", ModulePart("", normed, head.entering, normed[-1])),
            ("head", ModulePart("", rest, normed[-1], head.leaving)),
        ]

    def _parameters(self, part: ModulePart) -> Iterator[_Named]:
        """Return the parameters of a part, each once."""
        if not part.path:
            yield from self._constants(part.nodes)
            return
        path = f"{ROOT}.{part.path}"
        for name, parameter in self.root.get_submodule(path).named_parameters():
            yield f"{path}.{name}", name, parameter

    def _constants(self, nodes: Iterable[fx.Node]) -> Iterator[_Named]:
        """Return the parameters that some nodes read, also by way of constants."""
        seen: set[int] = set()
        for node in _with_constants(nodes, self.chain.live):
            named: list[tuple[str, nn.Parameter]] = []
            if node.op == "call_module":
                module = self.root.get_submodule(str(node.target))
                named = [
                    (f"{node.target}.{name}", one)
                    for name, one in module.named_parameters()
                ]
            elif node.op == "get_attr" and isinstance(value_of(node), nn.Parameter):
                named = [(str(node.target), value_of(node))]
            for path, parameter in named:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield path, path.removeprefix(f"{ROOT}."), parameter

    def _tied(self, parameters: Sequence[list[_Named]], words: nn.Parameter) -> bool:
        """Return whether the head has the embedding's weight; refuse other ties."""
        owners: dict[int, list[int]] = {}
        for place, of_part in enumerate(parameters):
            for _, _, parameter in of_part:
                owners.setdefault(id(parameter), []).append(place)
        hidden = value_of(self.chain.blocks[0].leaving).shape[-1]
        tied = owners.get(id(words)) == [0, len(parameters) - 1]
        tied = tied and words.shape[-1] == hidden
        for name, parameter in self.root.named_parameters():
            owned = owners.get(id(parameter), [])
            if len(owned) == 1 or (tied and parameter is words):
                continue
            raise InputError(
                "the model has a parameter that no layer of the chain uses"
                if not owned
                else "the model has a parameter that several layers share",
                got=name.removeprefix(f"{ROOT}."),
                expected="parameters of one layer each; the output layer may share the "
                "weight of the embedding of token ids",
            )
        return tied

    def _spec(
        self, splits: Sequence[Splits], vocab_size: int, *, tied: bool
    ) -> TransformerSpec:
        """Return what the parts have in common, and what parallel sizes must divide."""
        cores = [core for split in splits for core in split.cores]
        attention = [split for of_part in splits for split in of_part.attention]
        inner = [split for of_part in splits for split in of_part.inner]
        widths = [_inner_width(split.row) for split in inner]
        shapes = {(split.heads, split.groups) for split in attention}
        problems = [split.problem for split in splits if split.problem]
        if len(shapes) > 1:
            problems.append("its blocks have unlike numbers of attention heads")
        if not attention and not inner:
            problems.append("its blocks have no linear layers that can be split")
        heads, groups = min(shapes) if shapes else (math.gcd(*widths) or 1,) * 2
        hidden = value_of(self.chain.blocks[0].leaving).shape[-1]
        flash = all(core.is_fused for core in cores)
        flash = flash and not any(split.products for split in splits)
        norms = [
            module for module in self.root.modules() if isinstance(module, nn.LayerNorm)
        ]
        return TransformerSpec(
            family=MODULE_FAMILY,
            num_layers=len(self.chain.blocks),
            hidden_size=hidden,
            num_attention_heads=heads,
            num_query_groups=groups,
            kv_channels=max(1, hidden // heads),
            ffn_hidden_size=math.gcd(*widths) or heads,
            vocab_size=vocab_size,
            sequence_length=self.sequence_length,
            gated_linear_unit=any(split.is_gated for split in inner),
            normalization="layernorm" if norms else "rmsnorm",
            tie_word_embeddings=tied,
            attention_implementation="flash" if flash else "plain",
            causal=bool(cores) and all(core.is_causal for core in cores),
            whole_because=problems[0] if problems else "",
        )


def _inner_width(row: fx.Node) -> int:
    """Return the input features of a linear layer."""
    return int(value_of(row.all_input_nodes[0]).shape[-1])


def _with_constants(
    nodes: Iterable[fx.Node], live: frozenset[fx.Node]
) -> Iterator[fx.Node]:
    """Return some nodes, each behind the constants that it reads."""
    for node in nodes:
        constants = [source for source in node.all_input_nodes if source not in live]
        yield from _with_constants(constants, live)
        yield node


def _check_count(graph: LayerGraph, root: nn.Module) -> None:
    counted = sum(parameter.numel() for parameter in root.parameters())
    assert graph.num_parameters == counted, "every parameter belongs to one layer"
