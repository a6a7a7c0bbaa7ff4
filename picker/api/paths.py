"""Which API a request's method and path name: a row a path, with what it computes and where that is said.

    READ      its body is a prompt that we understand: the prefix counts
    PREFILL   its body is computed, and not understood: its size counts as load
    NOTHING   no prompt is computed, so it adds no load

A path is known by its whole shape behind any prefix (`/openai/deployments/x/chat/completions`), without query.
`{id}` is one segment, `{verb}` a word, `{model}` a segment that names a model, `{model+}` one or more of them
(`org/name`). The first row that fits holds. Names are a bounded set, for telemetry; a path that fits none is `other`.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote

from picker.api import chat_completions, completions, embeddings, generate, messages, model_name, responses
from picker.api.document import Document
from picker.api.request import InferenceRequest

OTHER: Final = "other"
MODEL_CHARS_MAX: Final = 512
"""Of a model's name in a path or query."""


PATH_CHARS_MAX: Final = 4096
"""A longer one is `other`: some two milliseconds of patterns."""


class Work(Enum):
    """What a path computes."""

    READ = auto()
    PREFILL = auto()
    NOTHING = auto()


class Api(NamedTuple):
    """An API whose body is read."""

    name: str
    parse: Callable[[Document], InferenceRequest]
    anthropic_errors: bool = False
    understood: bool = True
    """Its prompt is read; else only the model."""


class Row(NamedTuple):
    """One path. `methods`: of those, separated by spaces."""

    methods: str
    shape: str
    name: str
    work: Work
    source: str
    parse: Callable[[Document], InferenceRequest] | None = None


class Path(NamedTuple):
    """What a request's path says."""

    name: str
    prefills: bool
    """Whether what it carries weighs."""
    api: Api
    model: str | None = None
    """As the path or its query names it."""


_OPENAI: Final = "platform.openai.com/docs/api-reference"
_ANTHROPIC: Final = "docs.anthropic.com/en/api"
_VLLM: Final = "docs.vllm.ai, serving/openai_compatible_server; vllm/entrypoints"
_SGLANG: Final = "sglang/srt/entrypoints/http_server.py"
_TGI: Final = "text-generation-inference, router/src/server.rs"
_LLAMA_CPP: Final = "llama.cpp, tools/server/README.md"
_OLLAMA: Final = "ollama, docs/api.md"
_COHERE: Final = "docs.cohere.com/reference"
_KSERVE: Final = "kserve/open-inference-protocol; triton extension_generate.md"
_GEMINI: Final = "ai.google.dev/api"
_SAGEMAKER: Final = "docs.aws.amazon.com/sagemaker, container contract"
_BEDROCK: Final = "docs.aws.amazon.com/bedrock, API reference"
_VERTEX: Final = "cloud.google.com/vertex-ai, REST reference"
_TFSERVING: Final = "tensorflow.org/tfx/serving/api_rest"
_TRITON: Final = "triton-inference-server, docs/protocol"
_TEI: Final = "text-embeddings-inference, router/src/http/server.rs"

READ, PREFILL, NOTHING = Work.READ, Work.PREFILL, Work.NOTHING

TABLE: Final[tuple[Row, ...]] = (
    Row("POST", "/chat/completions", "chat_completions", READ, _OPENAI, chat_completions.parse),
    Row("POST", "/completions", "completions", READ, _OPENAI, completions.parse),
    Row("POST", "/responses", "responses", READ, _OPENAI, responses.parse),
    Row("POST", "/messages", "messages", READ, _ANTHROPIC, messages.parse),
    Row("POST", "/embeddings", "embeddings", READ, _OPENAI, embeddings.parse),
    Row("POST", "/models/{model+}/versions/{id}/generate", "generate", READ, _KSERVE, generate.parse),
    Row(
        "POST",
        "/models/{model+}/versions/{id}/generate_stream",
        "generate_stream",
        READ,
        _KSERVE,
        generate.parse_stream,
    ),
    Row("POST", "/models/{model+}/generate", "generate", READ, _KSERVE, generate.parse),
    Row("POST", "/models/{model+}/generate_stream", "generate_stream", READ, _KSERVE, generate.parse_stream),
    Row("POST", "/api/generate", "ollama", READ, _OLLAMA, generate.parse_ollama),
    Row("POST", "/api/chat", "ollama", READ, _OLLAMA, generate.parse_ollama),
    Row("POST", "/api/embed", "embeddings", READ, _OLLAMA, embeddings.parse),
    Row("POST", "/api/embeddings", "embeddings", READ, _OLLAMA, embeddings.parse),
    Row("POST", "/vertex_generate", "vertex_generate", READ, _SGLANG, generate.parse_vertex),
    Row("POST PUT", "/generate", "generate", READ, _SGLANG, generate.parse),
    Row("POST", "/generate_stream", "generate_stream", READ, _TGI, generate.parse_stream),
    Row("POST", "/chat/completions/batch", "chat_completions_batch", READ, _VLLM, chat_completions.parse_batch),
    Row("POST", "/v2/chat", "chat_completions", READ, _COHERE, chat_completions.parse),
    Row("POST", "/v2/embed", "embeddings", READ, _COHERE, embeddings.parse),
    Row("POST", "/v1/embed", "embeddings", READ, _COHERE, embeddings.parse),
    Row("POST PUT", "/encode", "embeddings", READ, _SGLANG, embeddings.parse),
    Row("POST", "/embedding", "embeddings", READ, _LLAMA_CPP, embeddings.parse),
    Row("POST", "/embed", "embeddings", READ, _TGI, embeddings.parse),
    Row("POST", "/completion", "completion", READ, _LLAMA_CPP, completions.parse_llama_cpp),
    Row("POST", "/infill", "completion", READ, _LLAMA_CPP, completions.parse_llama_cpp),
    Row("POST", "/invocations", "invocations", READ, _SAGEMAKER, model_name.parse_any),
    Row("POST", "^/", "generate", READ, _TGI, generate.parse),
    # What counts or renders, and computes nothing.
    Row("POST", "/responses/input_tokens", "count_tokens", NOTHING, _OPENAI),
    Row("POST", "/chat/completions/input_tokens", "count_tokens", NOTHING, _LLAMA_CPP),
    Row("POST", "/messages/count_tokens", "count_tokens", NOTHING, _ANTHROPIC),
    Row("POST", "/models/{model+}:countTokens", "count_tokens", NOTHING, _GEMINI),
    Row("POST", "/models/{model+}:computeTokens", "count_tokens", NOTHING, _VERTEX),
    Row("POST", "/endpoints/{id}:countTokens", "count_tokens", NOTHING, _VERTEX),
    Row("POST", "/endpoints/{id}:computeTokens", "count_tokens", NOTHING, _VERTEX),
    Row("POST", "/model/{model+}/count-tokens", "count_tokens", NOTHING, _BEDROCK),
    Row("POST", "/apply-template", "render", NOTHING, _LLAMA_CPP),
    Row("POST", "/chat_tokenize", "tokenize", NOTHING, _TGI),
    Row("POST", "/completions/render", "render", NOTHING, _VLLM),
    Row("POST", "/chat/completions/render", "render", NOTHING, _VLLM),
    Row("POST", "/messages/render", "render", NOTHING, _VLLM),
    Row("POST", "/responses/render", "render", NOTHING, _VLLM),
    Row("POST", "/completions/derender", "render", NOTHING, _VLLM),
    Row("POST", "/chat/completions/derender", "render", NOTHING, _VLLM),
    Row("POST", "/tokenize", "tokenize", NOTHING, _VLLM),
    Row("POST", "/detokenize", "detokenize", NOTHING, _VLLM),
    Row("POST", "/decode", "detokenize", NOTHING, _TEI),
    Row("POST", "/parse_function_call", "render", NOTHING, _SGLANG),
    Row("POST", "/separate_reasoning", "render", NOTHING, _SGLANG),
    # What tells an engine to do something else than to compute.
    Row("POST", "/api/show", "control", NOTHING, _OLLAMA),
    Row("POST", "/api/pull", "control", NOTHING, _OLLAMA),
    Row("POST", "/api/copy", "control", NOTHING, _OLLAMA),
    Row("POST", "/load_lora_adapter", "control", NOTHING, _VLLM),
    Row("POST", "/unload_lora_adapter", "control", NOTHING, _VLLM),
    Row("POST", "/reset_prefix_cache", "control", NOTHING, _VLLM),
    Row("GET POST", "/flush_cache", "control", NOTHING, _SGLANG),
    Row("POST", "/abort_request", "control", NOTHING, _SGLANG),
    Row("POST", "/slots/{id}", "control", NOTHING, _LLAMA_CPP),
    Row("POST", "/props", "control", NOTHING, _LLAMA_CPP),
    Row("POST", "/lora-adapters", "control", NOTHING, _LLAMA_CPP),
    Row("POST", "/repository/index", "control", NOTHING, _TRITON),
    Row("POST", "/models/load", "control", NOTHING, _LLAMA_CPP),
    Row("POST", "/models/unload", "control", NOTHING, _LLAMA_CPP),
    Row("POST", "/models/{model+}/load", "control", NOTHING, _TRITON),
    Row("POST", "/models/{model+}/unload", "control", NOTHING, _TRITON),
    Row("GET POST", "/models/{model+}/trace/setting", "control", NOTHING, _TRITON),
    # Prompts, scores and media whose bodies are not understood.
    Row("POST", "/models/{model+}/versions/{id}/infer", "infer", PREFILL, _KSERVE),
    Row("POST", "/models/{model+}/infer", "infer", PREFILL, _KSERVE),
    Row("POST", "/models/{model+}:generateContent", "generate_content", PREFILL, _GEMINI),
    Row("POST", "/models/{model+}:streamGenerateContent", "generate_content", PREFILL, _GEMINI),
    Row("POST", "/tunedModels/{model}:generateContent", "generate_content", PREFILL, _GEMINI),
    Row("POST", "/tunedModels/{model}:streamGenerateContent", "generate_content", PREFILL, _GEMINI),
    Row("POST", "/endpoints/{id}:generateContent", "generate_content", PREFILL, _VERTEX),
    Row("POST", "/endpoints/{id}:streamGenerateContent", "generate_content", PREFILL, _VERTEX),
    Row("POST", "/models/{model+}:embedContent", "embeddings", PREFILL, _GEMINI),
    Row("POST", "/models/{model+}:batchEmbedContents", "embeddings", PREFILL, _GEMINI),
    Row("POST", "/models/{model+}/versions/{id}:{verb}", "predict", PREFILL, _TFSERVING),
    Row("POST", "/models/{model+}/labels/{id}:{verb}", "predict", PREFILL, _TFSERVING),
    Row("POST", "/models/{model+}:{verb}", "predict", PREFILL, _TFSERVING),
    Row("POST", "/endpoints/{id}:{verb}", "predict", PREFILL, _VERTEX),
    Row("POST", "/models/{model+}/invoke", "invocations", PREFILL, _SAGEMAKER),
    Row("POST", "/model/{model+}/invoke", "invocations", PREFILL, _BEDROCK),
    Row("POST", "/model/{model+}/invoke-with-response-stream", "invocations", PREFILL, _BEDROCK),
    Row("POST", "/model/{model+}/converse", "converse", PREFILL, _BEDROCK),
    Row("POST", "/model/{model+}/converse-stream", "converse", PREFILL, _BEDROCK),
    Row("POST PUT", "/rerank", "rerank", PREFILL, _VLLM),
    Row("POST", "/reranking", "rerank", PREFILL, _LLAMA_CPP),
    Row("POST", "/score", "score", PREFILL, _VLLM),
    Row("POST", "/pooling", "pooling", PREFILL, _VLLM),
    Row("POST PUT", "/classify", "classify", PREFILL, _VLLM),
    Row("POST", "/moderations", "moderations", PREFILL, _OPENAI),
    Row("POST", "/audio/transcriptions", "audio_transcriptions", PREFILL, _OPENAI),
    Row("POST", "/audio/translations", "audio_translations", PREFILL, _OPENAI),
    Row("POST", "/audio/speech", "audio_speech", PREFILL, _OPENAI),
    Row("POST", "/images/generations", "images", PREFILL, _OPENAI),
    Row("POST", "/images/edits", "images", PREFILL, _OPENAI),
    Row("POST", "/images/variations", "images", PREFILL, _OPENAI),
    Row("POST", "/responses/compact", "responses", PREFILL, _OPENAI),
    Row("GET POST", "/realtime", "realtime", PREFILL, _OPENAI),
    Row("POST", "/videos", "videos", PREFILL, _OPENAI),
    Row("POST", "/videos/{id}/remix", "videos", PREFILL, _OPENAI),
    # What is stored, and lists.
    Row("GET POST DELETE", "/responses/{id}", "responses", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/responses/{id}/{id}", "responses", NOTHING, _OPENAI),
    Row("GET POST", "/conversations", "conversations", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/conversations/{id}", "conversations", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/conversations/{id}/items", "conversations", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/conversations/{id}/items/{id}", "conversations", NOTHING, _OPENAI),
    Row("GET POST", "/batches", "batches", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/batches/{id}", "batches", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/batches/{id}/{id}", "batches", NOTHING, _OPENAI),
    Row("GET POST", "/files", "files", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/files/{id}", "files", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/files/{id}/content", "files", NOTHING, _OPENAI),
    Row("GET POST", "/uploads", "uploads", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/uploads/{id}", "uploads", NOTHING, _OPENAI),
    Row("GET POST DELETE", "/uploads/{id}/{id}", "uploads", NOTHING, _OPENAI),
    Row("GET", "/videos", "videos", NOTHING, _OPENAI),
    Row("GET DELETE", "/videos/{id}", "videos", NOTHING, _OPENAI),
    Row("GET", "/videos/{id}/content", "videos", NOTHING, _OPENAI),
    Row("GET", "/models", "models", NOTHING, _OPENAI),
    Row("GET", "/models/{model+}/versions/{id}/ready", "models", NOTHING, _KSERVE),
    Row("GET", "/models/{model+}/versions/{id}/config", "models", NOTHING, _TRITON),
    Row("GET", "/models/{model+}/versions/{id}/stats", "models", NOTHING, _TRITON),
    Row("GET", "/models/{model+}/versions/{id}/metadata", "models", NOTHING, _TFSERVING),
    Row("GET", "/models/{model+}/versions/{id}", "models", NOTHING, _KSERVE),
    Row("GET", "/models/{model+}/labels/{id}/metadata", "models", NOTHING, _TFSERVING),
    Row("GET", "/models/{model+}/labels/{id}", "models", NOTHING, _TFSERVING),
    Row("GET", "/models/{model+}/ready", "models", NOTHING, _KSERVE),
    Row("GET", "/models/{model+}/config", "models", NOTHING, _TRITON),
    Row("GET", "/models/{model+}/stats", "models", NOTHING, _TRITON),
    Row("GET", "/models/{model+}/metadata", "models", NOTHING, _TFSERVING),
    Row("GET DELETE", "/models/{model+}", "models", NOTHING, _OPENAI),
    Row("POST", "/models/{model+}", "predict", PREFILL, "huggingface.co/docs/api-inference"),
)

APIS: Final = {
    row.shape: Api(row.name, row.parse, row.parse is messages.parse) for row in TABLE if row.parse is not None
}
"""By shape: the APIs whose prompts we understand."""
UNREAD: Final = {
    name: Api(name, model_name.parse, understood=False)
    for name in (*sorted({row.name for row in TABLE if row.parse is None}), OTHER)
}
"""By name: all others, of whose JSON the model is read."""

_QUERIED: Final = ("model", "model_name", "deployment")
_DEPLOYMENT: Final = re.compile(r"/(?:deployments|engines)/([^/]+)/")
"""Azure OpenAI, and OpenAI before: the model in the middle of the path."""
_PARTS: Final = {"model+": "(?P<model>.+?)", "model": "(?P<model>[^/]+)", "id": "[^/]+", "verb": "[A-Za-z]+"}


def _pattern(shape: str) -> re.Pattern[str]:
    if shape.startswith("^"):
        return re.compile(f"/?{_written(shape.removeprefix('^/'))}")
    head, model, rest = shape.removeprefix("/").partition("{model")
    if not model:
        return re.compile(f"(?:.*/)?{_written(head)}")
    # The first place that fits, and no other: a name may hold the words of a path (`/v1/models/org/models/name`),
    # and a stranger's path must not be tried at each of its slashes.
    return re.compile(f"(?>(?:.*?/)?{_written(head)}){_written(model + rest)}")


def _written(shape: str) -> str:
    """A part of a shape as a regular expression."""
    parts = re.split("[{}]", shape)
    return "".join(_PARTS[part] if at % 2 else re.escape(part) for at, part in enumerate(parts))


_PATTERNS: Final = tuple((frozenset(row.methods.split()), _pattern(row.shape), row) for row in TABLE)
_LITERAL_ENDS: Final = {
    end: [each for each in _PATTERNS if each[2].shape.rpartition("/")[2] == end]
    for end in {row.shape.rpartition("/")[2] for row in TABLE}
    if "{" not in end
}
_OTHERS: Final = [each for each in _PATTERNS if "{" in each[2].shape.rpartition("/")[2]]


def find_path(path: str, method: str = "POST") -> Path:
    """What a request path is, without its query and trailing slash; the query may name a model."""
    if method == "HEAD":
        method = "GET"
    bare, _, query = path.partition("?")
    named = _in_query(query) if query else None
    shape = bare if bare == "/" else bare.rstrip("/")
    if "%3" in shape:  # clients that quote each segment whole write NAME%3AgenerateContent
        shape = shape.replace("%3A", ":").replace("%3a", ":")
    if 0 < len(shape) <= PATH_CHARS_MAX:
        last = shape.rpartition("/")[2]
        for rows in (_LITERAL_ENDS.get(last, ()), _OTHERS):
            for methods, pattern, row in rows:
                found = pattern.fullmatch(shape) if method in methods else None
                if found is not None:
                    return _path(row, found.groupdict().get("model"), named, bare)
    return Path(OTHER, method not in ("GET", "OPTIONS", "DELETE"), UNREAD[OTHER], named or _deployment(bare))


def _path(row: Row, model: str | None, queried: str | None, bare: str) -> Path:
    named = unquote(model)[:MODEL_CHARS_MAX] if model else queried or _deployment(bare)
    api = APIS[row.shape] if row.parse is not None else UNREAD[row.name]
    return Path(row.name, row.work is not NOTHING, api, named)


def _deployment(bare: str) -> str | None:
    found = _DEPLOYMENT.search(bare)
    return unquote(found[1])[:MODEL_CHARS_MAX] if found else None


def _in_query(query: str) -> str | None:
    """The model that a query names (`/v1/realtime?model=m`)."""
    if len(query) > 4 * MODEL_CHARS_MAX or not ("model" in query or "deployment" in query):
        return None
    try:
        fields = parse_qs(query, max_num_fields=64)
    except ValueError:
        return None
    return next((fields[name][0][:MODEL_CHARS_MAX] for name in _QUERIED if name in fields), None)
