"""Our own answers, in the shape that the client's API uses for errors."""

import msgspec

from picker.extproc.replies import Immediate

_OPENAI_TYPES = {
    400: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def answer(
    status: int, message: str, word: str, *, anthropic: bool = False, retry_after_seconds: int | None = None
) -> Immediate:
    """An error for the client. `word` says why in one word: header `x-picker-reason` and the access log."""
    if anthropic:
        tree: dict[str, object] = {
            "type": "error",
            "error": {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message},
        }
    else:
        kind = _OPENAI_TYPES.get(status, "internal_error")
        tree = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    headers = [("content-type", "application/json"), ("x-picker-reason", word)]
    if retry_after_seconds is not None:
        headers.append(("retry-after", str(retry_after_seconds)))
    return Immediate(status, tuple(headers), msgspec.json.encode(tree), word)
