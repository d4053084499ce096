"""Read XML that people hand in: elements and attributes, no declarations of any kind.

Declarations of types and entities are refused before anything of them is expanded: some
hundred bytes of them stand for gigabytes, or for other files.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from topologies.errors import InputError
from topologies.input_file import MAX_DEPTH

MAX_ELEMENTS = 20_000
"""Most elements of a document."""


@dataclass(slots=True)
class XmlElement:
    """One element."""

    name: str
    """Name of the element."""

    attributes: dict[str, str]
    """Attributes by name."""

    line: int
    """Line that it begins in, from 1."""

    children: list["XmlElement"] = field(default_factory=list)
    """Elements inside it."""

    def inner(self, name: str) -> Iterator["XmlElement"]:
        """Yield all elements of a name at any depth, in their order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.inner(name)


def parse_xml(content: bytes, *, expected: str) -> XmlElement:
    """Return the outermost element of a document.

    Parameters
    ----------
    content
        The document.
    expected
        What it should be, for messages.

    Raises
    ------
    InputError
        If it is not such XML, with the line. The message does not name the file.
    """
    reader = _XmlReader(expected)
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.EntityDeclHandler = reader.refuse
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    reader.parser = parser
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise InputError(
            f"is not XML: {expat.errors.messages.get(error.code, 'broken')}",
            where=f"line {error.lineno}",
            expected=expected,
        ) from None
    except InputError:
        raise
    except (ValueError, LookupError):  # an encoding that nobody knows
        raise InputError("is not XML in UTF-8", expected=expected) from None
    assert reader.root is not None, "a document has an outermost element"
    return reader.root


class _XmlReader:
    """Takes in elements as they begin and end."""

    parser: expat.XMLParserType

    def __init__(self, expected: str) -> None:
        self.expected = expected
        self.root: XmlElement | None = None
        self.open: list[XmlElement] = []
        self.count = 0

    def refuse(self, *_: object) -> None:
        raise self._error("has declarations of types or entities")

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise self._error(f"has more than {MAX_ELEMENTS:,} elements")
        if len(self.open) >= MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} deep")
        element = XmlElement(name, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, name: str) -> None:
        del name
        self.open.pop()

    def _error(self, problem: str) -> InputError:
        line = f"line {self.parser.CurrentLineNumber}"
        return InputError(problem, where=line, expected=self.expected)
