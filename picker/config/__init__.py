"""Every knob of the picker.

config.py             has them
config_kv_events.py   those of engines' KV events
config_transport.py   those of the gRPC port
config_objectives.py  objectives and their targets
config_sharing.py     those of what pickers tell each other
config_usage.py       those of tenants, and of what the proxy is told
reading.py            reads the file, and says what is wrong with it
schema.py             describes the file: a JSON Schema, and tables for docs/configuration.md
yaml_text.py          YAML at a cost that its length bounds
checks.py             what cannot work together
urls.py               paths and URLs, read for what cannot work
"""

from picker.config.config import (
    RESTART_ONLY,
    ROLE_LABEL,
    Config,
    Debug,
    Drain,
    Ejection,
    EndpointLabels,
    EngineMetrics,
    Limits,
    Routing,
    Saturation,
    Section,
    SessionAffinity,
    Tls,
    Tracing,
    Weights,
)
from picker.config.config_kv_events import KvEvents
from picker.config.config_objectives import Objective, Targets
from picker.config.config_sharing import SharedState
from picker.config.config_transport import TransportLimits
from picker.config.config_usage import ProxyMetadata, Tenants
from picker.config.reading import ConfigError, changed_restart_only, load, warnings
from picker.config.yaml_text import MISSPOKEN_YAML, refuse_long_numbers

__all__ = [
    "MISSPOKEN_YAML",
    "RESTART_ONLY",
    "ROLE_LABEL",
    "Config",
    "ConfigError",
    "Debug",
    "Drain",
    "Ejection",
    "EndpointLabels",
    "EngineMetrics",
    "KvEvents",
    "Limits",
    "Objective",
    "ProxyMetadata",
    "Routing",
    "Saturation",
    "Section",
    "SessionAffinity",
    "SharedState",
    "Targets",
    "Tenants",
    "Tls",
    "Tracing",
    "TransportLimits",
    "Weights",
    "changed_restart_only",
    "load",
    "refuse_long_numbers",
    "warnings",
]
