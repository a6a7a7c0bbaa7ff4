"""vLLM's answers, as a vLLM 0.32.0 gave them: JSON bodies, stream events, errors, the metrics page.

Shapes follow a recorded server (fields that are always null there are left out). Text from
the engine is lower-case ASCII, so it goes into JSON as it is.
"""

import json
from typing import Any

import msgspec

from picker.sim.engine import ModelServer
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.prompts import BYTES_PER_TOKEN
from picker.sim.served_requests import ServedRequest

FINGERPRINT = "vllm-0.32.0-simulated"
VERSION = "0.32.0"


def error(message: str, kind: str, param: str | None, code: int) -> bytes:
    """An error's body."""
    return _dump({"error": {"message": message, "type": kind, "param": param, "code": code}})


def usage(request: ServedRequest, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Token counts over all sequences."""
    prompt_tokens = sum(sequence.prompt_tokens for sequence in request.sequences)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def whole(request: ServedRequest, name: str, created: int, cached_tokens: int) -> bytes:
    """The body of an answer that is not streamed."""
    choices = []
    for index, sequence in enumerate(request.sequences):
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": sequence.answer, "refusal": None}}
            if request.chat
            else {"text": sequence.answer}
        )
        choices.append({"index": index, **said, "logprobs": None, "finish_reason": request.finish_reason})
    return _dump(
        {
            "id": name,
            "object": "chat.completion" if request.chat else "text_completion",
            "created": created,
            "model": request.model,
            "choices": choices,
            "system_fingerprint": FINGERPRINT,
            "usage": usage(request, cached_tokens, request.output_tokens * len(request.sequences)),
        }
    )


class Events:
    """A stream's events. Its constant head is built once: most of a token's event is the same every time."""

    def __init__(self, request: ServedRequest, name: str, created: int) -> None:
        self._request = request
        kind = "chat.completion.chunk" if request.chat else "text_completion"
        model = json.dumps(request.model)
        self._head = f'data: {{"id":"{name}","object":"{kind}","created":{created},"model":{model},"choices":'

    def role(self, index: int) -> str:
        """The event that names who speaks. It comes with the first token; completions have none."""
        if not self._request.chat:
            return ""
        delta = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return f'{self._head}[{{"index":{index},{delta}}}]}}\n\n'

    def tokens(self, index: int, start: int, stop: int) -> str:
        """Tokens `start..stop` of the answer, the last ones with the reason of the end."""
        text = self._request.sequences[index].answer[start * BYTES_PER_TOKEN : stop * BYTES_PER_TOKEN]
        reason = f'"{self._request.finish_reason}"' if stop >= self._request.output_tokens else "null"
        said = f'"delta":{{"content":"{text}"}}' if self._request.chat else f'"text":"{text}"'
        return f'{self._head}[{{"index":{index},{said},"logprobs":null,"finish_reason":{reason}}}]}}\n\n'

    def end(self, cached_tokens: int) -> str:
        """Usage where it was asked for, then the end mark."""
        if not self._request.include_usage:
            return "data: [DONE]\n\n"
        counts = usage(self._request, cached_tokens, self._request.output_tokens * len(self._request.sequences))
        return f'{self._head}[],"usage":{_dump(counts).decode()}}}\n\ndata: [DONE]\n\n'


def models(names: tuple[str, ...], created: int, context_tokens_max: int) -> bytes:
    """`/v1/models`: the base model, then its adapters."""
    data = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": names[0] if index else None,
            "max_model_len": None if index else context_tokens_max,
        }
        for index, name in enumerate(names)
    ]
    return _dump({"object": "list", "data": data})


def rendered(token_ids: msgspec.Raw, name: str, model: str) -> dict[str, Any]:
    """The answer of `/v1/chat/completions/render`, with the fields that matter here: the prompt as tokens."""
    return {"request_id": name, "token_ids": token_ids, "features": None, "sampling_params": {}, "model": model}


def tokenized(token_ids: list[int], context_tokens_max: int) -> dict[str, Any]:
    """The answer of `/tokenize`."""
    return {"count": len(token_ids), "max_model_len": context_tokens_max, "tokens": token_ids, "token_strs": None}


def metrics(model: ModelServer, now: float, name: str, started_at: float) -> str:
    """The metrics page: names, labels and order of a vLLM 0.32.0, the ones that say something here."""
    labels = f'{{engine="0",model_name="{name}"}}'
    waiting = model.waiting
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {started_at!r}",
    ]

    def series(metric: str, kind: str, help_text: str, *samples: tuple[str, float]) -> None:
        lines.append(f"# HELP {metric} {help_text}")
        lines.append(f"# TYPE {metric} {kind}")
        lines.extend(f"{metric}{sample_labels} {float(value)!r}" for sample_labels, value in samples)
        if kind == "counter":
            created = metric.removesuffix("_total") + "_created"
            lines.append(f"# HELP {created} {help_text}")
            lines.append(f"# TYPE {created} gauge")
            lines.append(f"{created}{labels} {started_at!r}")

    series(
        "vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", (labels, model.running)
    )
    series("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", (labels, waiting))
    reasons = (("capacity", waiting), ("deferred", 0))
    series(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason.",
        *((f'{{engine="0",model_name="{name}",reason="{reason}"}}', value) for reason, value in reasons),
    )
    series(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        (labels, model.utilization(now)),
    )
    counters = (
        ("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.", model.prefix_queries_tokens),
        ("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", model.prefix_hits_tokens),
        ("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", model.preemptions_total),
        ("vllm:prompt_tokens_total", "Number of prefill tokens processed.", model.prompt_tokens_total),
        (
            "vllm:generation_tokens_total",
            "Number of generation tokens processed.",
            model.generation_tokens_total(now),
        ),
    )
    for metric, help_text, value in counters:
        series(metric, "counter", help_text, (labels, value))
    blocks = model.cache.total
    info = (
        f'{{block_size="{BLOCK_TOKENS}",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        f'gpu_memory_utilization="0.92",kv_cache_size_tokens="{blocks * BLOCK_TOKENS}",num_gpu_blocks="{blocks}",'
        f'num_gpu_blocks_override="None",sliding_window="None"}}'
    )
    series("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", (info, 1))
    return "\n".join(lines) + "\n"


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
