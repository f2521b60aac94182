"""Every error that promptkit raises on purpose.

    PromptkitError
    |- UsageError       2  an argument, option, name or path is wrong
    |- GateError        3  the check ran and the answer is no
    |- InputError       4  the content of an input cannot be used
    |- IntegrityError   5  a hash, size or name differs from what was written
    `- ResourceError    6  disk, memory or time ran out

The number is the exit code of the command. Code 1 is left to bugs. A message has the subject, what was found, what
was expected and the next step; `hint` holds the next step so that a program can show it apart.
"""

from __future__ import annotations


class PromptkitError(Exception):
    """Base of all errors raised on purpose; `hint` is the next step, or an empty string."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:  # errors cross process pools
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[PromptkitError], message: str, hint: str) -> PromptkitError:
    return kind(message, hint=hint)


class UsageError(PromptkitError):
    """An argument, option, name or path is wrong."""

    exit_code = 2


class GateError(PromptkitError):
    """The check ran and the answer is no."""

    exit_code = 3


class InputError(PromptkitError):
    """The content of an input cannot be used."""

    exit_code = 4


class IntegrityError(PromptkitError):
    """A hash, size or name differs from what was written."""

    exit_code = 5


class ResourceError(PromptkitError):
    """Disk, memory or time ran out."""

    exit_code = 6
