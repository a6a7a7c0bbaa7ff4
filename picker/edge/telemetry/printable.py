"""What others have said, made fit to be shown: the one place where it is escaped.

Names of models, ids of requests, reasons of errors are a client's or an engine's words. On a terminal
ESC moves the cursor or names the window, a line end forges a line, a mark of direction turns the text
around; in a text log a blank and `=` forge a field.
"""

_QUOTED = frozenset(' "=\\')


def printable(text: str) -> str:
    """The text with everything that is not a plain printable character written as its escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def field(value: object) -> str:
    """A value of a text log's field: in quotes where it would not be one word."""
    text = printable(str(value))
    if text and _QUOTED.isdisjoint(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def json_line(line: str) -> str:
    """An encoded JSON value, the same value, without a character that a terminal would obey."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else _json_escape(each) for each in line)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
