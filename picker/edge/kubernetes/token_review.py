"""Whether a caller may read the metrics page. It asks the API server: TokenReview, then SubjectAccessReview.

The picker keeps no list of its own: a caller sends a bearer token, the API server says whose it
is and whether RBAC lets it `get` the non-resource URL `/metrics`. Answers are kept for a while,
under a digest of the token, so that a scrape every ten seconds costs the API server nothing.

Invariants: a token is never logged or kept; at most `KEPT_MAX` answers are kept and
`REVIEWS_MAX` reviews run at once, beyond which strangers are refused unasked; while the API
server is away, who was allowed within `STALE_SECONDS` stays so, and nobody else is.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from picker.edge.kubernetes.api import AnswerTooLargeError, ApiAnswer, ApiUnreachableError

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ALLOWED_SECONDS = 60.0
REFUSED_SECONDS = 10.0
STALE_SECONDS = 600.0
REVIEW_SECONDS_MAX = 5.0
KEPT_MAX = 256
REVIEWS_MAX = 8
TOKEN_BYTES_MAX = 16 * 1024


class ReviewApi(Protocol):
    """The part of `KubernetesApi` that is used."""

    async def request(
        self,
        method: str,
        path: str,
        params: None = None,
        body: Any = None,
        *,
        timeout_seconds: float | None = None,
    ) -> ApiAnswer: ...


class ReviewError(Exception):
    """The API server could not say."""


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct):
    authenticated: bool = False
    allowed: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class _Kept(msgspec.Struct, frozen=True):
    allowed: bool
    at_seconds: float


class MetricsAccess:
    """`await access(token)`: whether this bearer token may read the page. An `Authorize` of the metrics server."""

    def __init__(
        self, api: ReviewApi, *, clock: Callable[[], float], log: Callable[..., None], path: str = "/metrics"
    ) -> None:
        """`clock` is monotonic seconds; `log(level, message, **fields)`."""
        self._api = api
        self._clock = clock
        self._log = log
        self._attributes = {"path": path, "verb": "get"}
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._running = 0
        self._told = ""

    async def __call__(self, token: str | None) -> bool:
        if not token or len(token) > TOKEN_BYTES_MAX:
            return False
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._kept.get(key)
        age = self._clock() - known.at_seconds if known is not None else 0.0
        if known is not None and age < (ALLOWED_SECONDS if known.allowed else REFUSED_SECONDS):
            self._kept.move_to_end(key)
            return known.allowed
        still_good = known is not None and known.allowed and age < STALE_SECONDS
        if self._running >= REVIEWS_MAX:
            return still_good
        self._running += 1
        try:
            allowed = await self._review(token)
        except ReviewError as error:
            self._tell(f"metrics: the API server cannot say who may read: {error}")
            return still_good
        finally:
            self._running -= 1
        self._told = ""
        self._keep(key, allowed)
        return allowed

    def check(self) -> None:
        """Assert the invariants that memory rests on."""
        assert len(self._kept) <= KEPT_MAX
        assert 0 <= self._running <= REVIEWS_MAX

    def _keep(self, key: bytes, allowed: bool) -> None:
        self._kept[key] = _Kept(allowed, self._clock())
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    async def _review(self, token: str) -> bool:
        status = await self._ask(TOKEN_REVIEWS, {"token": token})
        if not status.authenticated or not status.user.username:
            return False
        user = status.user
        who = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
        return (await self._ask(ACCESS_REVIEWS, {**who, "nonResourceAttributes": self._attributes})).allowed

    async def _ask(self, path: str, spec: dict[str, Any]) -> _Status:
        try:
            answer = await self._api.request("POST", path, body={"spec": spec}, timeout_seconds=REVIEW_SECONDS_MAX)
        except (ApiUnreachableError, AnswerTooLargeError) as error:
            raise ReviewError(str(error)) from None
        if not answer.ok:
            step = (
                "; it needs a ClusterRole to create tokenreviews and subjectaccessreviews (metrics.auth in the chart)"
            )
            raise ReviewError(f"HTTP {answer.status}" + (step if answer.status == 403 else ""))
        try:
            return msgspec.json.decode(answer.body, type=_Review).status
        except msgspec.MsgspecError as error:
            raise ReviewError(f"it answered with something else than a review: {error}") from None

    def _tell(self, message: str) -> None:
        """Once for each new trouble."""
        if message != self._told:
            self._told = message
            self._log("warning", message)
