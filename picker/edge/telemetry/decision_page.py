"""GET /debug/decisions: the last decisions, explained. `question.py` says what may be asked of them.

Explaining a decision among a thousand endpoints takes milliseconds, so they are explained one at a time
with the loop's turn between them, and no more of them than `ANSWER_BYTES_MAX` holds. `endpoints=all` shows every
endpoint that stood for a choice, the pick first and then the cheapest, `ENDPOINTS_MAX` at most, in steps.
"""

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from picker.edge.telemetry.decisions import DecisionRing, KeptDecision
from picker.edge.telemetry.moments import moment_text
from picker.edge.telemetry.question import QuestionError, find, question
from picker.scheduling.explanation import LazyExplanation

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
ENDPOINTS_MAX: Final = 5_000
STEP_ENDPOINTS: Final = 50
_encode: Final = msgspec.json.Encoder().encode


def decision_routes(decisions: DecisionRing) -> list[web.RouteDef]:
    """For the metrics port."""

    async def show(request: web.Request) -> web.StreamResponse:
        try:
            asked = question(request.query.items(), decisions.clock())
        except QuestionError as error:
            return _json(_encode({"error": str(error)}), status=400)
        found = find(decisions, asked)
        parts: list[bytes] = []
        room = ANSWER_BYTES_MAX
        for kept in found.decisions:
            shown = decisions.shown(kept)
            if asked.every_endpoint:
                shown["endpoints"] = await _everybody(decisions, kept)
            part = _encode(shown)
            room -= len(part)
            if room < 0:
                break
            parts.append(part)
            await asyncio.sleep(0)
        about = _encode(
            {
                "matched": found.matched,
                "kept": found.kept,
                "oldest": None if found.oldest is None else moment_text(found.oldest),
                "searched": asked.searched(),
            }
        )
        return _json(b'{"decisions":[%b],%b' % (b",".join(parts), about[1:]))

    return [web.get("/debug/decisions", show)]


async def _everybody(decisions: DecisionRing, kept: KeptDecision) -> object:
    explain = kept.picked.explain
    if not isinstance(explain, LazyExplanation):
        return explain().endpoints
    slots = dict.fromkeys((explain.choice.slot, *explain.standing()))
    parts: list[bytes] = []
    for row in decisions.rows(kept.picked, list(slots)[:ENDPOINTS_MAX]):
        parts.append(_encode(row))
        if len(parts) % STEP_ENDPOINTS == 0:
            await asyncio.sleep(0)
    return msgspec.Raw(b"[%b]" % b",".join(parts))


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
