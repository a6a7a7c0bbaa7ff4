"""An Envoy external-processing endpoint picker for LLM inference.

Reading order, one request from Envoy's bytes to a decision:

    edge/grpc/transport.py   what a transport and a service owe each other (bytes in, bytes out)
    edge/grpc/ext_proc.py    one ext_proc stream: bytes <-> exchange, deadlines, telemetry
    extproc/wire.py          bytes <-> events and replies; the only core file that knows protobuf
    extproc/exchange.py      one HTTP request + response as a state machine, no I/O
    api/                     what the client asked for, one file per API path
    director.py              request + snapshot + now + rng -> Decision; the whole policy
    admission.py             may it run now? priorities and saturation
    scheduling/              where? scorers give columns of seconds, the picker chooses
    prefix/                  prompt -> block hashes; block hashes -> endpoints
    residency/               what engines say themselves of their caches
    pool/                    endpoints, what engines report, what is in flight

and how the world becomes a snapshot: edge/kubernetes/source.py (kubernetes/listwatch.py) or
edge/static_endpoints.py -> pool/datastore.py <- engines/ <- edge/scraping/scraper.py.

Beside them: cli.py has the commands, wiring.py joins edges and core, config/ has every knob, decision.py
and outcomes.py the values and words of decisions and ends, sharing/ what several pickers tell each other
(no I/O), kubernetes/ what to ask of a cluster (no I/O),
files/ reads and writes files, rng.py what rolls dice, budget.py is the ledger of memory
held for peers, metering.py says who used what, listening.py opens ports, version.py the version.
convert/ reads other pickers' configurations, recording.py
keeps what `serve --record` writes, sim/ simulates whole pools with the same director, lab/ runs the real
Envoy before simulated model servers. A kernel in C stands beside its Python twin (`blocks.py`,
`_blocks.c`); kernels.py loads them.

Imports go downward only (`lint-imports` holds it); nothing outside edge, sim, lab, wiring
and cli reads a clock, rolls dice, logs or touches a socket: `now` and `rng` are passed in.
"""

from picker.version import __version__

__all__ = ["__version__"]
