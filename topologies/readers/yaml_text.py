"""Read YAML that people hand in: no tags, no references, no deep nesting."""

from typing import Any

from topologies.errors import InputError
from topologies.input_file import MAX_DEPTH


def parse_yaml(text: str, *, expected: str) -> Any:
    """Return what a YAML text says, as plain values.

    References between values are refused: a few lines of them stand for gigabytes.

    Parameters
    ----------
    text
        The text.
    expected
        What it should be, for messages.

    Raises
    ------
    InputError
        If it is not such YAML. The message does not name the file.
    """
    import yaml

    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        depth = 0
        for event in events:
            if isinstance(event, yaml.AliasEvent):
                raise InputError(
                    "has references (&, *) between its values", expected=expected
                )
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InputError(
                    f"is nested more than {MAX_DEPTH} deep", expected=expected
                )
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise InputError(f"is not YAML{line}", expected=expected) from None
    except InputError:
        raise
    except (ValueError, OverflowError):
        raise InputError("has a value that cannot be read", expected=expected) from None
