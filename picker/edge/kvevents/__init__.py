"""KV events of engines over ZMQ: who publishes them, and one subscriber each.

sources.py      where an engine publishes
subscriber.py   one publisher, followed
listening.py    those that connect to the picker
follower.py     those of the whole pool
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from picker.config import ConfigError
from picker.director import Director
from picker.pool.specs import EndpointSpec
from picker.residency.residency import Residency

if TYPE_CHECKING:
    from picker.edge.kvevents.follower import KvEventFollower


def make_follower(
    director: Director, endpoints: Callable[[], Sequence[EndpointSpec]], clock: Callable[[], float]
) -> "KvEventFollower | None":
    """Who follows the engines' events for `director`; `None` where nobody is to, or, with `auto`, without pyzmq.

    Raises `ConfigError`.
    """
    config = director.config
    log = logging.getLogger("picker.kv_events")
    if config.kv_events.enabled is False:
        return None
    try:
        from picker.edge.kvevents.follower import KvEventFollower
    except ImportError:
        if config.kv_events.enabled is True:
            raise ConfigError(
                "kv_events.enabled: pyzmq is not installed; pip install 'inference-picker[kv-events]', or say false"
            ) from None
        log.info(
            "KV events are not read: pyzmq is not installed; pip install 'inference-picker[kv-events]' if engines tell"
        )
        return None
    residency = Residency(director.index, stamps=f"p{os.urandom(5).hex()}-")
    director.listen(residency)
    find = director.datastore.find
    return KvEventFollower(
        config.kv_events,
        residency,
        endpoints=endpoints,
        slot_of=lambda uid: None if (endpoint := find(uid)) is None else endpoint.slot,
        clock=clock,
        scheme=config.engine_metrics.scheme,
        log=log,
    )
