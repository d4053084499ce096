"""The protobuf wire format of Chakra's messages, as far as traces need it.

A message is a sequence of fields, each a number and a wire type in one varint, then a
varint or a length and that many bytes (protobuf.dev, "Encoding"). A trace is a sequence
of messages, each behind its length: the metadata, then the nodes.

Numbers of fields and values, and names of attributes, are in ``schema.toml``.
"""

from collections.abc import Iterable, Mapping
from importlib import resources

import tomli

_FACTS = tomli.loads((resources.files(__package__) / "schema.toml").read_text("utf-8"))

SCHEMA: str = _FACTS["schema"]
"""Version of the schema, in a trace's metadata."""

NODE_FIELDS: Mapping[str, int] = _FACTS["node_fields"]
"""Field of the message Node -> its number."""

ATTRIBUTE_FIELDS: Mapping[str, int] = _FACTS["attribute_fields"]
"""Field of the message AttributeProto -> its number."""

NODE_TYPES: Mapping[str, int] = _FACTS["node_types"]
"""What a node does -> value of the enumeration NodeType."""

COLLECTIVES: Mapping[str, int] = _FACTS["collectives"]
"""Our name of a collective -> value of the enumeration CollectiveCommType."""

ATTRIBUTES: Mapping[str, str] = _FACTS["attributes"]
"""Name of an attribute -> field of its value."""

GAPS: Mapping[str, str] = _FACTS["gaps"]
"""Setting -> why it is not in a trace."""

_VARINT, _LENGTH = 0, 2


def varint(value: int) -> bytes:
    """Return a whole number that is not negative, seven bits a byte, the low first.

    Examples
    --------
    >>> varint(300).hex()
    'ac02'
    """
    if value < 0x80:  # most of them
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """Return a field with a whole number."""
    return varint(number << 3 | _VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field with bytes: a text, or a message."""
    return varint(number << 3 | _LENGTH) + varint(len(value)) + value


def attribute(name: str, value: int | str) -> bytes:
    """Return an attribute of a node, as a field."""
    field = ATTRIBUTE_FIELDS[ATTRIBUTES[name]]
    said = (
        bytes_field(field, value.encode())
        if isinstance(value, str)
        else number_field(field, int(value))
    )
    inner = bytes_field(ATTRIBUTE_FIELDS["name"], name.encode()) + said
    return bytes_field(NODE_FIELDS["attr"], inner)


def numbers_field(number: int, values: Iterable[int]) -> bytes:
    """Return a field with several whole numbers; nothing without any."""
    packed = b"".join(map(varint, values))
    return bytes_field(number, packed) if packed else b""


def delimited(message: bytes) -> bytes:
    """Return a message behind its length."""
    return varint(len(message)) + message


def metadata() -> bytes:
    """Return the first message of a trace, GlobalMetadata, behind its length."""
    return delimited(bytes_field(1, SCHEMA.encode()))
