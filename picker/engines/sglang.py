"""SGLang's /metrics (`--enable-metrics`). Names and labels from sgl-project/sglang,

python/sglang/srt/observability/metrics_collector.py (SchedulerMetricsCollector,
TokenizerMetricsCollector), and docs/references/production_metrics.

With priority scheduling the total stands under `priority=""` beside one series a priority, so
only the former counts. With `--enable-metrics-for-all-schedulers` every tensor-parallel rank
reports its group's figures: copies. Data-parallel ranks (`dp_rank`) are replicas and add up.
Since 0.5.11 the cache's geometry is in gauges; before it stood in `cache_config_info`'s labels.
"""

from types import MappingProxyType

from picker.engines.mapping import Engine, LabelValue, MetricValue, Product, Reduction

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
_CONFIG = b"sglang:cache_config_info"


def _gauge(name: bytes, reduce: Reduction = "sum") -> MetricValue:
    return MetricValue(name=name, reduce=reduce, where=(("priority", ""),), copies=_RANKS)


SGLANG = Engine(
    name="sglang",
    marks=(b"sglang:",),
    expected=("waiting_requests", "running_requests", "kv_cache_utilization", "kv_capacity_tokens"),
    readings=MappingProxyType(
        {
            "waiting_requests": (_gauge(b"sglang:num_queue_reqs"),),
            "running_requests": (_gauge(b"sglang:num_running_reqs"),),
            "kv_cache_utilization": (_gauge(b"sglang:token_usage", "largest"),),
            "kv_capacity_tokens": (
                _gauge(b"sglang:max_total_num_tokens"),
                Product(_gauge(b"sglang:num_pages"), _gauge(b"sglang:page_size", "largest")),
                Product(
                    LabelValue(name=_CONFIG, label="num_pages", copies=_RANKS),
                    LabelValue(name=_CONFIG, label="page_size", reduce="largest"),
                ),
            ),
            "block_size_tokens": (
                _gauge(b"sglang:page_size", "largest"),
                LabelValue(name=_CONFIG, label="page_size", reduce="largest"),
            ),
            "adapters_max": (_gauge(b"sglang:lora_pool_slots_total"),),
            "started_at_seconds": (MetricValue(name=b"process_start_time_seconds", reduce="largest"),),
            "prompt_tokens_total": (MetricValue(name=b"sglang:prompt_tokens_total"),),
            "prefix_queries_total": (MetricValue(name=b"sglang:prompt_tokens_total"),),
            "prefix_hits_total": (MetricValue(name=b"sglang:cached_tokens_total"),),
        }
    ),
)
