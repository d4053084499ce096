"""The reference of the command line, from the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from nestsim.cli.app import app


def commands() -> dict[str, Any]:
    """Return the commands by name, in the order in which help lists them."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def commands_reference() -> str:
    """Return the reference of all commands as Markdown."""
    lines: list[str] = []
    for name, command in commands().items():
        lines += [f"## `nestsim {name}` {{ #{name} }}", ""]
        lines += [_usage(name, command), "", *_help_words(command.help), ""]
        rows = list(_rows(command))
        if rows:
            lines += ["| Option | Meaning | Default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _usage(name: str, command: Any) -> str:
    words = [
        _argument(parameter)
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    words = [f"nestsim {name}", *words, *(["[OPTIONS]"] if command.params else [])]
    return f"```text\n{' '.join(words)}\n```"


def _argument(parameter: Any) -> str:
    several = "..." if parameter.nargs == -1 else ""
    word = f"{parameter.metavar}{several}"
    return word if parameter.required else f"[{word}]"


def _help_words(text: str) -> Iterator[str]:
    """Yield the paragraphs of a command's help; an example becomes a block of code."""
    for paragraph in text.split("\n\n"):
        words = " ".join(paragraph.split())
        if example := re.fullmatch(r"Example: `([^`]+)`", words):
            yield f"```console\n$ {example[1]}\n```\n"
        else:
            yield words.replace("[", "\\[") + "\n"


def _rows(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            names = f"`{_argument(parameter)}`"
        else:
            names = ", ".join(f"`{name}`" for name in parameter.opts)
            if not parameter.is_flag:
                names += f" `{parameter.metavar}`" if parameter.metavar else ""
        words = " ".join((parameter.help or "").split()).replace("|", "\\|")
        yield f"| {names} | {words} | {_default(parameter)} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "must be given"
    value = parameter.default
    return "" if value in {None, False} or callable(value) else f"`{value}`"
