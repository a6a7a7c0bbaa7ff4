"""The configuration file, followed by content: a mounted ConfigMap changes by symbolic link.

A bad state of the file is told once, and the last good configuration stays.
"""

from pathlib import Path

from picker import config as configuration
from picker.config import Config, ConfigError


class ConfigFile:
    """One file, or none: then all defaults and never a change."""

    def __init__(self, path: Path | None) -> None:
        """Reads at once. Raises `ConfigError`."""
        self._path = path
        self._seen: str | ConfigError = self._read()
        self.config = configuration.load(self._text())

    def poll(self) -> Config | None:
        """The new configuration where the file changed, else `None`. Raises `ConfigError` once a bad state."""
        try:
            text = self._read()
        except ConfigError as error:
            if str(error) == str(self._seen):
                return None
            self._seen = error
            raise
        if text == self._seen:
            return None
        self._seen = text
        self.config = configuration.load(text)
        return self.config

    def _text(self) -> str:
        assert isinstance(self._seen, str)
        return self._seen

    def _read(self) -> str:
        if self._path is None:
            return ""
        try:
            return self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {self._path}: {error}") from None
