"""From the llm-d / GIE picker's EndpointPickerConfig to our configuration: `picker convert FILE`.

Pure: text in, configuration and sentences out. Nothing of the document is passed over in silence:
every plugin, parameter and section is carried over, or a note says why not and what does its job
here. The result is checked by `config.load`, so it can be used as it is.

Source of the document's shape and of both its API groups: llm-d-router,
apix/config/v1alpha1/endpointpickerconfig_types.go.

    document.py   finds an EndpointPickerConfig in a text, reads its parts
    draft.py      one conversion in progress
    plugins.py    what becomes of each plugin
"""

from typing import Any

import msgspec
import yaml

from picker import config
from picker.convert.document import ConversionError, find_document
from picker.convert.draft import Draft

__all__ = ["Conversion", "ConversionError", "convert"]


class Conversion(msgspec.Struct, frozen=True):
    """What came of a document.

    `configuration` is ours, ready for YAML; what was not said is left out. `notes` are whole
    sentences: what changed its meaning, and what was not carried over.
    """

    configuration: dict[str, Any]
    notes: tuple[str, ...]


def convert(text: str, key: str | None = None) -> Conversion:
    """Convert one EndpointPickerConfig, or a ConfigMap that holds some: that under `key`, else the first.

    Raises `ConversionError`.
    """
    document, others = find_document(text, key)
    draft = Draft(document)
    if others:
        which = "the ConfigMap's first" if key is None else f"the ConfigMap's {key}"
        draft.note(
            f"This is {which}; it also holds {', '.join(others)}. The one in use is named by --config-file in the old "
            "Deployment: take it with --key."
        )
    draft.read()
    try:
        config.load(yaml.safe_dump(draft.configuration))
    except config.ConfigError as error:
        raise ConversionError(f"a value is out of the range accepted here: {error}") from None
    return Conversion(draft.configuration, tuple(draft.notes))
