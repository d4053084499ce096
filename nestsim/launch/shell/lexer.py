"""Where words, quotations and expansions of a shell script end.

After POSIX, "Shell Command Language", sections 2.2, 2.3 and 2.6, with Bash's ``$'..'``,
``<(..)`` and patterns in brackets.
"""

from collections.abc import Callable

from nestsim.launch.shell.marks import behind_mark
from topologies.errors import InputError

MOST_NESTED = 50
"""Deepest nesting of brackets and quotations."""

BLANKS = " \t\r"
METACHARACTERS = BLANKS + "\n;|&<>()"
_EXTENDED = "@?*+!"

BehindCommands = Callable[[int, int], int]
"""Position behind ``$(``, depth -> position of the bracket that closes it."""


class Lexer:
    """Finds the ends of parts of a text.

    Parameters
    ----------
    text
        The script.
    behind_commands
        Finds the end of the commands in ``$(..)``.
    depth
        How deep the text is nested already.
    """

    def __init__(
        self, text: str, behind_commands: BehindCommands, depth: int = 0
    ) -> None:
        self.text = text
        self._commands = behind_commands
        self.depth = depth
        self.is_quoted = False
        check_depth(depth)

    def behind_word(self, at: int) -> int:
        """Return the position behind a word; ``at`` where none begins."""
        text, start = self.text, at
        while at < len(text):
            letter = text[at]
            if letter == "(" and at > start and text[at - 1] in _EXTENDED:
                at = self.behind_brackets(at)
            elif text.startswith(("<(", ">("), at):
                at = self._behind_commands(at + 2)
            elif letter in METACHARACTERS:
                break
            else:
                at = self.behind_part(at)
        return at

    def behind_part(self, at: int) -> int:
        """Return the position behind a letter, a quotation or an expansion."""
        text, letter = self.text, self.text[at]
        if letter == "\\":
            return min(at + 2, len(text))
        if letter == "'" and not self.is_quoted:
            return self._behind_mark("'", at + 1, at)
        if letter == '"':
            return self.behind_quotes(at + 1)
        if letter == "`":
            return self._behind_escaped("`", at + 1, at)
        if letter == "$":
            return self._behind_dollar(at)
        return behind_mark(text, at)

    def _behind_dollar(self, at: int) -> int:
        following = self.text[at + 1 : at + 2]
        if following == "'" and not self.is_quoted:
            return self._behind_escaped("'", at + 2, at)
        if following == '"' and not self.is_quoted:
            return self.behind_quotes(at + 2)
        if following == "{":
            return self._behind_parameter(at + 2)
        if following != "(":
            return at + 1
        if self.text.startswith("$((", at):
            end = self.behind_arithmetic(at + 1)
            if end is not None:
                return end
        return self._behind_commands(at + 2)

    def behind_arithmetic(self, at: int) -> int | None:
        """Return the position behind the ``((..))`` here; None if it is none."""
        text, inside, position = self.text, 0, at
        while position < len(text):
            letter = text[position]
            if letter in "()":
                inside += 1 if letter == "(" else -1
                if inside == 1 and letter == ")" and text[position + 1 :][:1] != ")":
                    return None
                position += 1
                if inside == 0:
                    return position
            else:
                position = self._deeper(position)
        return None

    def behind_brackets(self, at: int) -> int:
        """Return the position behind the bracket that closes the one here."""
        text, inside, position = self.text, 0, at
        while position < len(text):
            letter = text[position]
            inside += (letter == "(") - (letter == ")")
            position = self._deeper(position)
            if inside == 0:
                return position
        raise self.left_open("(", ")", at)

    def behind_quotes(self, at: int) -> int:
        """Return the position behind the closing double quote."""
        text, position = self.text, at
        outer, self.is_quoted = self.is_quoted, True
        while position < len(text) and text[position] != '"':
            position = self._deeper(position)
        self.is_quoted = outer
        if position >= len(text):
            raise self.left_open('"', '"', at - 1)
        return position + 1

    def _behind_parameter(self, at: int) -> int:
        text, position = self.text, at
        outer, self.is_quoted = self.is_quoted, False
        while position < len(text) and text[position] != "}":
            position = self._deeper(position)
        self.is_quoted = outer
        if position >= len(text):
            raise self.left_open("${", "}", at - 2)
        return position + 1

    def _behind_commands(self, at: int) -> int:
        """Return the position behind the bracket that ends commands."""
        end = self._commands(at, self.depth + 1)
        if end >= len(self.text):
            raise self.left_open("$(", ")", at - 2)
        return end + 1

    def _behind_mark(self, mark: str, at: int, start: int) -> int:
        end = self.text.find(mark, at)
        if end < 0:
            raise self.left_open(mark, mark, start)
        return end + 1

    def _behind_escaped(self, mark: str, at: int, start: int) -> int:
        text = self.text
        while at < len(text) and text[at] != mark:
            at += 2 if text[at] == "\\" else 1
        if at >= len(text):
            raise self.left_open(text[start : start + 1], mark, start)
        return at + 1

    def _deeper(self, at: int) -> int:
        """Return the position behind a part, one level further inside."""
        self.depth += 1
        check_depth(self.depth)
        end = self.behind_part(at)
        self.depth -= 1
        return end

    def left_open(self, mark: str, closer: str, at: int) -> InputError:
        """Return the refusal of something that does not close."""
        line = self.text.count("\n", 0, at) + 1
        return InputError(f"{mark} is left open in line {line}", expected=closer)


def check_depth(depth: int) -> None:
    """Refuse what is nested deeper than any script."""
    if depth > MOST_NESTED:
        raise InputError(
            "brackets are nested too deep",
            got=f"more than {MOST_NESTED} times",
            expected="a launch script",
        )
