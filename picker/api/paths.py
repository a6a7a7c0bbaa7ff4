"""Paths whose bodies are not read, by name: they route by load, each under a label of its own.

The names are a bounded set, for telemetry; a path that is not here is `other`. `prefills`: whether
a body there is a prompt to be computed, so that its size counts as load.
"""

from collections.abc import Mapping
from typing import NamedTuple

OTHER = "other"


class Path(NamedTuple):
    """What a path is called, and whether what it carries weighs."""

    name: str
    prefills: bool = True


PATHS: Mapping[str, Path] = {
    "/audio/transcriptions": Path("audio_transcriptions"),
    "/audio/translations": Path("audio_translations"),
    "/audio/speech": Path("audio_speech"),
    "/images/generations": Path("images"),
    "/images/edits": Path("images"),
    "/images/variations": Path("images"),
    "/messages/count_tokens": Path("count_tokens", prefills=False),
    "/completions/render": Path("render", prefills=False),
    "/messages/render": Path("render", prefills=False),
    "/responses/render": Path("render", prefills=False),
    "/completions/derender": Path("render", prefills=False),
    "/rerank": Path("rerank"),
    "/score": Path("score"),
    "/pooling": Path("pooling"),
    "/classify": Path("classify"),
    "/moderations": Path("moderations"),
    "/realtime": Path("realtime"),
    "/tokenize": Path("tokenize", prefills=False),
    "/detokenize": Path("detokenize", prefills=False),
}
"""By the path's last one or two segments."""

FAMILIES: Mapping[str, Path] = {
    "responses": Path("responses"),
    "conversations": Path("conversations"),
    "batches": Path("batches", prefills=False),
    "files": Path("files", prefills=False),
    "models": Path("models", prefills=False),
    "realtime": Path("realtime"),
}
"""By any segment: ids follow it."""

_OTHER = Path(OTHER)


def find_path(path: str) -> Path:
    """The name of a request path: by its end, then by its family; without query and trailing slash."""
    segments = path.partition("?")[0].rstrip("/").split("/")
    found = PATHS.get(f"/{'/'.join(segments[-2:])}") or PATHS.get(f"/{segments[-1]}")
    if found is not None:
        return found
    return next((FAMILIES[each] for each in reversed(segments[-6:]) if each in FAMILIES), _OTHER)
