"""What tests do with a fault of the picker: it is the test's failure, whatever the picker makes of it."""

from typing import NoReturn


def raised(where: str, error: BaseException) -> NoReturn:
    """For `faulted`."""
    raise AssertionError(f"a fault of the picker in {where!r}") from error
