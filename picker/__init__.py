"""An Envoy external-processing endpoint picker for LLM inference.

Reading order, one request from Envoy's bytes to a decision:

    edge/transport.py     what a transport and a service owe each other (bytes in, bytes out)
    edge/ext_proc.py      one ext_proc stream: bytes <-> exchange, deadlines, telemetry
    extproc/wire.py       bytes <-> events and replies; the only core file that knows protobuf
    extproc/exchange.py   one HTTP request + response as a state machine, no I/O
    api/                  what the client asked for, one file per API path
    director.py           request + snapshot + now + rng -> Decision; the whole policy
    flowcontrol/          may it run now?
    scheduling/           where? scorers give columns of seconds, the picker chooses
    prefix/               prompt -> block hashes; block hashes -> endpoints
    pool/                 endpoints, what engines report, what is in flight

and how the world becomes a snapshot: edge/kubernetes.py or edge/static_source.py ->
pool/listwatch.py -> pool/datastore.py <- engines/ <- edge/engine_scraper.py.

Imports go downward only (`lint-imports` holds it); nothing outside edge, sim, wiring and
cli reads a clock, rolls dice, logs or touches a socket: `now` and `rng` are passed in.
"""

from picker.version import __version__

__all__ = ["__version__"]
