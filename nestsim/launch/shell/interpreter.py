"""A shell on its way through a script: what it knows, and what it is asked."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from nestsim.launch.shell.marks import HERE, first_unknown, readable, unknown
from nestsim.launch.shell.state import ConditionError, Flow, State, Status, Variables
from nestsim.launch.shell.tree import Code, Span
from nestsim.launch.shell.words import Expander


class Interpreter(ABC):
    """A shell, as the commands that it follows see it."""

    def __init__(self, variables: Variables, state: State) -> None:
        self.variables, self.state, self.flow = variables, state, Flow()
        self.functions: dict[str, Code] = {}
        self.expander = Expander(variables, self)

    @abstractmethod
    def follow(self, codes: Sequence[Code]) -> Status:
        """Follow commands in turn; return the status of the last one."""

    @abstractmethod
    def start(self, words: list[str]) -> Status:
        """Start a command: a function, one of Bash's own, or a program."""

    @abstractmethod
    def source(self, text: str, name: str, arguments: list[str]) -> Status:
        """Follow another file in this shell."""

    @abstractmethod
    def program(self, words: list[str]) -> Status:
        """Note a program, and follow what it hands to another shell."""

    @abstractmethod
    def output_of(self, code: Code, text: str) -> str:
        """Return what commands print; a mark with their text if nobody knows."""

    def special(self, name: str) -> str | None:
        """Return ``$?``, ``$#`` and the like, or an argument; None if not set."""
        arguments = self.expander.arguments
        if name.isdecimal() and name != "0":
            number = int(name)
            return arguments[number - 1] if number <= len(arguments) else None
        if name == "#":
            return str(len(arguments))
        if name == "?":
            status = self.flow.status
            if status is None:
                self.take(in_condition=False)
                return "1" if self.flow.doubt[2] else "0"
            return str(status)
        return (name == "0" and self.expander.zero) or unknown("$" + name)

    def is_set(self, name: str) -> bool | None:
        """Whether a variable is set."""
        plain, _, index = name.partition("[")
        held = self.variables.table.get(plain)
        if held is None:
            return False
        if index:
            return self.expander.key(plain, index.removesuffix("]")) in held.items
        return held.text is not None

    def placed(self, name: str) -> str:
        """Return a path from where the shell works, if that is beside the script."""
        is_whole = first_unknown(name) is not None or name[:1] in ("", "/", "-")
        folder = self.flow.folder
        return f"{folder}/{name}" if folder and not is_whole else name

    def has_file(self, name: str, operator: str) -> bool | None:
        """Whether a file is there: one that the script writes, or so it is taken."""
        if self.state.file(name) is not None:
            return operator not in ("-d", "-L", "-h", "-x")
        whole = self.placed(name)
        place = self.state.beside(whole) if whole.startswith(HERE) else None
        is_there = (
            place is None or (place.is_dir if operator == "-d" else place.exists)()
        )
        if name not in ("/", "/dev/null", "/tmp", ".") and not (place and is_there):
            known = "there" if is_there else "not there"
            self.note(f"{name} is {known}, which the script asks in line {{line}}.")
        return is_there

    def note(self, sentence: str) -> None:
        """Note what is taken; ``{line}`` is the line that is followed."""
        self.state.assumptions.append(
            readable(sentence.replace("{line}", str(self.flow.line)))
        )

    def note_unset(self) -> None:
        """Note that a variable which nothing sets is set, where it must be."""
        if "u" in self.flow.options:
            self.note("Variables that nothing in the script sets are set (set -u).")

    def note_patterns(self) -> None:
        """Note words with patterns of file names, which stay as they are."""
        for word in self.expander.take_patterns():
            self.note(f"{word[:60]} in line {{line}} of the script stands for itself.")

    def bare_sum(self, text: Span | str) -> int | None:
        """Return the value of arithmetic in which what nothing sets is 0."""
        with self.expander.without_unset():
            return self.expander.sum(text)

    def rest_of_input(self) -> str | None:
        """Read all that a command is given; None if nobody knows."""
        stdin = self.flow.stdin
        return None if stdin is None else stdin.rest()

    def emit(self, text: str) -> None:
        """Print a text."""
        if self.flow.out is not None:
            self.flow.out.append(text)
            self.variables.grow(len(text))

    def write(self, name: str, adds: bool, text: str) -> None:
        """Keep the text of a file that the script writes."""
        if not name.startswith("/dev/"):
            before = self.state.files.get(name, "") if adds else ""
            self.state.files[name] = before + text
            self.variables.grow(len(before) + len(text))

    def status_of(self, condition: Callable[[], bool | None]) -> Status:
        """Return the status of a condition; where only a run would tell, doubt it."""
        try:
            holds = condition()
        except ConditionError:
            return 2
        if holds is None:
            self.flow.doubt = "", self.flow.line, True
        return None if holds is None else int(not holds)

    def take(self, *, in_condition: bool) -> bool:
        """Note how a command that nobody knows the status of is taken to end."""
        name, line, is_test = self.flow.doubt
        if in_condition or is_test:
            sentence = f"The condition in line {line} of the script does not hold."
        else:
            sentence = f"{readable(name)[:60]} succeeds (line {line})."
        self.state.assumptions.append(sentence)
        return not in_condition and not is_test
