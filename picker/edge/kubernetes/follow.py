"""Drives one list/watch machine over HTTP: does what it says, tells it what came. All policy is in the machine."""

import asyncio
from collections.abc import Callable
from typing import Generic

from picker.edge.kubernetes.api import AnswerTooLargeError, ApiAnswer, ApiUnreachableError, KubernetesApi
from picker.kubernetes.backoff import Fault, Health
from picker.kubernetes.listwatch import ListWatch
from picker.kubernetes.watch_messages import Change, List, T, Wait, Watch

LIST_SECONDS = 60.0


class Follower(Generic[T]):
    """Follows one resource until cancelled. Callbacks run on the event loop and must not block.

    on_change   once per read of the socket that changed the set, with everything that came in it
    on_health   when the conversation's health changed: the machine's `health` and `detail` say how
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        machine: ListWatch[T],
        *,
        on_change: Callable[[list[Change[T]]], None],
        on_health: Callable[[], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self.machine = machine
        self._on_change = on_change
        self._on_health = on_health
        self._clock = clock or asyncio.get_running_loop().time
        self._told = Health.STARTING

    async def run(self) -> None:
        """Never returns. An unexpected exception is a failed request like another: a watcher does not die."""
        while True:
            action = self.machine.next_action(self._clock())
            if isinstance(action, Wait):
                await asyncio.sleep(action.until_seconds - self._clock())
                continue
            try:
                await (self._list(action) if isinstance(action, List) else self._watch(action))
            except ApiUnreachableError as error:
                self.machine.failed(Fault(str(error)), self._clock())
            except AnswerTooLargeError:
                self.machine.page_too_large(self._clock())
            except Exception as error:
                self.machine.failed(Fault(f"unexpected {type(error).__name__}: {error}"), self._clock())
            self._tell_health()

    async def _list(self, action: List) -> None:
        answer = await self._api.request(
            "GET",
            self._path,
            action.params,
            fresh_credentials=action.fresh_credentials,
            timeout_seconds=LIST_SECONDS,
        )
        if answer.status == 200:
            self._changed(self.machine.list_page(answer.body, self._clock()))
        else:
            self.machine.failed(answer.fault, self._clock())

    async def _watch(self, action: Watch) -> None:
        async with self._api.stream(
            self._path,
            action.params,
            idle_seconds=action.idle_seconds,
            total_seconds=action.total_seconds,
            fresh_credentials=action.fresh_credentials,
        ) as stream:
            if isinstance(stream, ApiAnswer):
                self.machine.failed(stream.fault, self._clock())
                return
            self.machine.watch_opened(self._clock())
            self._tell_health()
            while data := await stream.read():
                self._changed(self.machine.watch_bytes(data, self._clock()))
                if not self.machine.busy:
                    return
            self.machine.closed(self._clock())

    def _changed(self, changes: list[Change[T]]) -> None:
        if changes:
            self._on_change(changes)

    def _tell_health(self) -> None:
        if self.machine.health is not self._told:
            self._told = self.machine.health
            self._on_health()
