"""trtllm-serve's /prometheus/metrics. Names from NVIDIA/TensorRT-LLM,

tensorrt_llm/metrics/collector.py, and its example examples/serve/prometheus_metrics.py.

Its `/metrics` is something else: JSON statistics of the iterations since the last call, which
the call takes away from whoever else reads them. So it is never asked for on purpose.
`trtllm_kv_cache_utilization` appears with `return_perf_metrics: true` and iteration statistics on.
"""

from types import MappingProxyType

from picker.engines.mapping import Engine, MetricValue, Product, Ratio

_BLOCKS = MetricValue(name=b"trtllm_kv_cache_max_blocks")
_TOKENS_PER_BLOCK = MetricValue(name=b"trtllm_kv_cache_tokens_per_block", reduce="largest")

TRTLLM = Engine(
    name="trtllm",
    marks=(b"trtllm_",),
    path="/prometheus/metrics",
    expected=("waiting_requests", "running_requests", "kv_cache_utilization", "kv_capacity_tokens"),
    readings=MappingProxyType(
        {
            "waiting_requests": (MetricValue(name=b"trtllm_num_requests_waiting"),),
            "running_requests": (MetricValue(name=b"trtllm_num_requests_running"),),
            "kv_cache_utilization": (
                MetricValue(name=b"trtllm_kv_cache_utilization", reduce="largest"),
                Ratio(MetricValue(name=b"trtllm_kv_cache_used_blocks"), _BLOCKS),
            ),
            "kv_capacity_tokens": (Product(_BLOCKS, _TOKENS_PER_BLOCK),),
            "block_size_tokens": (_TOKENS_PER_BLOCK,),
            "started_at_seconds": (MetricValue(name=b"process_start_time_seconds", reduce="largest"),),
            "prompt_tokens_total": (MetricValue(name=b"trtllm_prompt_tokens_total"),),
            "prefix_queries_total": (MetricValue(name=b"trtllm_prompt_tokens_total"),),
            "prefix_hits_total": (MetricValue(name=b"trtllm_prompt_cached_tokens_total"),),
        }
    ),
)
