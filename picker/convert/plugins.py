"""What becomes of the llm-d / GIE picker's plugins, by type.

Types, parameters and defaults as llm-d-router registers them (cmd/epp/runner,
pkg/epp/framework/plugins), from the pinned v0.7 tree to v0.10.
"""

from collections.abc import Mapping

KNOWN_KEYS = frozenset(
    (
        "apiVersion",
        "kind",
        "metadata",
        "featureGates",
        "plugins",
        "schedulingProfiles",
        "saturationDetector",
        "dataLayer",
        "flowControl",
        "parser",
        "requestHandler",
    )
)
"""Top-level keys of the document."""

SCORERS: Mapping[str, tuple[str, str | None]] = {
    "queue-scorer": ("queue", None),
    "kv-cache-utilization-scorer": ("kv", None),
    "kv-cache-scorer": ("kv", None),
    "prefix-cache-scorer": ("prefix", None),
    "precise-prefix-cache-scorer": ("prefix", "the index follows engines' KV events, without a tokenizer"),
    "running-requests-size-scorer": ("queue", "running requests are part of the queue and kv costs"),
    "load-aware-scorer": ("queue", "waiting requests are part of the queue cost, without a threshold"),
    "active-request-scorer": ("queue", "requests in flight are part of the queue and kv costs"),
    "token-load-scorer": ("queue", "prompt tokens in flight are what the queue cost counts"),
}
"""Scorer -> (our objective, what differs). Load scorers all count in `weights.queue`."""

COVERED: Mapping[str, str] = {
    "approx-prefix-cache-producer": "the prefix index is always there",
    "precise-prefix-cache-producer": "the index follows engines' KV events, without a tokenizer",
    "inflight-load-producer": "requests and tokens in flight are always counted",
    "single-profile-handler": "",
    "max-score-picker": "",
    "openai-parser": "",
    "anthropic-parser": "",
    "vllmhttp-parser": "",
    "sglanghttp-parser": "",
    "passthrough-parser": "",
    "metrics-data-source": "",
    "core-metrics-extractor": "",
    "utilization-detector": "",
    "prefix-cache-affinity-filter": "",
    "decode-filter": "servers that only prefill or encode get no requests by default (endpoint_labels.not_in)",
    "lora-affinity-scorer": "an adapter that is not loaded costs the seconds of loading it (weights.lora)",
    "label-selector-filter": "",
    "by-label-selector": "",
    "no-hit-lru-scorer": "ties are broken at random, and exploration gives hot prefixes a second home",
    "fcfs-ordering-policy": "",
    "global-strict-fairness-policy": "",
    "static-usage-limit-policy": "",
}
"""Types whose job is done here without a setting; the words say how, where that needs saying."""

NOT_CARRIED: Mapping[str, str] = {
    "random-picker": "the cheapest endpoint is always chosen, ties at random",
    "weighted-random-picker": "the cheapest endpoint is always chosen, ties at random",
    "session-affinity-scorer": "no token is issued here; session_affinity names a header or cookie of the client's",
    "latency-scorer": "costs are estimated seconds already; no predictor is called",
    "predicted-latency-producer": "costs are estimated seconds already; no predictor is called",
    "token-producer": "prompts are counted in bytes, with a rate learned per model; no tokenizer is called",
    "tokenizer": "prompts are counted in bytes, with a rate learned per model; no tokenizer is called",
    "concurrency-detector": "saturation here is waiting requests, KV cache and backlog (`saturation`)",
    "disagg-profile-handler": "prefill and decode are not placed separately",
    "pd-profile-handler": "prefill and decode are not placed separately",
    "data-parallel-profile-handler": "list every rank's port in the InferencePool's targetPorts instead",
    "models-data-source": "models come from the engines' own pages",
    "vllmgrpc-parser": "such requests are placed by load",
    "vertexai-parser": "such requests are placed by load",
}
"""Types that people use and that have no counterpart: what happens instead."""

INDEX_PARAMETERS = (
    "autoTune",
    "blockSize",
    "blockSizeTokens",
    "hashBlockSize",
    "lruCapacityPerServer",
    "maxPrefixBlocksToMatch",
    "maxPrefixTokensToMatch",
)
"""Sizes of a prefix index."""
