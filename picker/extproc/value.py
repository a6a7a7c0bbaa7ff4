"""What events and replies have in common: they are values, compared and shown by their fields."""


class Value:
    """Equal to another of its class with equal fields. Immutable by convention."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        return all(getattr(self, name) == getattr(other, name) for name in _fields(type(self)))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in _fields(type(self)))
        return f"{type(self).__name__}({fields})"


def _fields(kind: type) -> tuple[str, ...]:
    """The names in a class's `__slots__`, which mypyc keeps under a name of its own."""
    for name in ("__mypyc_attrs__", "__slots__"):
        names: tuple[str, ...] | None = getattr(kind, name, None)
        if names is not None:
            return names
    return ()
