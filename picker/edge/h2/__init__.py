"""Our own HTTP/2 and gRPC server framing, for one job: many short calls on few connections.

    server.py      H2Transport: listener, connections, drain, TLS
    connection.py  one connection: frames in, calls, frames out
    call.py        one stream as a `Call`
    heads.py       request headers: HPACK, checks, memory of what came before
    responses.py   response headers, encoded ahead of time
    frames.py      the wire format
    allowance.py   floods: so much at once, so much per second
    limits.py      every limit, with its default

docs/transport.md says why each limit is what it is and what was measured.
"""

from picker.edge.h2.limits import H2Limits
from picker.edge.h2.server import H2Transport

__all__ = ["H2Limits", "H2Transport"]
