"""Where does it live? A session, a stored response, a conversation; and the prefix of a decision that is kept."""

from typing import Any, Final

from picker.director import Director
from picker.edge.telemetry.decisions import DecisionRing, KeptDecision
from picker.edge.telemetry.question import DecisionQuestion, find
from picker.extproc.exchange import NAME_CHARS_MAX as ID_CHARS_MAX
from picker.pool.snapshot import bits_to_slots

NAME_CHARS_MAX: Final = 1024
HOLDERS_MAX: Final = 200


def residence(director: Director, decisions: DecisionRing, now: float, *, name: str, number: int) -> dict[str, Any]:
    """By a name (what a client called its session, response or conversation, or a request id), or by the number of a
    decision; 0 is none. Nothing is learned from asking: keys of sessions are digests."""
    name = name.strip()[:NAME_CHARS_MAX]
    found: KeptDecision | None = None
    if number:
        found = decisions.numbered(number)
    elif name:
        found = next(iter(find(decisions, DecisionQuestion(request_id=name[:ID_CHARS_MAX], count=1)).decisions), None)
    homes = director.stickiness.known(name, now) if name else []
    return {
        "homes": [
            {"kind": kind, "endpoint": endpoint.spec.name, "address": endpoint.spec.address} for kind, endpoint in homes
        ],
        "sessions": director.hint_rules is not None
        and (director.hint_rules.session_header is not None or director.hint_rules.session_cookie is not None),
        "prefix": None if found is None else _prefix(director, now, found),
    }


def _prefix(director: Director, now: float, kept: KeptDecision) -> dict[str, Any]:
    hashes = kept.picked.booking.hashes
    match = director.index.match(hashes, now)
    snapshot = director.datastore.snapshot(now)
    holders: list[dict[str, Any]] = []
    count = 0
    for bits, blocks in reversed(match.steps):
        for slot in bits_to_slots(bits, max(snapshot.width, bits.bit_length())).tolist():
            endpoint = snapshot.endpoints[slot] if slot < snapshot.width else None
            if endpoint is None:
                continue
            count += 1
            if len(holders) >= HOLDERS_MAX:
                continue
            confirmed = director.residency.confirmed(hashes, slot, blocks) if director.residency is not None else None
            holders.append(
                {
                    "endpoint": endpoint.spec.name,
                    "address": endpoint.spec.address,
                    "blocks": blocks,
                    "share": round(blocks / len(hashes), 4),
                    "confirmed_share": None if confirmed is None else round(confirmed / len(hashes), 4),
                }
            )
    return {
        "number": kept.number,
        "request_id": kept.record.request_id,
        "model": kept.record.model,
        "blocks": len(hashes),
        "holders": holders,
        "holders_total": count,
    }
