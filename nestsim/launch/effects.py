"""What became of each option of a launch configuration that was read."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionEffects:
    """The options of a configuration, each in one of three lists."""

    read: tuple[str, ...] = ()
    """Those that the scenario says, by their names there."""

    assumed: tuple[str, ...] = ()
    """Those with an effect that is not modelled: an assumption says what is taken."""

    without_effect: tuple[str, ...] = ()
    """Those that make no difference to the answer: paths, seeds, learning rates, and
    what belongs to a part that the job does not have."""

    @classmethod
    def of(
        cls, given: Sequence[str], *, read: Collection[str], assumed: Collection[str]
    ) -> "OptionEffects":
        """Return where each of some options stands.

        Parameters
        ----------
        given
            All of them.
        read
            Those that somebody read.
        assumed
            Those in whose place something else was taken, read or not.
        """
        names = tuple(dict.fromkeys(given))
        return cls(
            read=tuple(one for one in names if one in read and one not in assumed),
            assumed=tuple(one for one in names if one in assumed),
            without_effect=tuple(
                one for one in names if one not in read and one not in assumed
            ),
        )

    def __add__(self, other: "OptionEffects") -> "OptionEffects":
        """Return the lists of two parts of a configuration as one."""
        return OptionEffects(
            read=self.read + other.read,
            assumed=self.assumed + other.assumed,
            without_effect=self.without_effect + other.without_effect,
        )

    def to_json(self) -> dict[str, list[str]]:
        """Return the three lists."""
        return {
            "read": list(self.read),
            "assumed": list(self.assumed),
            "without_effect": list(self.without_effect),
        }
