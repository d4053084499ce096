"""Words of a shell script: quotes, variables, arrays, arithmetic. Nothing is executed.

What nothing in the script sets, and what only running a command would tell, stays in a
word as a mark with its name: most such words are paths that no plan depends on, and
whoever needs the value refuses the mark (`first_unknown`).

After POSIX, "Shell Command Language", section 2.6, and the GNU Bash manual, sections
3.5 (expansions) and 6.7 (arrays); globs, braces and tildes stay as they are.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from topologies.errors import InputError

MOST_LETTERS = 2_000_000
"""Longest text that variables may grow to."""

MOST_NESTED = 50
"""Deepest nesting of brackets and quotations."""

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Marks around the name of what is not known: no characters of any script."""

_UNBROKEN = "\u00a0"

_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]")
_BODY = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])"
    r"(?:\[(?P<index>[^\]]{0,200})\])?"
    r"(?P<op>:?[-=?+]|//?|%%?|##?|\^\^?|,,?|:)?(?P<word>.*)",
    re.DOTALL,
)
_LETTERS = re.compile(r'(\\[$`\\\n])|[\\"]')
_BLANK = re.compile(r"[ \t\n]+")
_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)
_COMPARED: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)
_LARGEST = 2**62
_LONGEST_SUM = 200
_MOST_DIGITS = 19


def unknown(name: str) -> str:
    """Return the mark of something whose value nobody knows."""
    plain = name.replace(_OPEN, "").replace(_CLOSE, "")
    # Not to be split where it stands without quotes.
    unbroken = re.sub(r"\s+", _UNBROKEN, plain[:80])
    return f"{_OPEN}{unbroken}{_CLOSE}"


def behind_mark(text: str, position: int) -> int:
    """Return the position behind the mark, or the other letter, that begins here."""
    found = _MARK.match(text, position)
    return position + 1 if found is None else found.end()


def first_unknown(word: str) -> str | None:
    """Return what is not known in a word, as the script writes it; None if all is."""
    found = _MARK.search(word)
    return None if found is None else found[1].replace(_UNBROKEN, " ")


def known_word(word: str, where: str) -> str:
    """Return a word in which every variable is set.

    Raises
    ------
    InputError
        If one is not: with its name, and how its value is given.
    """
    name = first_unknown(word)
    if name is None:
        return word
    plain = name.strip("${}")
    raise InputError(
        "takes its value from a variable that nothing sets",
        where=where,
        got=name,
        expected="a value in the script",
        hint=f"--set {plain}=VALUE gives one"
        if plain.isidentifier() or plain.isdecimal()
        else "",
    )


def without_unknown(word: str) -> str:
    """Return a word with nothing in place of what is not known, as if it were unset."""
    return _MARK.sub("", word)


def readable(word: str) -> str:
    """Return a word with names in place of what is not known."""
    return _MARK.sub(lambda found: found[1].replace(_UNBROKEN, " "), word)


@dataclass(slots=True)
class Surroundings:
    """Variables of a shell, and how far they have grown."""

    variables: dict[str, str | list[str]] = field(default_factory=dict)
    """Name -> text, or list of words."""

    fixed: frozenset[str] = frozenset()
    """Names that keep the value that the user gave them."""

    grown: int = 0
    """Letters that expansions have made so far."""

    def assign(self, name: str, value: str | list[str], *, adds: bool = False) -> None:
        """Set a variable, or add to it; what the user gave stays."""
        if name in self.fixed:
            return
        if adds:
            before = self.variables.get(name, "" if isinstance(value, str) else [])
            if isinstance(value, list):
                value = (before if isinstance(before, list) else [before]) + value
            elif isinstance(before, list):
                value = [f"{before[0]}{value}", *before[1:]] if before else [value]
            else:
                value = before + value
        self.variables[name] = value
        self.grow(len(value) if isinstance(value, str) else sum(map(len, value)))

    def text(self, name: str) -> str | None:
        """Return a variable as one text; None if it is not set."""
        value = self.variables.get(name)
        if isinstance(value, list):
            return value[0] if value else ""
        return value

    def grow(self, letters: int) -> None:
        """Count what expansions make.

        Raises
        ------
        InputError
            If it is more than any script needs.
        """
        self.grown += letters
        if self.grown > MOST_LETTERS:
            raise InputError(
                "variables of the script grow without bound",
                got=f"more than {MOST_LETTERS:,} letters",
                expected="a launch script",
            )

    def fields(self, raw: str, depth: int = 0) -> list[str]:
        """Return the words that one written word becomes."""
        return _WordExpansion(self, raw, depth).fields()

    def one(self, raw: str, depth: int = 0) -> str:
        """Return a written word as one text, not split at blanks."""
        return " ".join(_WordExpansion(self, raw, depth, splits=False).fields())

    def within(self, text: str) -> str:
        """Return a here-document expanded: quotes in it are letters.

        A backslash is one, too, but in front of a dollar, a backquote, a backslash or
        the end of a line.
        """
        escaped = _LETTERS.sub(lambda found: found[1] or "\\" + found[0], text)
        return self.one(f'"{escaped}"')

    def sum(self, text: str) -> int | None:
        """Return the value of an arithmetic expression; None if it is not known.

        C's rules: division towards zero, true is 1.
        """
        if len(text) > _LONGEST_SUM:
            return None
        plain = self.one(text) if "$" in text or "`" in text else text
        plain = plain.strip().replace("/", "//").replace("&&", " and ")
        plain = plain.replace("||", " or ")
        if not plain or len(plain) > _LONGEST_SUM:
            return None
        try:
            tree = ast.parse(plain, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return self._value(tree.body)

    def _value(self, node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.Name):
            text = (self.text(node.id) or "").replace("_", "x")
            plain = text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS
            return int(text) if plain else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            inner = self._value(node.operand)
            if inner is None:
                return None
            return -inner if isinstance(node.op, ast.USub) else int(not inner)
        return self._compound(node)

    def _compound(self, node: ast.expr) -> int | None:
        """Return the value of two terms, or None."""
        if isinstance(node, ast.BoolOp):
            parts = [self._value(one) for one in node.values]
            join = all if isinstance(node.op, ast.And) else any
            return None if None in parts else int(join(parts))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self._value(node.left), self._value(node.comparators[0])
            compare = _COMPARED.get(type(node.ops[0]))
            known = left is not None and right is not None and compare is not None
            return int(compare(left, right)) if known else None  # type: ignore[misc, arg-type]  # known
        return self._calculated(node) if isinstance(node, ast.BinOp) else None

    def _calculated(self, node: ast.BinOp) -> int | None:
        """Return a sum, a product or a quotient, or None."""
        left, right = self._value(node.left), self._value(node.right)
        calculate = _BINARY.get(type(node.op))
        if left is None or right is None or calculate is None:
            return None
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and right == 0:
            return None
        value = calculate(left, right)
        return value if abs(value) < _LARGEST else None


class _WordExpansion:
    """One written word on its way to fields."""

    def __init__(
        self, shell: Surroundings, raw: str, depth: int, *, splits: bool = True
    ) -> None:
        if depth > 30:
            raise InputError(
                "expansions of the script are nested too deep",
                expected="a launch script",
            )
        self.shell, self.raw, self.depth, self.splits = shell, raw, depth, splits
        self.done: list[str] = []
        self.current: str | None = None

    def fields(self) -> list[str]:
        """Return the fields."""
        position, raw = 0, self.raw
        while position < len(raw):
            letter = raw[position]
            if letter == "\\":
                if raw[position + 1 : position + 2] != "\n":
                    self._add(raw[position + 1 : position + 2])
                position += 2
            elif letter == "'":
                end = raw.find("'", position + 1)
                end = len(raw) if end < 0 else end
                self._add(raw[position + 1 : end])
                position = end + 1
            elif letter == '"':
                position = self._quoted(position + 1)
            elif letter in "$`":
                position = self._dollar(position, quoted=False)
            else:
                position = self._letter(position)
        if self.current is not None:
            self.done.append(self.current)
        self.shell.grow(sum(map(len, self.done)))
        return self.done

    def _add(self, text: str) -> None:
        self.current = (self.current or "") + text

    def _break(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
        self.current = None

    def _split(self, text: str) -> None:
        """Add what an expansion without quotes gave: its blanks separate fields."""
        if not self.splits:
            self._add(text)
            return
        parts = _BLANK.split(text)
        for number, part in enumerate(parts):
            if number:
                self._break()
            if part:
                self._add(part)

    def _quoted(self, position: int) -> int:
        """Read up to the closing double quote; return the position behind it."""
        raw = self.raw
        self._add("")
        whole = re.compile(r'\$\{(\w+)\[@\]\}"|\$@"|\$\{@\}"').match(raw, position)
        if whole is not None and self._is_list(whole[1] or "@"):
            self._all(self._list(whole[1] or "@"))
            return whole.end()
        while position < len(raw) and raw[position] != '"':
            letter = raw[position]
            if letter == "\\":
                following = raw[position + 1 : position + 2]
                if following == "\n":
                    pass
                elif following in ('"', "\\", "$", "`"):
                    self._add(following)
                else:
                    self._add("\\" + following)
                position += 2
            elif letter in "$`":
                position = self._dollar(position, quoted=True)
            else:
                position = self._letter(position)
        return position + 1

    def _letter(self, position: int) -> int:
        """Add a letter, or a mark as it is; return the position behind it."""
        end = behind_mark(self.raw, position)
        self._add(self.raw[position:end])
        return end

    def _all(self, words: list[str]) -> None:
        """Add each word of a list as a field of its own."""
        if not words and not self.current:
            self.current = None
        for number, word in enumerate(words):
            if number:
                self._break()
            self._add(word)

    def _is_list(self, name: str) -> bool:
        return name == "@" or isinstance(self.shell.variables.get(name), list)

    def _list(self, name: str) -> list[str]:
        value = self.shell.variables.get(name, [])
        return value if isinstance(value, list) else [value]

    def _dollar(self, position: int, *, quoted: bool) -> int:
        """Expand what begins here; return the position behind it."""
        raw = self.raw
        if raw[position] == "`":
            end = raw.find("`", position + 1)
            end = len(raw) if end < 0 else end
            self._put(self._command(raw[position + 1 : end]), quoted=quoted)
            return end + 1
        if raw.startswith("$((", position):
            end = closing(raw, position + 1)
            value = self.shell.sum(raw[position + 3 : end - 2])
            text = unknown(raw[position:end]) if value is None else str(value)
            self._put(text, quoted=quoted)
            return end
        if raw.startswith("$(", position):
            end = closing(raw, position + 1)
            self._put(self._command(raw[position + 2 : end - 1]), quoted=quoted)
            return end
        if raw.startswith("${", position):
            end = closing(raw, position + 1)
            self._put(self._parameter(raw[position + 2 : end - 1]), quoted=quoted)
            return end
        name = _NAME.match(raw, position + 1)
        if name is None:
            self._add("$")
            return position + 1
        self._put(self._parameter(name[0]), quoted=quoted)
        return name.end()

    def _put(self, text: str, *, quoted: bool) -> None:
        self.shell.grow(len(text))
        if quoted:
            self._add(text)
        else:
            self._split(text)

    def _command(self, text: str) -> str:
        """Return what a command would print, which only ``echo`` tells."""
        found = re.fullmatch(r"\s*(?:echo|printf '%s')\s+([^|;&<>]*)", text)
        if found is None:
            return unknown(f"$({text.strip()})")
        pieces = [self.shell.one(word, self.depth + 1) for word in found[1].split()]
        return " ".join(pieces)

    def _parameter(self, body: str) -> str:
        """Return what stands for ``${body}``."""
        length = body.startswith("#") and len(body) > 1
        found = _BODY.fullmatch(body[1:] if length else body.removeprefix("!"))
        if found is None or (body.startswith("!") and len(body) > 1):
            return unknown(f"${{{body}}}")
        value = self._looked_up(found["name"], found["index"])
        if length:
            if found["index"] in ("@", "*"):
                return str(len(self._list(found["name"])))
            return unknown(f"${{{body}}}") if value is None else str(len(value))
        op, word = found["op"] or "", found["word"]
        if not op:
            return unknown("$" + found["name"]) if value is None else value
        return self._with_operator(found["name"], value, op, word)

    def _looked_up(self, name: str, index: str | None) -> str | None:
        if name in ("@", "*") or index in ("@", "*"):
            name = "@" if name == "*" else name
            if name not in self.shell.variables:
                return "" if name in ("@", "*") else None
            return " ".join(self._list(name))
        if index is not None:
            words, number = self._list(name), self.shell.sum(index)
            if number is None or not -len(words) <= number < len(words):
                return None
            return words[number]
        return self.shell.text(name)

    def _with_operator(self, name: str, value: str | None, op: str, word: str) -> str:
        """Return a parameter with a default, or changed."""
        missing = value is None or (op.startswith(":") and value == "")
        if op in (":-", "-", ":=", "="):
            if not missing:
                return value or ""
            filled = self.shell.one(word, self.depth + 1)
            if op.endswith("="):
                self.shell.assign(name, filled)
            return filled
        if op in (":+", "+"):
            return "" if missing else self.shell.one(word, self.depth + 1)
        if value is None or first_unknown(value) is not None:
            return unknown("$" + name)
        if op in ("^^", "^", ",,", ","):
            return value.upper() if "^" in op else value.lower()
        return value if op in (":?", "?") else unknown("$" + name)


def closing(text: str, start: int, depth: int = 0) -> int:
    """Return the position behind the bracket that closes the one at ``start``.

    Raises
    ------
    InputError
        If quotations and brackets are nested deeper than in any script.
    """
    if depth > MOST_NESTED:
        raise InputError(
            "brackets are nested too deep",
            got=f"more than {MOST_NESTED} times",
            expected="a launch script",
        )
    inside, position = 0, start
    while position < len(text):
        letter = text[position]
        if letter == "'":
            end = text.find("'", position + 1)
            position = len(text) if end < 0 else end
        elif letter == '"':
            position = behind_quotes(text, position + 1, depth + 1) - 1
        else:
            inside += (letter in "({") - (letter in ")}")
            if inside == 0:
                return position + 1
            position += letter == "\\"
            position = behind_mark(text, position) - 1
        position += 1
    return len(text)


def behind_quotes(text: str, position: int, depth: int = 0) -> int:
    """Return the position behind the closing double quote, expansions passed over."""
    while position < len(text) and text[position] != '"':
        if text[position] == "\\":
            position += 2
        elif text[position] == "$" and text[position + 1 : position + 2] in ("(", "{"):
            position = closing(text, position + 1, depth + 1)
        else:
            position = behind_mark(text, position)
    return min(position + 1, len(text))


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a plain text of options, quotes and comments as in a shell."""
    shell = Surroundings()
    for line in text.replace("\\\n", " ").splitlines():
        plain = line.split(" #")[0].strip()
        if not plain.startswith("#"):
            for word in re.findall(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+", plain):
                yield from shell.fields(word)
