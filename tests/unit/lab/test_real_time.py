"""The engine on an event loop's clock, the clock in the test's hand."""

import asyncio

from picker.lab.real_time import RealTimeEngine
from picker.sim.profiles import PROFILES

H100 = PROFILES["8b-h100"]


class HeldLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes when it is told to, or when everybody sleeps."""

    now = 0.0

    def time(self):
        return self.now

    def _run_once(self):
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.now = max(self.now, min(timers))
        super()._run_once()


def run(main):
    with asyncio.Runner(loop_factory=HeldLoop) as runner:
        return runner.run(main)


def test_first_token_and_end_come_when_the_formula_says_at_any_speed():
    async def main(speed):
        engine = RealTimeEngine(H100, speed)
        ticket = engine.submit(1000, 50, [])  # type: ignore[arg-type]
        await ticket.first
        first = asyncio.get_running_loop().time()
        await ticket.done
        return first * speed, asyncio.get_running_loop().time() * speed

    one, two = run(main(1.0)), run(main(20.0))
    expected = H100.duration(prefill_tokens=1000, token_pairs=1000 * 500)
    for first, done in (one, two):
        assert abs(first - expected) < 1e-6
        assert first + 49 * H100.step_seconds < done < first + 49 * H100.step_seconds * 1.1


def test_asking_for_progress_at_the_very_end_gives_all_tokens():
    async def main():
        engine = RealTimeEngine(H100)
        ticket = engine.submit(1000, 50, [])  # type: ignore[arg-type]
        asyncio.get_running_loop().now = 100.0  # type: ignore[attr-defined]  # no timer ran: the question itself finishes it
        return engine.generated_tokens(ticket), ticket.done.done()

    assert run(main()) == (50, True)


def test_an_aborted_request_is_gone_for_good():
    async def main():
        engine = RealTimeEngine(H100)
        ticket = engine.submit(1000, 50, [])  # type: ignore[arg-type]
        engine.abort(ticket)
        engine.abort(ticket)
        await asyncio.sleep(1.0)
        return engine.model.running, engine.model.waiting, ticket.first.done(), engine.generated_tokens(ticket)

    assert run(main()) == (0, 0, False, 0)


def test_a_change_of_speed_goes_on_from_here():
    async def main():
        loop = asyncio.get_running_loop()
        engine = RealTimeEngine(H100)
        ticket = engine.submit(1000, 500, [])  # type: ignore[arg-type]
        await ticket.first
        engine.set_speed(0.1)
        before, at = engine.now(), loop.time()
        await ticket.done
        return (loop.time() - at) / (engine.now() - before)

    assert abs(run(main()) - 10.0) < 1e-6
