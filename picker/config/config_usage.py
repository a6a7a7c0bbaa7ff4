"""The knobs of who used what: tenants, and what the proxy is told of each request. As `config.py`."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

TOLD: Final = (
    *("reason", "matched_percent", "predicted_ttft_ms", "ttft_ms", "tenant"),
    *("usage", "input_tokens", "cached_tokens", "output_tokens", "total_tokens", "engine_ms"),
)
"""Our words for what the proxy can be told of a request."""
NAMES_MAX: Final = 1000
"""Tenants that can be listed."""
TenantName = Annotated[str, Meta(min_length=1, max_length=200)]


class Tenants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose requests they are: tokens and engine seconds are counted for each tenant.

    Name the header that your gateway sets once it knows the caller; a header that clients may set
    themselves lets them spend in another's name. List the tenants in `names` where made-up names
    could otherwise take the places.
    """

    header: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", max_length=128)] | None,
        Meta(
            description=(
                "The request header that names the tenant. null: `x-gateway-inference-fairness-id`, or "
                "`x-llm-d-inference-fairness-id`."
            )
        ),
    ] = None
    names: Annotated[
        list[TenantName],
        Meta(max_length=NAMES_MAX, description="Tenants that are always counted under their own names, up to 1,000."),
    ] = []
    tenants_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="How many others are counted by name, as they first succeed. The rest is `other`.",
        ),
    ] = 100
    estimates: Annotated[
        bool,
        Meta(
            description=(
                "Charge an estimate where an answer reports no usage, marked as such. false: it counts as unknown."
            )
        ),
    ] = False


class ProxyMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the proxy is told of each request, as dynamic metadata: why it went there, and what it used.

    Name a namespace where Envoy's access log shall say why, or where its rate limits charge tokens.
    Envoy takes it only if the filter's `metadata_options.receiving_namespaces` names the same one.
    """

    namespace: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(description="The namespace, for example `inference-picker`. null: nothing is told."),
    ] = None
    keys: Annotated[
        dict[str, str],
        Meta(description="Our words, and the keys under which the proxy gets them. What is not listed is not told."),
    ] = msgspec.field(default_factory=lambda: {word: word for word in TOLD})

    def __post_init__(self) -> None:
        unknown = sorted(set(self.keys) - set(TOLD))
        if unknown:
            raise ValueError(f"keys: {unknown[0]!r} is no word of the picker; it has {', '.join(TOLD)}")
        words_by_key: dict[str, str] = {}
        for word, key in self.keys.items():
            if not key:
                raise ValueError(f"keys: {word} has an empty key; leave the word out, or name a key")
            if key in words_by_key:
                raise ValueError(f"keys: {words_by_key[key]} and {word} have the same key {key!r}")
            words_by_key[key] = word
