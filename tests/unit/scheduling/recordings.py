"""What a real vLLM 0.32 with the adapter `sql` said (tests/fixtures/engines/README.md)."""

import json
from pathlib import Path

_ENGINES = Path(__file__).parents[2] / "fixtures" / "engines"

METRICS_IDLE = (_ENGINES / "vllm-0.32-idle.txt").read_bytes()
METRICS_BUSY = (_ENGINES / "vllm-0.32-busy.txt").read_bytes()
MODELS = frozenset(each["id"] for each in json.loads((_ENGINES / "vllm-0.32-models.json").read_bytes())["data"])
