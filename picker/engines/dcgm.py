"""How busy a pod's GPUs are, from NVIDIA's DCGM exporter (one page a node, all its pods).

Not an engine: an optional second source for `EngineSample.gpu_utilization`, joined by the labels
`namespace` and `pod` that the exporter adds on Kubernetes. `DCGM_FI_DEV_GPU_UTIL` is in percent;
on GPUs cut into MIG slices it is absent, and `DCGM_FI_PROF_GR_ENGINE_ACTIVE` (0..1) stands in.
A pod with several GPUs is as busy as its busiest: tensor-parallel ranks wait for each other.
Source: NVIDIA/dcgm-exporter, README and etc/default-counters.csv.
"""

from collections.abc import Mapping

from picker.engines.exposition import Series, find

_SERIES: tuple[tuple[bytes, float], ...] = (
    (b"DCGM_FI_DEV_GPU_UTIL", 100.0),
    (b"DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0),
)

PodKey = tuple[str, str]
"""(namespace, pod name)"""


def gpu_utilization(page: bytes) -> Mapping[PodKey, float]:
    """Share 0..1 of each pod that the page knows; GPUs without a pod are left out."""
    shares: dict[PodKey, float] = {}
    for name, whole in _SERIES:
        found: dict[PodKey, float] = {}
        for series in find(page, name):
            key = _pod(series)
            # DCGM writes "blank" values as huge integers; they measure nothing.
            if key is not None and series.value is not None and series.value <= whole:
                found[key] = max(found.get(key, 0.0), series.value / whole)
        for key, share in found.items():
            shares.setdefault(key, share)
    return shares


def _pod(series: Series) -> PodKey | None:
    # A Prometheus that federates the exporter's page renames its labels (`honor_labels: false`).
    labels = series.labels
    pod = labels.get("exported_pod") or labels.get("pod")
    namespace = labels.get("exported_namespace") or labels.get("namespace") or ""
    return (namespace, pod) if pod else None
