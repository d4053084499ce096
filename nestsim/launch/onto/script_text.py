"""Where the options of a shell script stand, and the script with others.

The grammar of Bash says where words begin and end: those of arrays and commands, those
inside of strings and here-documents that become words of a command later. Whether a
place counts is not guessed: a mark is put there, the script is followed, and the place
counts if the mark arrives behind its option. Everything else stays byte for byte.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import split
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from nestsim.launch.carried import quoted
from nestsim.launch.shell.follow import follow_script
from topologies.errors import InputError

_BASH = Language(tree_sitter_bash.language())
_MARK = "7654321"
_PLAIN = re.compile(r"[\w.+:/-]+")
_WORD = re.compile(
    r"""(?:\$\(\(.*?\)\)|\$\([^()]*\)|`[^`]*`|\$\{[^}]*\}|'[^']*'|"[^"]*"|\\[^\r\n]"""
    r"""|[^\s\\])+""",
    re.DOTALL,
)
_DASHES = re.compile(r"--([A-Za-z][\w.-]*)(=.*)?|(activation_checkpoint):(.*)", re.S)
_PAIR = re.compile(r"([A-Za-z_]\w*)(=.*)", re.DOTALL)
_VARIABLE = re.compile(r"\"?\$(?:(\w+)|\{(\w+)(?::?[-=][^{}$]*)?\})\"?")
_LIST = re.compile(r"\"?\$\{?(\w+|[*@])(\[[@*]\])?\}?\"?")
_DIRECTIVE = re.compile(r"^#SBATCH\s+(--nodes(?:[= ]\s*)|-N\s*)(\d+)", re.MULTILINE)

NODES = ("nnodes", "num-nodes", "nodes")
"""Options of launchers that say how many nodes there are."""

PER_NODE = ("nproc-per-node", "num-gpus", "gpus-per-node")
"""Options of launchers that say how many processes a node has."""


LAUNCHER = frozenset(
    {
        *NODES,
        *PER_NODE,
        *("node-rank", "master-addr", "master-port", "rdzv-backend", "hostfile"),
        *("no-python", "no-local-rank", "deepspeed", "deepspeed-config"),
        *("module", "config", "base-config"),
    }
)
"""Options of what starts a program, and those that name files."""


class Edit(NamedTuple):
    """One piece of a text, and what stands there instead."""

    start: int
    end: int
    text: str


class OptionSite(NamedTuple):
    """A place where an option is given."""

    name: str
    """Its name, with hyphens."""

    start: int
    end: int
    value: tuple[int, int] | None
    """Where its words are; None if it has none."""

    kind: str
    """What it is in: ``array``, ``command``, ``string``, ``heredoc``, ``directive``."""


def applied(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with pieces exchanged; of two in one place the first comes first.

    A piece inside of one that goes is gone, too.
    """
    parts, position = [], 0
    for edit in sorted(edits, key=lambda edit: edit[:2]):
        if edit.start < position:
            position = max(position, edit.end)
            continue
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])


def hyphenated(name: str) -> str:
    """Return an option's name as places are looked up by."""
    return name.replace("_", "-")


@dataclass(slots=True, kw_only=True)
class ScriptText:
    """A shell script, a command line, or a file of options."""

    text: str
    """All of it."""

    pairs: bool = False
    """Whether options are written ``name=value``."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Values that its surroundings set."""

    order: Sequence[str] = ()
    """Names of options, neighbours next to each other: where what is new goes."""

    _sites: dict[str, list[OptionSite]] = field(default_factory=dict)
    _literals: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _aliases: dict[str, list[str]] = field(default_factory=dict)
    _lists: set[str] = field(default_factory=set)
    _active: dict[str, list[OptionSite]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look for options, and for what variables are."""
        plain = re.sub(r"[^\x00-\x7f]", "x", self.text)  # a letter is a byte
        tree = Parser(_BASH).parse(plain.encode())
        containers = list(self._containers(tree.root_node))
        for kind, words in containers:
            for site in self._options(kind, words):
                self._sites.setdefault(site.name, []).append(site)
        for match in _DIRECTIVE.finditer(self.text):
            site = OptionSite("nodes", *match.span(), match.span(2), "directive")
            self._sites.setdefault("nodes", []).append(site)

    def options(self) -> dict[str, tuple[str, ...]]:
        """Return the words behind each option as they are written, the last ones."""
        return {
            name: self._words(sites[-1])
            for name, sites in self._sites.items()
            if sites[-1].kind != "directive"
        }

    def spelt(self) -> dict[str, tuple[str, ...]]:
        """Return `options` under their names as they are written."""
        values = self.options()
        return {
            re.split(r"[=\s:]", self.text[sites[-1].start :], maxsplit=1)[0].lstrip(
                "-"
            ): values[name]
            for name, sites in self._sites.items()
            if name in values
        }

    def _words(self, site: OptionSite) -> tuple[str, ...]:
        written = self.text[slice(*site.value)] if site.value else ""
        try:
            return tuple(split(written, comments=site.kind == "array"))
        except ValueError:  # a quote that ends elsewhere
            return tuple(written.split())

    def values(self) -> dict[str, tuple[str, ...]]:
        """Return the words behind each option when commands are started."""
        match: dict[str, tuple[str, ...]] = {}
        try:
            commands = follow_script(self.text, self.variables).commands
        except InputError:
            return match
        for command in commands:
            name = None
            for word in " ".join(command.words).split():
                begins = (_PAIR if self.pairs else _DASHES).fullmatch(word)
                if begins is not None:
                    name = hyphenated(begins[1] or begins[3])
                    value = begins[2][1:] if begins[2] else None
                    if begins[1] is None:
                        value = begins[4]
                    match[name] = () if value is None else (value,)
                elif name is not None:
                    match[name] += (word,)
        return match

    def variable_of(self, name: str) -> bool:
        """Whether an option's value is a variable's that the script itself sets."""
        return any(self._literal_of(site) for site in self.active(name)[-1:])

    def is_settable(self, name: str) -> bool:
        """Whether an option is there with a value that the script itself says."""
        return any(
            site.value is not None
            and ("$" not in self.text[slice(*site.value)] or self._literal_of(site))
            for site in self.active(name)[-1:]
        )

    def edited(
        self,
        changes: Mapping[str, Sequence[str] | None],
        by_variable: Collection[str] = (),
    ) -> str:
        """Return the script with other options.

        Parameters
        ----------
        changes
            Option -> its words now, None for one that goes.
        by_variable
            Options of which not the word is changed but the variable that it takes.
        """
        edits: list[Edit] = []
        gone: list[OptionSite] = []
        new: dict[str, Sequence[str]] = {}
        for name, words in changes.items():
            sites = self.active(name)
            if words is None:
                gone += sites
            elif not sites:
                new[name] = words
            else:
                edits.append(self._replaced(sites[-1], words, name in by_variable))
        edits += self._removed(gone)
        edits += self._added(new, {site.start for site in gone})
        return applied(self.text, edits)

    def active(self, name: str) -> list[OptionSite]:
        """Return the places of an option that a command gets it from."""
        key = hyphenated(name)
        if key not in self._active:
            self._active[key] = [
                site
                for site in self._sites.get(key, ())
                if site.kind == "directive"
                or self._arrives(self._replaced(site, (_MARK,), False), site)
            ]
        return self._active[key]

    def _arrives(self, edit: Edit, site: OptionSite) -> bool:
        """Whether the mark of an edit stands behind an option of a command."""
        try:
            run = follow_script(applied(self.text, [edit]), self.variables)
        except InputError:
            return False
        key = re.escape(site.name).replace(r"\-", "[-_]")
        behind = re.compile(rf"(^|[\s-]){key}[ =:]\W*{_MARK}\b")
        return any(behind.search(" ".join(command.words)) for command in run.commands)

    def _replaced(self, site: OptionSite, words: Sequence[str], variable: bool) -> Edit:
        literal = self._literal_of(site) if variable else None
        if literal is not None:
            return Edit(*literal, words[0])
        if site.value is not None and words:
            return Edit(*site.value, self._written(words, site.kind))
        begin = self.text[site.start : site.end].split("=")[0].split()[0]
        return Edit(site.start, site.end, self._option(begin, words, site.kind))

    def _written(self, words: Sequence[str], kind: str) -> str:
        return " ".join(words if kind == "string" else map(quoted, words))

    def _option(self, begin: str, words: Sequence[str], kind: str) -> str:
        between = "=" if self.pairs else " "
        return between.join((begin, *([self._written(words, kind)] if words else [])))

    def _literal_of(self, site: OptionSite) -> tuple[int, int] | None:
        """Return where a variable gets the value that an option takes; None if not."""
        if site.value is None:
            return None
        match = _VARIABLE.fullmatch(self.text[slice(*site.value)])
        if match is None:
            return None
        for span in reversed(self._spans(match[1] or match[2], set())):
            if self._arrives(Edit(*span, _MARK), site):
                return span
        return None

    def _spans(self, variable: str, seen: set[str]) -> list[tuple[int, int]]:
        """Return where a variable, or those that it is set to, have a plain value."""
        if variable in seen:
            return []
        seen.add(variable)
        spans = list(self._literals.get(variable, ()))
        for other in self._aliases.get(variable, ()):
            spans += self._spans(other, seen)
        return sorted(spans)

    def _line(self, position: int) -> tuple[int, int]:
        """Return where the line of a position begins and ends."""
        end = self.text.find("\n", position)
        end = len(self.text) if end < 0 else end
        if end and self.text[end - 1] == "\r" and end > position:
            end -= 1
        return self.text.rfind("\n", 0, position) + 1, end

    def _removed(self, sites: Sequence[OptionSite]) -> Iterator[Edit]:
        """Yield what takes options out, with their lines where nothing else is there.

        The last line of a command that goes takes the backslash of that before along.
        """
        lines = set()
        for site in sites:
            begin, _ = self._line(site.start)
            _, end = self._line(site.end)
            before = self.text[begin : site.start]
            rest = self.text[site.end : end].strip()
            if before.strip() or not (rest in ("", "\\") or rest[0] == "#"):
                start, stop = begin + len(before.rstrip()), site.end
                if not before.strip():  # what closes a string stands behind it
                    start = site.start
                elif self.text[start - 1] in "\"'(":  # the first of a list
                    start = site.start
                    stop += len(self.text[stop:end]) - len(self.text[stop:end].lstrip())
                yield Edit(start, stop, "")
                continue
            lines.add(begin)
            yield Edit(begin, self._next_line(end), "")
            above, top = begin, 0
            while above and (above in lines or above == begin):
                above, top = self._line(above - 1)
            if rest != "\\" and self.text[above:top].rstrip().endswith("\\"):
                kept = self.text[above:top].rstrip()[:-1].rstrip()
                yield Edit(above + len(kept), top, "")

    def _next_line(self, end: int) -> int:
        match = self.text.find("\n", end)
        return len(self.text) if match < 0 else match + 1

    def _added(
        self, new: Mapping[str, Sequence[str]], gone: Collection[int]
    ) -> Iterator[Edit]:
        """Yield what puts options behind those that they belong to."""
        for name, words in new.items():
            anchor = self._anchor(name, gone)
            if anchor is None:
                continue
            spelt = next((o for o in self.order if hyphenated(o) == name), name)
            begin = spelt if self.pairs else f"--{spelt}"
            option = self._option(begin, words, anchor.kind)
            if name == "activation-checkpoint":
                option = f"activation_checkpoint:{words[0]}"
            start, end = self._line(anchor.end)
            line, rest = self.text[start:end], self.text[anchor.end : end].strip()
            newline = self.text[end : self._next_line(end)] or "\n"
            indent = newline + (line[: len(line) - len(line.lstrip())] or "    ")
            own_line = self.text[start : anchor.start].strip() == ""
            if rest == "\\":
                yield Edit(end, end, f"{indent}{option} \\")
            elif not own_line or rest[:1] not in ("", "#", '"', "'"):
                yield Edit(anchor.end, anchor.end, f" {option}")
            elif anchor.kind == "array" and (not rest or rest[0] == "#"):
                yield Edit(end, end, f"{indent}{option}")
            else:
                above = self.text[slice(*self._line(max(start - 1, 0)))]
                joint = " \\" if above.rstrip().endswith("\\") else ""
                if anchor.kind == "command" and not joint:
                    indent = " "
                yield Edit(anchor.end, anchor.end, f"{joint}{indent}{option}")

    def _anchor(self, name: str, gone: Collection[int]) -> OptionSite | None:
        """Return the place of the option that a new one goes behind."""
        order = [hyphenated(other) for other in self.order]
        index = order.index(hyphenated(name)) if hyphenated(name) in order else 0
        known = [*reversed(order[:index]), *order[index + 1 :], *self._sites]
        for other in known:
            if other in LAUNCHER:
                continue
            for site in reversed(self.active(other)):
                if site.start not in gone and site.kind != "directive":
                    return site
        return None

    def _containers(self, node: Node) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Yield the words that stand together, and note what variables are."""
        kind = node.type
        if kind in ("string", "raw_string", "heredoc_body"):
            words = self._inner(node, 0 if kind == "heredoc_body" else 1)
            if any(self._begins(span) for span in words) or len(words) > 1:
                yield ("heredoc" if kind == "heredoc_body" else "string"), words
        elif kind in ("array", "command"):
            yield (
                kind,
                [
                    (child.start_byte, child.end_byte)
                    for child in node.named_children
                    if child.type not in ("comment", "variable_assignment")
                    and "redirect" not in child.type
                ],
            )
        elif kind == "variable_assignment":
            self._note(node)
        elif kind == "expansion":
            self._note_default(node)
        for child in node.children:
            yield from self._containers(child)

    def _inner(self, node: Node, quotes: int) -> list[tuple[int, int]]:
        start, end = node.start_byte + quotes, node.end_byte - quotes
        return [match.span() for match in _WORD.finditer(self.text, start, end)]

    def _note(self, node: Node) -> None:
        """Note what a variable is set to."""
        name = self.text[node.start_byte : node.end_byte].split("=")[0]
        name = name.removesuffix("+").split("[")[0]
        value = node.child_by_field_name("value")
        if value is None:
            return
        span = value.start_byte, value.end_byte
        written = self.text[slice(*span)]
        if value.type == "array" or re.search(r"(^|\s)--\w", written.strip("\"'")):
            self._lists.add(name)
        self._note_value(name, span)

    def _note_default(self, node: Node) -> None:
        """Note the value of a variable that nothing sets: ``${NAME:-value}``."""
        match = re.match(r"\$\{(\w+):?[-=]", self.text[node.start_byte : node.end_byte])
        if match is not None:
            self._note_value(
                match[1], (node.start_byte + match.end(), node.end_byte - 1)
            )

    def _note_value(self, name: str, span: tuple[int, int]) -> None:
        start, end = span
        written = self.text[start:end]
        if end - start > 1 and written[0] == written[-1] and written[0] in "\"'":
            start, end = start + 1, end - 1
        match = re.fullmatch(r"\"?\$\{?(\w+)(?::?[-=](.*?))?\}?\"?", written)
        if match is None and _PLAIN.fullmatch(self.text[start:end]):
            self._literals.setdefault(name, []).append((start, end))
        elif match is not None:
            self._aliases.setdefault(name, []).append(match[1])

    def _begins(self, span: tuple[int, int]) -> re.Match[str] | None:
        pattern = _PAIR if self.pairs else _DASHES
        return pattern.fullmatch(self.text[slice(*span)])

    def _options(
        self, kind: str, words: Sequence[tuple[int, int]]
    ) -> Iterator[OptionSite]:
        """Yield the options among words, each with what stands behind it."""
        place = 0
        while place < len(words):
            start, end = words[place]
            place += 1
            match = self._begins((start, end))
            if match is None:
                continue
            name = hyphenated(match[1] or match[3])
            if match[2] is not None or not match[1]:
                begin = start + match.end(1) + 1 if match[1] else start + match.start(4)
                yield OptionSite(name, start, end, (begin, end), kind)
                continue
            first = place
            while place < len(words) and not self._ends(words[place]):
                place += 1
            value = (words[first][0], words[place - 1][1]) if place > first else None
            yield OptionSite(name, start, value[1] if value else end, value, kind)

    def _ends(self, span: tuple[int, int]) -> bool:
        """Whether a word is no value of the option before it."""
        match = _LIST.fullmatch(self.text[slice(*span)])
        is_list = match is not None and (
            bool(match[2]) or match[1] in self._lists | {"*", "@"}
        )
        return is_list or self._begins(span) is not None
