"""`make bench`: what the README's numbers come from. Prints tables; `--json FILE` keeps them."""

import argparse
import json
import platform
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from tests.bench import decision, through_envoy


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell through Envoy")
    parser.add_argument("--only", choices=("decision", "envoy"), help="one part")
    parser.add_argument("--transports", default="h2,grpcio")
    parser.add_argument("--sizes", default="2 KB,32 KB,400 KB")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    console = Console(width=140)
    results: dict[str, object] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": psutil.cpu_count(),
    }
    if options.only != "envoy":
        table = Table(title="The decision alone: CPU us (parse, hash, match, score, charge, record, release)")
        for name in ("endpoints", "body", "whole", "without parsing"):
            table.add_column(name, justify="right")
        rows = []
        for endpoints, size, whole, decide in decision.decisions():
            table.add_row(f"{endpoints:,}", size, f"{whole:.1f}", f"{decide:.1f}")
            rows.append((endpoints, size, whole, decide))
        console.print(table)
        results["decision_us"] = rows
        table = Table(title="The index: bytes a block held by one endpoint (500,000 blocks)")
        for name in ("blocks a conversation", "endpoints", "resident", "estimate"):
            table.add_column(name, justify="right")
        weights = []
        for run, endpoints, resident, estimate in decision.index_bytes():
            table.add_row(str(run), f"{endpoints:,}", f"{resident:.0f}", f"{estimate:.0f}")
            weights.append((run, endpoints, resident, estimate))
        console.print(table)
        results["index_bytes_per_block"] = weights
    if options.only != "decision":
        table = Table(title="Through the real Envoy (one worker), 4 endpoints, everything on this machine")
        for name in ("", "body", "load", "req/s", "picker us", "Envoy us", "p50 ms", "p99 ms", "errors"):
            table.add_column(name, justify="left" if name == "" else "right")
        cells = []
        with console.status("measuring"):
            for cell in through_envoy.cells(
                seconds=options.seconds,
                transports=tuple(options.transports.split(",")),
                sizes=tuple(options.sizes.split(",")),
            ):
                cells.append(cell._asdict())
                picker = f"{cell.picker_us:.0f}" if cell.picker_us is not None else "-"
                row = (f"{cell.per_second:,.0f}", picker, f"{cell.envoy_us:.0f}")
                table.add_row(
                    cell.what, cell.size, cell.mode, *row, f"{cell.p50_ms:.2f}", f"{cell.p99_ms:.2f}", str(cell.errors)
                )
        console.print(table)
        results["envoy"] = cells
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
