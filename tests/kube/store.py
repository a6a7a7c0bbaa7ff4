"""One resource of a model API server: objects, their history, and what a list or a watch of them returns.

Like etcd: each change has a revision, `compact()` makes older ones unreadable (410), a continue
token is good until then. Versions are text that only this store can read.
"""

import json
from typing import Any


class Store:
    """Objects by name."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, bytes]] = []
        self.revision = 1
        self.compacted = 0
        self._snapshots: dict[str, tuple[int, list[str]]] = {}

    def put(self, thing: dict[str, Any]) -> None:
        """Create or replace."""
        name = thing["metadata"]["name"]
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = thing
        self._record(kind, thing)

    def delete(self, name: str) -> None:
        """The event carries the object as it last was, with a version of its own."""
        self._record("DELETED", self.objects.pop(name))

    def _record(self, kind: str, thing: dict[str, Any]) -> None:
        self.revision += 1
        thing["metadata"]["resourceVersion"] = f"v{self.revision}"
        self.history.append((self.revision, event(kind, thing)))

    def compact(self) -> None:
        """No new watch may start before now, no half-read list go on. Open watches still get what is due."""
        self.compacted = self.revision
        self._snapshots.clear()

    def list_page(self, params: dict[str, str]) -> bytes | None:
        """One page; None is 410: the continue token is too old."""
        token = params.get("continue")
        if token is None:
            revision, rest = self.revision, [json.dumps(thing) for thing in self.objects.values()]
        elif token in self._snapshots:
            revision, rest = self._snapshots[token]
        else:
            return None
        limit = int(params.get("limit", len(rest) + 1))
        meta: dict[str, Any] = {"resourceVersion": f"v{revision}"}
        if len(rest) > limit:
            meta["continue"] = f"token-{len(self._snapshots)}-{self.revision}"
            self._snapshots[meta["continue"]] = (revision, rest[limit:])
        return f'{{"kind":"List","metadata":{json.dumps(meta)},"items":[{",".join(rest[:limit])}]}}'.encode()

    def readable(self, resource_version: str) -> int | None:
        """The revision a watch starts after; None is 410: compacted."""
        revision = int(resource_version.removeprefix("v"))
        return revision if revision >= self.compacted else None

    def since(self, revision: int) -> bytes:
        """Every event after `revision`, one a line."""
        return b"".join(line for at, line in self.history if at > revision)

    @property
    def version(self) -> str:
        """The newest."""
        return f"v{self.revision}"


def event(kind: str, thing: dict[str, Any]) -> bytes:
    """One line of a watch stream."""
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def expired() -> dict[str, Any]:
    """The Status of a 410."""
    message = "too old resource version: 213 (214)"
    return {"kind": "Status", "status": "Failure", "message": message, "reason": "Expired", "code": 410}
