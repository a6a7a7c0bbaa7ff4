"""`picker explain`: a running picker's last decisions, on a terminal."""

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from rich.console import Console
from rich.table import Table

TIMEOUT_SECONDS = 5.0


def ask(address: str, request_id: str | None, count: int) -> list[dict[str, Any]]:
    """Fetch decisions from the metrics port. Raises `OSError`, and `LookupError` where the id is unknown."""
    query = {"request_id": request_id} if request_id is not None else {"count": str(count)}
    url = f"http://{address}/debug/decisions?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise LookupError(f"request {request_id!r} is not among the last decisions") from None
        raise
    found: list[dict[str, Any]] = [answer] if request_id is not None else answer["decisions"]
    return found


def show(decisions: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print them, newest first."""
    if as_json:
        print(json.dumps(decisions, indent=2))
        return
    console = Console()
    if not decisions:
        console.print("no decision yet")
    for decision in decisions:
        console.print(_table(decision))


def _table(decision: dict[str, Any]) -> Table:
    table = Table(
        title=f"{decision['request_id'] or 'request without id'}: {decision['reason']} "
        f"({decision['prompt_tokens']:,} prompt tokens, model {decision['model'] or 'unknown'})",
        caption=decision["summary"],
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
            endpoint["name"],
            f"{endpoint['matched_share']:.0%}",
            *(f"{seconds[name]:.4f}" for name in scorers),
            f"{endpoint['cost_seconds']:.4f}",
            endpoint["why"],
            style="bold" if endpoint["picked"] else None,
        )
    return table
