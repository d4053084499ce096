"""The reference of the command line, from the descriptions of its commands."""

import re
from collections.abc import Iterator

from nestsim.registry import COMMANDS, KINDS, Command, Option


def commands_reference() -> str:
    """Return the reference of all commands as Markdown."""
    lines: list[str] = []
    for command in COMMANDS:
        lines += [f"## `nestsim {command.name}` {{ #{command.name} }}", ""]
        lines += [_usage(command), "", *_help_words(command.words), ""]
        if command.options:
            rows = [_row(option) for option in command.options]
            lines += ["| Option | Meaning | Default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _usage(command: Command) -> str:
    arguments = [_argument(option) for option in command.options if option.is_argument]
    words = [*arguments, *(["[OPTIONS]"] if command.options else [])]
    return f"```text\nnestsim {' '.join((command.name, *words))}\n```"


def _argument(option: Option) -> str:
    word = f"{option.name}{'...' if option.is_list else ''}"
    return word if option.required else f"[{word}]"


def _help_words(text: str) -> Iterator[str]:
    """Yield the paragraphs of a command's help; an example becomes a block of code."""
    for paragraph in text.strip().split("\n\n"):
        words = " ".join(paragraph.split())
        if example := re.fullmatch(r"Example: `([^`]+)`", words):
            yield f"```console\n$ {example[1]}\n```\n"
        else:
            yield words.replace("[", "\\[") + "\n"


def _row(option: Option) -> str:
    if option.is_argument:
        names = f"`{_argument(option)}`"
    else:
        names = ", ".join(f"`{name}`" for name in (option.name, option.short) if name)
        value = option.metavar or "|".join(option.choices)
        if KINDS[option.kind] is not bool and value:
            names += f" `{value}`".replace("|", "\\|")
    words = option.help.replace("|", "\\|")
    default = "" if option.default in {None, ""} else f"`{option.default}`"
    return f"| {names} | {words} | {'must be given' if option.required else default} |"
