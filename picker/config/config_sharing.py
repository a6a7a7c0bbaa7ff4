"""What several pickers know together: the table `shared_state`. docs/high-availability.md says how it works."""

from typing import Annotated

import msgspec
from msgspec import Meta

SCHEMES = ("redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://")
_URL = "^rediss?([+](sentinel|cluster))?://"


class SharedState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The store through which pickers tell each other what they decide.

    Name one where several pickers serve a pool, or where a new leader shall be warm. The rest has defaults that fit
    a store in the same cluster.
    """

    url: Annotated[
        Annotated[str, Meta(pattern=_URL)] | None,
        Meta(
            description="Redis, Valkey or another that speaks its protocol: redis://USER@HOST:6379/0, rediss:// "
            "for TLS, redis+sentinel://HOST:26379,HOST:26379/SERVICE, redis+cluster://HOST:6379. null: pickers know "
            "only what they decide themselves."
        ),
    ] = None
    name: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9_./-]{1,128}$")] | None,
        Meta(
            description="What keeps this pool's keys apart from those of other pools on the same store. null: "
            "namespace and pool; say it where two clusters share a store."
        ),
    ] = None
    username_file: Annotated[str | None, Meta(description="A file with the user's name, read again on change.")] = None
    password_file: Annotated[str | None, Meta(description="A file with the password, read again on change.")] = None
    ca_file: Annotated[
        str | None, Meta(description="PEM of who signs the store's certificate; null: whom the system trusts.")
    ] = None
    certificate_file: Annotated[
        str | None, Meta(description="PEM chain that the store may ask for; with key_file.")
    ] = None
    key_file: Annotated[str | None, Meta(description="Its PEM key.")] = None
    interval_seconds: Annotated[
        float, Meta(ge=0.01, le=5.0, description="From one batch of what was decided to the next.")
    ] = 0.075
    warm_start_seconds: Annotated[
        float,
        Meta(ge=0.0, le=60.0, description="How long a picker that joins may wait for what others know, NOT_SERVING."),
    ] = 5.0
    buffer_bytes_max: Annotated[
        int,
        Meta(ge=2**16, le=2**30, description="Batches that wait for a store that is away; the oldest go."),
    ] = 8 * 1024 * 1024
    state_file: Annotated[
        str | None,
        Meta(
            description="Where a picker without a store leaves what it knows when it stops, and finds it when it "
            "starts within 10 minutes."
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("shared_state needs both certificate_file and key_file, or neither")
        if self.username_file is not None and self.password_file is None:
            raise ValueError("shared_state.username_file needs shared_state.password_file")
        user, at, _ = (self.url or "").partition("://")[2].rpartition("@")
        if at and ":" in user:
            raise ValueError("shared_state.url has a password in it: put it in a file, shared_state.password_file")
        if at and self.password_file is None:
            raise ValueError("shared_state.url names a user: say where the password is, shared_state.password_file")
