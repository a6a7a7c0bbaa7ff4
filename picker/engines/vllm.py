"""vLLM's /metrics. Names from a recording of 0.32.0 (CPU) and, for the older aliases, from

https://docs.vllm.ai/en/v0.8.5/serving/metrics.html (`gpu_cache_usage_perc`, `gpu_prefix_cache_*`).

`num_requests_waiting_by_reason` splits `num_requests_waiting` and is not added to it.
`lora_requests_info` shows an adapter only while it has requests; `lora_adapter_loaded` (vllm-project/vllm#45411) also
one that is idle, with `level` `gpu` (in a slot) or `cpu` (still to be copied, so not loaded here). With
internal data parallelism each rank has its own series (label `engine`) and its own KV cache.
"""

from types import MappingProxyType

from picker.engines.mapping import Engine, LabelValue, Lora, MetricValue, Product

_CONFIG = b"vllm:cache_config_info"

VLLM = Engine(
    name="vllm",
    marks=(b"vllm:",),
    expected=("waiting_requests", "running_requests", "kv_cache_utilization", "kv_capacity_tokens"),
    readings=MappingProxyType(
        {
            "waiting_requests": (MetricValue(name=b"vllm:num_requests_waiting"),),
            "running_requests": (MetricValue(name=b"vllm:num_requests_running"),),
            "kv_cache_utilization": (
                MetricValue(name=b"vllm:kv_cache_usage_perc", reduce="largest"),
                MetricValue(name=b"vllm:gpu_cache_usage_perc", reduce="largest"),
            ),
            "kv_capacity_tokens": (
                LabelValue(name=_CONFIG, label="kv_cache_size_tokens"),
                Product(
                    LabelValue(name=_CONFIG, label="num_gpu_blocks"),
                    LabelValue(name=_CONFIG, label="block_size", reduce="largest"),
                ),
            ),
            "block_size_tokens": (LabelValue(name=_CONFIG, label="block_size", reduce="largest"),),
            "started_at_seconds": (MetricValue(name=b"process_start_time_seconds", reduce="largest"),),
            "prompt_tokens_total": (MetricValue(name=b"vllm:prompt_tokens_total"),),
            "prefix_queries_total": (
                MetricValue(name=b"vllm:prefix_cache_queries_total"),
                MetricValue(name=b"vllm:gpu_prefix_cache_queries_total"),
            ),
            "prefix_hits_total": (
                MetricValue(name=b"vllm:prefix_cache_hits_total"),
                MetricValue(name=b"vllm:gpu_prefix_cache_hits_total"),
            ),
        }
    ),
    lora=Lora(
        name=b"vllm:lora_requests_info",
        running_label="running_lora_adapters",
        waiting_label="waiting_lora_adapters",
        max_label="max_lora",
        loaded_name=b"vllm:lora_adapter_loaded",
        loaded_label="adapter_name",
        loaded_where=("level", ("gpu",)),
    ),
)
