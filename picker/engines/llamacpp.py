"""llama.cpp's llama-server /metrics (`--metrics`). Names from ggml-org/llama.cpp,

tools/server/README.md ("GET /metrics"). `kv_cache_usage_ratio` was removed in 2025 and nothing
took its place, so the KV cache is unknown on current builds and its absence is no news.
"""

from types import MappingProxyType

from picker.engines.mapping import Engine, MetricValue

LLAMACPP = Engine(
    name="llamacpp",
    marks=(b"llamacpp:",),
    expected=("waiting_requests", "running_requests"),
    readings=MappingProxyType(
        {
            "waiting_requests": (MetricValue(name=b"llamacpp:requests_deferred"),),
            "running_requests": (MetricValue(name=b"llamacpp:requests_processing"),),
            "kv_cache_utilization": (MetricValue(name=b"llamacpp:kv_cache_usage_ratio", reduce="largest"),),
            "prompt_tokens_total": (MetricValue(name=b"llamacpp:prompt_tokens_total"),),
        }
    ),
)
