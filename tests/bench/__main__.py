"""`make bench`: where every figure of docs/benchmarks.md comes from. Prints tables; `--json FILE` keeps them.

Parts: calibration, decision, offline, envoy, streams, scraping, start, memory, growth. Each has its baseline in
the same run.
`--markdown` prints what docs/benchmarks.md shows; `python -m tests.bench.plot` rewrites the page.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from picker.edge.process.malloc import tune_malloc
from picker.lab.envoy import EnvoyProcess
from tests.bench import decision, growth, offline, raw_exchange, resources, through_envoy
from tests.bench.processes import INTERPRETED, PickerProcess, interpreted_json, upstream
from tests.bench.report import console_table, machine, markdown, part
from tests.ports import free_ports

Parts = Iterator[tuple[str, dict[str, Any]]]


def decision_parts(options: argparse.Namespace) -> Parts:
    rows = [
        {"endpoints": endpoints, "body": size, "whole us": round(whole, 1), "without parsing us": round(decide, 1)}
        for endpoints, size, whole, decide in decision.decisions()
    ]
    if INTERPRETED is not None:
        for row, (*_, whole, decide) in zip(rows, interpreted_json("tests.bench.decision"), strict=True):
            row |= {"interpreted, whole us": round(whole, 1), "interpreted, without parsing us": round(decide, 1)}
    note = "Parse, hash, match, score, charge, record, release. CPU, the best of seven rounds, in one process."
    yield "decision", part("The decision alone", rows, note)
    if options.quick:
        return
    rows = [
        {
            "blocks a conversation": run,
            "endpoints": endpoints,
            "resident bytes a block": round(resident, 1),
            "the index's own estimate": round(estimate, 1),
        }
        for run, endpoints, resident, estimate in decision.index_bytes()
    ]
    yield "index", part("The index: bytes a block held by one endpoint", rows, "500,000 blocks.")


def offline_parts(options: argparse.Namespace) -> Parts:
    rows = list(offline.rows(quick=options.quick))
    if INTERPRETED is not None:
        flags = ("--quick",) if options.quick else ()
        found = interpreted_json("tests.bench.offline", "--part", "whole", "--json", *flags)
        rows += [{**row, "": "whole, interpreted"} for row in found]
    note = (
        "An Envoy's frames straight into a connection, no sockets: CPU of the picker's own code, the best of some "
        "rounds. Each line holds the one above it: framing, then ext_proc with a decision that is always the same, "
        "then what is counted and kept of each request, then the real decision among 4 endpoints. 16 streams a read, "
        "or one."
    )
    yield "offline", part("The picker alone, part by part", rows, note)


def calibration_parts(options: argparse.Namespace) -> Parts:
    rows = list(resources.calibration(options.seconds))
    yield "calibration", part("This machine", rows, "To compare runs: the same on any machine, without a picker.")


def growth_parts(options: argparse.Namespace) -> Parts:
    rows = list(growth.rows(seconds=options.seconds, quick=options.quick))
    note = "The same at ten times the load or size. figure ~ load^exponent: 0 is flat, 1 proportional."
    yield "growth", part("Growth", rows, note)


def envoy_parts(options: argparse.Namespace) -> Parts:
    rows = list(through_envoy.cells(seconds=options.seconds, transports=options.transports, sizes=options.sizes))
    note = (
        "One Envoy worker, request bodies in full-duplex mode, everything on this machine. 4 endpoints, or "
        f"{through_envoy.SCRAPED}, each read once a second. `req/s` is of the whole machine, load client included."
    )
    yield "envoy", part("Through the real Envoy", rows, note)


def stream_parts(options: argparse.Namespace) -> Parts:
    rows = list(through_envoy.streamed(transports=options.transports, seconds=options.seconds))
    note = "64 answers of 1,000 server-sent events each at a time, an event every 20 ms, bodies in full-duplex mode."
    yield "streams", part("Streamed answers through Envoy", rows, note)
    rows = []
    ports = free_ports(through_envoy.ENDPOINTS)
    with EnvoyProcess(upstream(ports)):
        for transport in options.transports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            with PickerProcess(addresses, "--insecure", "--transport", transport) as picker:
                time.sleep(1.2)
                raw_exchange.stream(picker.address, picker.pid, calls=16, width=16)
                calls = (64 if options.quick else 256) if transport == "h2" else 32
                per_second, each_us = raw_exchange.stream(picker.address, picker.pid, calls=calls)
            rows.append(
                {
                    "": f"picker {transport}",
                    "chunks/s": round(per_second),
                    "picker us a chunk": round(each_us, 2),
                    "chunks/s a core": round(1e6 / each_us),
                }
            )
    note = (
        "`picker serve` driven by raw frames instead of an Envoy: whole exchanges, 32 at a time, 1,000 events of 200 "
        "bytes each, the next sent when the last is answered."
    )
    yield "chunks", part("Streamed answers, saturated", rows, note)


def scraping_parts(options: argparse.Namespace) -> Parts:
    counts = (1, 100) if options.quick else (1, 100, 1_000)
    rows = list(resources.scraping(counts, 3.0 if options.quick else 6.0))
    yield (
        "scraping",
        part("Scraping", rows, "An idle picker; the pages are recorded from vLLM 0.32. Baseline: 1 endpoint."),
    )


def start_parts(options: argparse.Namespace) -> Parts:
    rows = list(resources.start_up(1 if options.quick else 3))
    yield "start", part("Start-up", rows, "The best of three rounds.")


def memory_parts(options: argparse.Namespace) -> Parts:
    rows = list(resources.memory((1_000, 10_000), options.transports))
    yield (
        "memory",
        part("Resident memory", rows, "Requests in flight are routed exchanges of 2 KB whose answer is due."),
    )


PARTS: dict[str, Callable[[argparse.Namespace], Parts]] = {
    "calibration": calibration_parts,
    "decision": decision_parts,
    "offline": offline_parts,
    "envoy": envoy_parts,
    "streams": stream_parts,
    "scraping": scraping_parts,
    "start": start_parts,
    "memory": memory_parts,
    "growth": growth_parts,
}


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each cell through Envoy (default %(default)s)")
    parser.add_argument("--only", type=words, default=tuple(PARTS), metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--transports", type=words, default=("h2", "grpcio"))
    parser.add_argument("--sizes", type=words, default=tuple(decision.SIZES))
    parser.add_argument("--quick", action="store_true", help="short cells, 2 KB: under 90 s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of tables")
    options = parser.parse_args()
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))} (there are {', '.join(PARTS)})")
    if options.quick:
        options.seconds, options.sizes = 1.5, ("2 KB",)
    console = Console(width=150, stderr=options.markdown)
    console.print(tune_malloc())  # as `picker serve` does
    began = time.monotonic()
    results: dict[str, Any] = {"machine": machine(), "arguments": sys.argv[1:], "parts": {}}
    for name in options.only:
        with console.status(f"measuring: {name}"):
            for key, found in PARTS[name](options):
                results["parts"][key] = found
                if options.markdown:
                    print(markdown(found))
                else:
                    console.print(console_table(found))
        if options.json:
            results["seconds"] = round(time.monotonic() - began)
            options.json.write_text(json.dumps(results, indent=1))
    console.print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
