"""Slurm's description of a cluster's switches: ``topology.conf``, ``topology.yaml``.

The plugin topology/tree lists switches with the switches or nodes below them; the
plugin topology/block lists blocks of nodes that are close to each other, and how many
of them form larger blocks. Neither says how fast anything is: ``LinkSpeed`` is there
for people alone [2]_.

References
----------
.. [1] SchedMD, Slurm, man pages ``topology.conf(5)`` and ``scontrol(1)``: hostlist
   expressions.
.. [2] SchedMD, Slurm, man pages ``topology.conf(5)`` and ``topology.yaml(5)``, 25.05.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from topologies.errors import InputError, located
from topologies.input_file import Value, decode, parse_yaml, read_file

_NAMES_EXPECTED = "names as Slurm writes them, e.g. node[01-16,20]"
_PART = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"^(\d{1,12})(?:-(\d{1,12}))?$")
_NAME = re.compile(r"^[\w.:@+-]{1,100}$")


def expand_hostlist(text: str, most: int) -> list[str]:
    """Return the names that an expression stands for, in its order.

    Parameters
    ----------
    text
        The expression.
    most
        Most names.

    Raises
    ------
    InputError
        If it is none, or stands for more.

    Examples
    --------
    >>> expand_hostlist("node[01-03,7]", 100)
    ['node01', 'node02', 'node03', 'node7']
    """
    names: list[str] = []
    for word in _words(text):
        names += _expanded(word, most - len(names))
    return names


def _words(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    words, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in {0, 1}:
            break
        if letter == "," and not depth:
            words.append(text[start:place])
            start = place + 1
    words.append(text[start:])
    if depth or not all(words):
        raise InputError("is no list of names", got=text, expected=_NAMES_EXPECTED)
    return words


def _expanded(word: str, most: int) -> list[str]:
    """Return the names of one word."""
    choices: list[list[str]] = []
    count, place = 1, 0
    for found in _PART.finditer(word):
        if found.start() != place:
            break
        place = found.end()
        if found[3] is not None:
            choices.append([found[3]])
            continue
        room = max(1, most // count)
        numbers = _numbers(found[2], room, word)
        choices += [[found[1]], numbers]
        count *= len(numbers)
        if count > most:
            raise _too_many(word)
    if place != len(word) or most < 1:
        raise _too_many(word) if most < 1 else _no_list(word)
    names = ["".join(parts) for parts in itertools.product(*choices)]
    for name in names[:1]:
        if not _NAME.match(name):
            raise _no_list(word)
    return names


def _numbers(text: str, most: int, word: str) -> list[str]:
    """Return the numbers of one pair of brackets, with their zeros in front."""
    numbers: list[str] = []
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        if found is None:
            raise _no_list(word)
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise _no_list(word)
        if len(numbers) + last - first + 1 > most:
            raise _too_many(word)
        width = len(found[1])
        numbers += [f"{number:0{width}d}" for number in range(first, last + 1)]
    return numbers


def _no_list(word: str) -> InputError:
    return InputError("is no list of names", got=word, expected=_NAMES_EXPECTED)


def _too_many(word: str) -> InputError:
    return InputError("stands for too many names", got=word, expected=_NAMES_EXPECTED)


MAX_FILE = 1_000_000
"""Longest file that is read [byte]."""

MAX_NODES = 2**17
"""Most nodes, and most switches."""

MAX_DEPTH = 14
"""Most switches above each other."""

_EXPECTED = "a topology.conf or topology.yaml of Slurm"

_KEYS = {
    "switchname": ("switches", "nodes", "linkspeed"),
    "blockname": ("nodes",),
    "blocksizes": (),
}
"""First key of a line, in small letters -> the others that it may have."""


@dataclass(frozen=True, slots=True)
class SwitchBranch:
    """A switch, and all that is below it."""

    name: str
    """Name of the switch or block."""

    branches: tuple["SwitchBranch", ...] = ()
    """Switches below it; none at a switch of nodes."""

    nodes: tuple[str, ...] = ()
    """Nodes of a switch that has no switches below it."""

    def num_nodes(self) -> int:
        """Return the number of nodes below the switch."""
        return len(self.nodes) + sum(branch.num_nodes() for branch in self.branches)


class SlurmTopology(NamedTuple):
    """What a file says."""

    root: SwitchBranch
    """Switch above all others."""

    level_names: tuple[str, ...]
    """Name of each level of switches, from the nodes outwards."""

    fan_outs: tuple[int, ...]
    """Children of every switch of a level, from the nodes outwards; empty if switches
    of a level have different numbers of them."""

    states_speeds: bool
    """Whether link speeds stand in the file, which say nothing."""


class _SlurmLine(NamedTuple):
    """A switch or block as it is listed."""

    where: str
    switches: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _SlurmLines:
    """What a file lists."""

    lines: Mapping[str, _SlurmLine]
    """Name of a switch or block -> what is said of it."""

    is_block: bool
    """Whether these are blocks."""

    block_sizes: tuple[int, ...] = ()
    """Nodes of blocks, and of blocks of blocks."""

    states_speeds: bool = False
    """Whether there are link speeds."""


def read_slurm(path: Path, *, topology: str = "", nodes: str = "") -> SlurmTopology:
    """Read a file of Slurm.

    Parameters
    ----------
    path
        The file; one that ends in ``.yaml`` or ``.yml`` is a ``topology.yaml``.
    topology
        Which of several topologies of a ``topology.yaml``; empty for its default.
    nodes
        Nodes that take part, as a hostlist expression; empty for all. Switches that
        are then of no use are left out.

    Raises
    ------
    InputError
        If it cannot be read or something in it is wrong. The message starts with the
        file.
    """
    with located(str(path), ": "):
        text = decode(read_file(path, expected=_EXPECTED, most_bytes=MAX_FILE))
        if path.suffix.lower() in {".yaml", ".yml"}:
            listed = _of_yaml(text, topology)
        elif topology:
            raise InputError(
                "has one topology without a name",
                got=f"topology = {topology!r}",
                expected="a topology.yaml, which has several",
            )
        else:
            listed = _of_conf(text)
        roots = _blocks(listed) if listed.is_block else _trees(listed)
        root = SwitchBranch("", roots) if len(roots) > 1 else roots[0]
        if nodes:
            root = _restricted(root, expand_hostlist(nodes, MAX_NODES))
        _refuse_apart(root)
        fan_outs = _fan_outs(root)
    return SlurmTopology(
        root,
        _level_names(_depth(root), is_block=listed.is_block),
        fan_outs,
        listed.states_speeds,
    )


def _of_conf(text: str) -> _SlurmLines:
    lines: dict[str, _SlurmLine] = {}
    sizes: tuple[int, ...] = ()
    kinds: set[str] = set()
    speeds = False
    for number, words in _logical_lines(text):
        where = f"line {number}"
        with located(where):
            pairs = _pairs(words)
            first = next(iter(pairs))
            kinds.add(first[:5])
            if len(kinds) > 1:
                raise InputError(
                    "mixes switches and blocks",
                    got=" ".join(words),
                    expected="lines of one plugin: topology/tree or topology/block",
                )
            speeds = speeds or "linkspeed" in pairs
            if first == "blocksizes":
                sizes = tuple(_size(word) for word in pairs[first].split(","))
                continue
            line = _SlurmLine(
                where, *(_names(pairs.get(k)) for k in ("switches", "nodes"))
            )
            _add(lines, pairs[first], line)
    return _SlurmLines(lines, kinds == {"block"}, sizes, speeds)


def _logical_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield lines that say something, with their numbers."""
    begun, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#", 1)[0].strip()
        start = start or number
        if line.endswith("\\"):
            begun += f"{line[:-1]} "
            continue
        words = (begun + line).split()
        if words:
            yield start, words
        begun, start = "", 0
    if begun.strip():
        yield start, begun.split()


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Return the settings of a line by their names in small letters."""
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.lower()
        if not equals or not value or key in pairs:
            raise InputError("is not a setting", got=word, expected="Key=Value, once")
        pairs[key] = value.strip('"')
    first = next(iter(pairs))
    if first not in _KEYS:
        raise InputError(
            "is no line of a topology",
            got=words[0],
            expected="SwitchName=.., BlockName=.. or BlockSizes=..",
        )
    for key in list(pairs)[1:]:
        if key not in _KEYS[first]:
            known = ", ".join(_KEYS[first]) or "nothing"
            raise InputError("unknown setting", got=key, expected=known)
    return pairs


def _size(word: str) -> int:
    if not word.isdecimal() or len(word) > 9 or int(word) < 1:
        raise InputError(
            "is no size of a block", got=word, expected="BlockSizes=18,36, in nodes"
        )
    return int(word)


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(expand_hostlist(text, MAX_NODES))


def _add(lines: dict[str, _SlurmLine], names: str, line: _SlurmLine) -> None:
    """Note what is said of a switch or block."""
    for name in expand_hostlist(names, MAX_NODES):
        if name in lines:
            raise InputError(
                "is described twice",
                got=f"{name}, first in {lines[name].where}",
                expected="every switch and block once",
            )
        if bool(line.switches) == bool(line.nodes):
            raise InputError(
                "must have either switches or nodes below it",
                got=name,
                expected="Switches=.. or Nodes=..",
            )
        lines[name] = line


def _of_yaml(text: str, topology: str) -> _SlurmLines:
    root = Value(parse_yaml(text, expected=_EXPECTED))
    chosen = _chosen(root.array(least=1, most=1000), topology)
    kinds = [kind for kind in ("tree", "block") if kind in chosen.table()]
    if len(kinds) != 1:
        raise chosen.error("says nothing of switches", 'one of "tree" and "block"')
    lines: dict[str, _SlurmLine] = {}
    body, is_block = chosen[kinds[0]], kinds[0] == "block"
    items = body["blocks" if is_block else "switches"]
    for item in items.array(least=1, most=MAX_NODES):
        name = item["block" if is_block else "switch"]
        parts = [
            _names(_text(item[key])) if key in item.table() else ()
            for key in ("children", "nodes")
        ]
        with located(item.where):
            _add(lines, _text(name), _SlurmLine(item.where, *parts))
    sizes: tuple[int, ...] = ()
    if is_block and "block_sizes" in body.table():
        given = body["block_sizes"].array(least=1, most=16)
        sizes = tuple(one.whole(least=1, most=MAX_NODES) for one in given)
    return _SlurmLines(lines, is_block, sizes)


def _text(value: Value) -> str:
    """Return a text of any length."""
    if not isinstance(value.raw, str):
        raise value.error("has the wrong type", "a text: names as Slurm writes them")
    return value.raw


def _chosen(topologies: Sequence[Value], name: str) -> Value:
    """Return the topology of a name, or else the default, or else the only one."""
    if name:
        matching = [
            topology for topology in topologies if topology["topology"].raw == name
        ]
    else:
        matching = [
            topology
            for topology in topologies
            if topology.get("cluster_default", False).raw
        ]
        matching = matching or list(topologies)
    if not matching or (len(matching) > 1 and not name):
        known = ", ".join(str(topology["topology"].raw) for topology in topologies[:20])
        raise InputError(
            "has no such topology" if name else "has several topologies",
            got=name or None,
            expected=f"topology = one of {known}",
        )
    return matching[0]


def _trees(listed: _SlurmLines) -> tuple[SwitchBranch, ...]:
    """Return the trees of switches, of which a cluster should have one."""
    lines = _with_spines_as_one(listed.lines)
    above: dict[str, str] = {}
    for name, line in lines.items():
        for child in (*line.switches, *line.nodes):
            if child in above:
                raise InputError(
                    "is below two switches",
                    where=line.where,
                    got=f"{child}, below {above[child]} and {name}",
                    expected="one switch above every node and switch, or several that "
                    "are above the same switches",
                )
            above[child] = name
        for child in line.switches:
            if child not in lines:
                raise InputError(
                    "is a switch that no line describes",
                    where=line.where,
                    got=child,
                    expected=f"SwitchName={child} ..",
                )
    roots = [name for name in lines if name not in above]
    if not roots:
        raise InputError(
            "has no switch at the top" if lines else "lists no switches",
            expected="SwitchName=.. Switches=.., below no other switch",
        )
    return tuple(_branch(name, lines, MAX_DEPTH) for name in roots)


def _with_spines_as_one(lines: Mapping[str, _SlurmLine]) -> dict[str, _SlurmLine]:
    """Return switches above the very same ones as one, the first of them.

    Slurm's guide lists every spine with all leaves below it. For the jobs that it
    places they are one switch, and here the links to them are one trunk.
    """
    while True:
        first: dict[frozenset[str], str] = {}
        same = {
            name: first.setdefault(frozenset(line.switches), name)
            for name, line in lines.items()
            if line.switches
        }
        merged = {
            name: line._replace(
                switches=tuple(
                    dict.fromkeys(same.get(child, child) for child in line.switches)
                )
            )
            for name, line in lines.items()
            if same.get(name, name) == name
        }
        if len(merged) == len(lines):
            return merged
        lines = merged


def _refuse_apart(root: SwitchBranch) -> None:
    """Refuse switches that nothing joins."""
    if not root.name:
        raise InputError(
            "does not join all nodes by one switch at the top",
            got=", ".join(branch.name for branch in root.branches[:10]),
            expected="one switch that is below no other",
            hint="say with nodes = .. which part of the cluster is meant",
        )


def _branch(name: str, lines: Mapping[str, _SlurmLine], depth: int) -> SwitchBranch:
    line = lines[name]
    if not depth:
        raise InputError(
            f"has more than {MAX_DEPTH} switches above each other",
            where=line.where,
            got=name,
            expected="a tree of switches",
        )
    branches = tuple(_branch(child, lines, depth - 1) for child in line.switches)
    return SwitchBranch(name, branches, line.nodes)


def _blocks(listed: _SlurmLines) -> tuple[SwitchBranch, ...]:
    """Return blocks below larger blocks, which the sizes count."""
    groups = [
        SwitchBranch(name, nodes=line.nodes) for name, line in listed.lines.items()
    ]
    if not groups:
        raise InputError("lists no blocks", expected="BlockName=.. Nodes=..")
    seen: set[str] = set()
    for node in itertools.chain.from_iterable(group.nodes for group in groups):
        if node in seen:
            raise InputError("is in two blocks", got=node, expected="every node once")
        seen.add(node)
    for smaller, size in itertools.pairwise(listed.block_sizes):
        times = size // smaller
        if size % smaller or times & (times - 1):
            raise InputError(
                "must be a power of two times the size before",
                where="BlockSizes",
                got=list(listed.block_sizes),
                expected="e.g. 18,36,72",
            )
        if 1 < times < len(groups):
            groups = [
                SwitchBranch(f"{part[0].name} to {part[-1].name}", tuple(part))
                for part in (
                    groups[i : i + times] for i in range(0, len(groups), times)
                )
            ]
    if len(groups) > 1:
        groups = [SwitchBranch("blocks", tuple(groups))]
    return tuple(groups)


def _restricted(root: SwitchBranch, nodes: Sequence[str]) -> SwitchBranch:
    """Return the least part of a tree that joins some nodes."""
    chosen = set(nodes)
    found = _kept(root, chosen)
    missing = chosen.difference(_all_nodes(found)) if found else chosen
    if missing or found is None:
        raise InputError(
            "does not have these nodes",
            where="nodes",
            got=", ".join(sorted(missing)[:10]),
            expected="nodes that the file lists",
        )
    while len(found.branches) == 1:
        found = found.branches[0]
    return found


def _kept(branch: SwitchBranch, chosen: set[str]) -> SwitchBranch | None:
    below = (_kept(one, chosen) for one in branch.branches)
    branches = tuple(one for one in below if one is not None)
    nodes = tuple(node for node in branch.nodes if node in chosen)
    if not branches and not nodes:
        return None
    return replace(branch, branches=branches, nodes=nodes)


def _all_nodes(branch: SwitchBranch) -> Iterator[str]:
    yield from branch.nodes
    for one in branch.branches:
        yield from _all_nodes(one)


def _depth(branch: SwitchBranch) -> int:
    return 1 + max((_depth(one) for one in branch.branches), default=0)


def _fan_outs(root: SwitchBranch) -> tuple[int, ...]:
    """Return the children of a level's switches; nothing where they are not equal."""
    fan_outs: list[int] = []
    level = [root]
    while level:
        counts = {len(one.branches) or len(one.nodes) for one in level}
        if len(counts) != 1 or len({bool(one.branches) for one in level}) != 1:
            return ()
        fan_outs.append(counts.pop())
        level = [child for one in level for child in one.branches]
    return tuple(reversed(fan_outs))


_NAMES = ("leaf", "spine", "core")


def _level_names(depth: int, *, is_block: bool) -> tuple[str, ...]:
    """Return the names of so many levels of switches, from the nodes outwards."""
    if is_block:
        middle = tuple(f"blocks of blocks {i}" for i in range(1, depth - 1))
        return ("block", *middle, "blocks")[:depth]
    if depth <= len(_NAMES):
        return _NAMES[:depth]
    return tuple(f"switch level {i}" for i in range(1, depth + 1))
