"""YAML as plain values: no tags, no references, no deep nesting."""

from typing import Any

from topologies.errors import InputError
from topologies.input_file import MAX_DEPTH


def parse_yaml(text: str, expected: str) -> Any:
    """Read YAML without tags, references and deep nesting.

    Parameters
    ----------
    text
        The file.
    expected
        What it should be, for messages.

    Raises
    ------
    InputError
        If it is none, or not plain.
    """
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
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
