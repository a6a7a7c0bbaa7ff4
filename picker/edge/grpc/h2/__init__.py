"""Our own HTTP/2 and gRPC server framing, for one job: many short calls on few connections.

    server.py         H2Transport: listener, connections, drain
    shared.py         what the connections of one transport have in common
    connection.py     one connection: bytes of a read in, calls on handlers, one write out
    requests.py       header blocks become calls
    call.py           one stream as a `Call`
    messages.py       receiving: gRPC messages out of DATA
    sending.py        sending: windows, queues, the socket
    bulk.py           large messages put together and cut into frames (`_bulk.c` beside it)
    control.py        SETTINGS, PING, WINDOW_UPDATE and their kin
    heads.py          request headers: HPACK, checks, memory of what came before
    hpack_reader.py   HPACK decoding
    huffman.py        its Huffman code
    responses.py      response headers, encoded ahead of time
    frames.py         the wire format
    upkeep.py         slow and dead peers, keepalive, drain
    allowance.py      floods: so much at once, so much per second

docs/transport.md says why each limit is what it is and what was measured.
"""

from picker.edge.grpc.h2.server import H2Transport

__all__ = ["H2Transport"]
