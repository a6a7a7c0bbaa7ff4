"""How to read a model server: one constant per engine, one interpreter for all of them.

To add an engine: a module like `vllm.py` with one `Engine`, a line below, and a recorded page
in tests/fixtures/engines. Nothing else knows that engines differ.

    mapping.py      reads a page as an engine's description says
    exposition.py   finds single series in a page
    excerpt.py      the lines of a page that matter
    vllm.py         vLLM
    sglang.py       SGLang
    trtllm.py       trtllm-serve
    triton.py       Triton with TensorRT-LLM
    llamacpp.py     llama.cpp
    dcgm.py         GPUs, from NVIDIA's DCGM exporter
"""

from picker.engines.exposition import shows
from picker.engines.llamacpp import LLAMACPP
from picker.engines.mapping import Engine, EngineRead, PageReader, names, read
from picker.engines.sglang import SGLANG
from picker.engines.triton import TRITON
from picker.engines.trtllm import TRTLLM
from picker.engines.vllm import VLLM

__all__ = ["ENGINES", "Engine", "EngineRead", "PageReader", "engine_named", "names", "read", "recognise"]

ENGINES: dict[str, Engine] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
    "triton": TRITON,
    "llamacpp": LLAMACPP,
}
"""By name, in the order of recognition: Triton around vLLM shows both kinds, and vLLM's say more."""

_ALSO_CALLED = {
    "trtllm-serve": "trtllm",
    "tensorrt-llm": "trtllm",
    "triton-tensorrt-llm": "triton",
    "llama.cpp": "llamacpp",
}
"""What others call them: the values of the `llm-d.ai/engine-type` label, and plain usage."""


def engine_named(name: str) -> Engine | None:
    """The engine of that name, ours or one in use elsewhere; `None` where nobody is called so."""
    name = name.lower()
    return ENGINES.get(_ALSO_CALLED.get(name, name))


def recognise(page: bytes) -> Engine | None:
    """Whose page this is, by the names of its series; `None` where no engine's stand in it."""
    for engine in ENGINES.values():
        if any(shows(page, mark) for mark in engine.marks):
            return engine
    return None
