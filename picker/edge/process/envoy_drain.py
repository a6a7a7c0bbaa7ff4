"""`picker drain-envoy`: ends an Envoy's work towards its clients without losing any of it.

Envoy leaves at once on SIGTERM and cuts what runs. So this process stands beside it in the pod and gets the SIGTERM;
Envoy, a native sidecar, is stopped only when this process has ended. On SIGTERM, through Envoy's admin port:

1. `/healthcheck/fail`: the pod is no longer ready, and every answer from now on ends its connection
   (`Connection: close`, GOAWAY). New connections are still taken: the cluster may not know yet.
2. Pressure 1 is written to a file that Envoy's overload manager watches (injected_resource): connections without a
   request are ended too, gracefully, so that a client's idle pool does not keep the pod.
3. Gone when no client is connected, but not before `settle_seconds`, in which the cluster's routing changes; and at
   the latest after `seconds`.

Blocking on purpose: one process, one thing, nothing of the picker's imported but this.
"""

import http.client
import json
import signal
import sys
import time
from pathlib import Path

SETTLE_SECONDS = 5.0
"""As long as endpoints take to leave the cluster's routing, with room."""
POLL_SECONDS = 0.5
ADMIN_SECONDS_MAX = 2.0
CONNECTIONS = "http.requests.downstream_cx_active"
"""The gauge of the listener that clients call (its stat_prefix is `requests`)."""


def drain_envoy(admin: str, pressure_file: Path | None, seconds: float, settle_seconds: float = SETTLE_SECONDS) -> int:
    """Wait for SIGTERM, then drain. Returns the exit code: 0, or 1 where Envoy could not be asked."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print(f"waiting for SIGTERM to drain the Envoy at {admin}", flush=True)
    signal.sigwait([signal.SIGTERM])
    began = time.monotonic()
    try:
        _ask(admin, "POST", "/healthcheck/fail")
    except (OSError, http.client.HTTPException) as error:
        print(f"picker: no answer from Envoy's admin port {admin}: {error}. Nothing to drain.", file=sys.stderr)
        return 1
    if pressure_file is not None:
        _write(pressure_file)
    while True:
        waited = time.monotonic() - began
        try:
            connections = _connections(admin)
        except (OSError, http.client.HTTPException, ValueError):
            return 0  # Envoy is gone, and with it what was to be drained
        if waited >= seconds:
            print(f"{connections} connections are left after {seconds:g} s: they are cut", flush=True)
            return 0
        if connections == 0 and waited >= min(settle_seconds, seconds):
            print(f"drained in {waited:.0f} s", flush=True)
            return 0
        time.sleep(POLL_SECONDS)


def _write(pressure_file: Path) -> None:
    """Renamed into place: Envoy watches for that, and never reads half a number."""
    part = pressure_file.with_name(f".{pressure_file.name}")
    try:
        part.write_text("1\n")
        part.rename(pressure_file)
    except OSError as error:
        print(f"picker: cannot write {pressure_file}: {error}. Idle connections stay until they end.", file=sys.stderr)


def _connections(admin: str) -> int:
    """Clients connected now. Raises `OSError`, `HTTPException`, `ValueError`."""
    page = json.loads(_ask(admin, "GET", f"/stats?format=json&filter=^{CONNECTIONS}$"))
    return sum(int(item["value"]) for item in page["stats"] if item.get("name") == CONNECTIONS)


def _ask(admin: str, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(admin, timeout=ADMIN_SECONDS_MAX)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise http.client.HTTPException(f"{method} {path}: status {answer.status}")
        return body
    finally:
        connection.close()
