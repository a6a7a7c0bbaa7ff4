"""`picker explain`: a running picker's last decisions, on a terminal."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from picker.edge.telemetry.printable import printable

TIMEOUT_SECONDS = 5.0
TOKEN_CHARS_MAX = 16 * 1024


class AskError(Exception):
    """There is no answer to show; the text says why and what to do. `status`: of HTTP, where there was an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def bearer_token(token: str | None, file: Path | None) -> str | None:
    """The token that a flag or a file gives. Raises `AskError`."""
    if file is not None:
        try:
            with file.open("r", encoding="ascii") as opened:
                token = opened.read(TOKEN_CHARS_MAX + 1).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it holds more than ASCII"
            raise AskError(f"cannot read the token in {file}: {why}") from None
    if token is None:
        return None
    if not token or len(token) > TOKEN_CHARS_MAX or not all("!" <= each <= "~" for each in token):
        raise AskError(f"{file or '--token'} holds no bearer token: one word of ASCII, {TOKEN_CHARS_MAX} at most")
    return token


@contextmanager
def opened(address: str, path: str, token: str | None = None) -> Iterator[http.client.HTTPResponse]:
    """An answer of the metrics port, to be read. Raises `AskError` where there is none, or it refuses."""
    request = urllib.request.Request(f"http://{address}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        response = _direct().open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            raise AskError(_refused(address, error, token), error.code) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AskError(_away(address, error)) from None
    with response:
        yield response


def _direct() -> urllib.request.OpenerDirector:
    """A question, and the token with it, goes to no proxy of the environment and to no target of a redirect."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(handler())
    return opener


def get(address: str, path: str, token: str | None = None) -> bytes:
    """A whole page of the metrics port. Raises `AskError`."""
    with opened(address, path, token) as response:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise AskError(_away(address, error)) from None


def ask(address: str, parameters: Mapping[str, str], token: str | None = None) -> dict[str, Any]:
    """What `GET /debug/decisions` answers. `parameters`: those of `question.PARAMETERS`. Raises `AskError`."""
    body = get(address, f"/debug/decisions?{urllib.parse.urlencode(parameters)}", token)
    try:
        answer = json.loads(body)
        if not isinstance(answer["decisions"], list):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise AskError(f"{address} answered with no decisions. Is this the picker's metrics port?") from None
    return dict(answer)


def show(decisions: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print them, newest first."""
    if as_json:
        print(json.dumps(decisions, indent=2))
        return
    console = Console(markup=False, highlight=False, emoji=False)
    for decision in decisions:
        console.print(_table(decision))


def _away(address: str, error: Exception) -> str:
    return f"no answer from {address}: {getattr(error, 'reason', error)}. Is this the picker's metrics port?"


def _refused(address: str, error: urllib.error.HTTPError, token: str | None) -> str:
    if error.code == 401:
        if token is None:
            return f"{address} wants a bearer token: --token-file FILE (metrics.auth of the chart asks for it)"
        return f"{address} does not take this bearer token: may its owner `get` the URL /metrics?"
    if error.code == 404:
        return f"{address} has no decisions to show. Is this the picker's metrics port?"
    try:
        return str(json.load(error)["error"])
    except (OSError, ValueError, TypeError, KeyError):
        return f"{address} answered {error.code}"


def _table(decision: dict[str, Any]) -> Table:
    table = Table(
        title=_text(_title(decision)),
        caption=_text(decision["summary"]),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("endpoint")
    table.add_column("holds", justify="right")
    scorers = list(decision["endpoints"][0]["seconds"])
    for name in scorers:
        table.add_column(f"{name} s", justify="right")
    table.add_column("cost s", justify="right")
    table.add_column("why")
    for endpoint in decision["endpoints"]:
        seconds = endpoint["seconds"]
        table.add_row(
            _text(endpoint["name"]),
            _holds(endpoint),
            *(f"{seconds[name]:.4f}" for name in scorers),
            f"{endpoint['cost_seconds']:.4f}",
            _text(endpoint["why"]),
            style="bold" if endpoint["picked"] else None,
        )
    return table


def _title(decision: dict[str, Any]) -> str:
    about = [f"{decision['prompt_tokens']:,} prompt tokens", f"model {decision['model'] or 'unknown'}"]
    if decision.get("tenant"):
        about.append(f"tenant {decision['tenant']}")
    if decision.get("status") is not None and decision["status"] >= 400:
        about.append(f"status {decision['status']}")
    ttft, predicted = decision.get("ttft_seconds"), decision.get("predicted_ttft_seconds")
    if ttft is not None:
        about.append(f"first token after {ttft:.3f} s" + (f", predicted {predicted:.3f}" if predicted else ""))
    served, addresses = decision.get("served"), decision.get("addresses")
    if served and addresses and served != addresses[0]:
        about.append(f"served by {served} instead")
    when, name = decision.get("decided_at", ""), decision["request_id"] or "request without id"
    return f"{when} {name}: {decision['reason']} ({', '.join(about)})".lstrip()


def _text(words: str) -> Text:
    """Of clients and engines: shown as it is, never read as markup."""
    return Text(printable(words))


def _holds(endpoint: dict[str, Any]) -> str:
    """Of the prompt; behind it what its engine's KV events confirm, where it publishes any."""
    confirmed = endpoint.get("confirmed_share")
    told = "" if confirmed is None else f" ({confirmed:.0%} confirmed)"
    return f"{endpoint['matched_share']:.0%}{told}"
