"""Our own HTTP/2 and gRPC server framing, for one job: many short calls on few connections.

    server.py      H2Transport: listener, connections, drain, TLS
    connection.py  one connection: bytes of a read in, calls on handlers, one write out
    requests.py    header blocks become calls
    call.py        one stream as a `Call`
    messages.py    receiving: gRPC messages out of DATA
    sending.py     sending: windows, queues, the socket
    control.py     SETTINGS, PING, WINDOW_UPDATE and their kin
    heads.py       request headers: HPACK, checks, memory of what came before
    responses.py   response headers, encoded ahead of time
    frames.py      the wire format
    upkeep.py      slow and dead peers, keepalive, drain
    allowance.py   floods: so much at once, so much per second
    limits.py      every limit, with its default

docs/transport.md says why each limit is what it is and what was measured.
"""

from picker.edge.h2.limits import H2Limits
from picker.edge.h2.server import H2Transport

__all__ = ["H2Limits", "H2Transport"]
