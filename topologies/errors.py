"""The one exception for mistakes in the input, worded so that they can be fixed."""


class InputError(ValueError):
    """A mistake in the input.

    Low-level code raises it without knowing the file or the setting; callers on the
    way up add *where* with `at`, until the command line prints it without a
    traceback and exits with status 2.

    Parameters
    ----------
    problem
        What is wrong, in one clause.
    where
        Dotted path of the setting, e.g. ``cluster.network.levels[1].bandwidth``.
    got
        The value found; None when there is nothing to show.
    expected
        What would have been accepted, with an example.
    hint
        A likely fix. Leave out rather than guess.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str = "",
        got: object = None,
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.problem, self.where, self.got = problem, where, got
        self.expected, self.hint = expected, hint
        super().__init__(problem)

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.problem}" if self.where else self.problem]
        if self.got is not None:
            lines.append(f"  got:      {self.got!r}")
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.hint:
            lines.append(f"  hint:     {self.hint}")
        return "\n".join(lines)

    def at(self, where: str, separator: str = ".") -> "InputError":
        """Return a copy whose location is prefixed with ``where``."""
        path = f"{where}{separator}{self.where}" if self.where else where
        return InputError(
            self.problem,
            where=path,
            got=self.got,
            expected=self.expected,
            hint=self.hint,
        )
