"""Triton Inference Server with the TensorRT-LLM backend: metrics on a port of their own, 8002.

Names from NVIDIA/TensorRT-LLM, triton_backend/inflight_batcher_llm/src/custom_metrics_reporter
/custom_metrics_reporter.cc, and its README ("Triton Metrics"). One gauge family holds several
figures, told apart by a label. `waiting` and `fraction` came later than the rest: where they are
absent, waiting is unknown and the fraction is computed; the computed one goes first because
reporters that store whole numbers round a fraction to 0.
"""

from types import MappingProxyType

from picker.engines.mapping import Engine, MetricValue, Product, Ratio, Reduction


def _requests(kind: str) -> MetricValue:
    return MetricValue(name=b"nv_trt_llm_request_metrics", where=(("request_type", kind),))


def _blocks(kind: str, reduce: Reduction = "sum") -> MetricValue:
    return MetricValue(name=b"nv_trt_llm_kv_cache_block_metrics", reduce=reduce, where=(("kv_cache_block_type", kind),))


TRITON = Engine(
    name="triton",
    marks=(b"nv_trt_llm_",),
    port=8002,
    expected=("waiting_requests", "running_requests", "kv_cache_utilization", "kv_capacity_tokens"),
    readings=MappingProxyType(
        {
            "waiting_requests": (_requests("waiting"),),
            "running_requests": (_requests("scheduled"),),
            "kv_cache_utilization": (Ratio(_blocks("used"), _blocks("max")), _blocks("fraction", "largest")),
            "kv_capacity_tokens": (Product(_blocks("max"), _blocks("tokens_per", "largest")),),
            "block_size_tokens": (_blocks("tokens_per", "largest"),),
        }
    ),
)
