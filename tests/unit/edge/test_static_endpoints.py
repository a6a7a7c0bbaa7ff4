"""Endpoints from flags and files: every form, clear errors, and nothing lost when a file or a name goes away."""

import asyncio
import json
import os

import pytest

from picker.edge.static_endpoints import SourceError, StaticSource, parse_file, parse_list


def addresses(targets):
    return [(target.host, target.port) for target in targets]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:8000, [fd00::1]:8000 ,name:80,", [("10.0.0.1", 8000), ("fd00::1", 8000), ("name", 80)]),
        ("", []),
    ],
)
def test_a_list(text, expected):
    assert addresses(parse_list(text)) == expected


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "10.0.0.1:", ":8000", "10.0.0.1:0", "10.0.0.1:65536", "fd00::1:80", "a:b"]
)
def test_an_address_that_is_none_is_named(text):
    with pytest.raises(SourceError, match=r"host:port|1\.\.65535|brackets"):
        parse_list(f"10.0.0.9:80,{text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("endpoints: ['10.0.0.1:8000']", [("10.0.0.1", 8000)]),
        ("['10.0.0.1:8000']", [("10.0.0.1", 8000)]),
        ('{"endpoints": [{"address": "[fd00::1]:8000", "name": "a", "labels": {"x": "y"}}]}', [("fd00::1", 8000)]),
        ("endpoints: [{name: a, address: fd00::1, port: 8000, namespace: n}]", [("fd00::1", 8000)]),
        ("endpoints: []", []),
        ("[]", []),
        ("x: 2024-13-01\nendpoints: ['10.0.0.1:8000']", [("10.0.0.1", 8000)]),
        ("a: &a {address: '10.0.0.1:8000'}\nendpoints: [*a, {<<: *a, name: b}]", [("10.0.0.1", 8000)] * 2),
        ("<<: {endpoints: ['10.0.0.1:8000']}", [("10.0.0.1", 8000)]),
        ("{endpoints: ['10.0.0.1:8000']}", [("10.0.0.1", 8000)]),
    ],
)
def test_a_file(text, expected):
    assert addresses(parse_file(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "endpoints: 5",
        "endpoints: [{addres: a}]",
        "endpoints: [{address: a, port: 0}]",
        "a: [",
        "[",
        "a: 2024-13-01",
        "- !!int ''",
        "- !!bool x",
        "- !!timestamp x",
        "- 2024-13-01",
        "- " + "1:" * 2_000_000 + "1.0",
        "- &a [*a]",
        "&a [*a]",
        '[{"address": "a:1"}, 5]',
        '{"endpoints": {"a": 1}}',
        "[" * 5000,
    ],
)
def test_a_bad_file_is_a_source_error_whatever_is_wrong(text):
    with pytest.raises(SourceError):
        parse_file(text)


class Told:
    def __init__(self) -> None:
        self.logged: list[tuple[str, str]] = []

    def log(self, level, message, **fields):
        self.logged.append((level, message))


async def specs(source):
    return [spec.address for spec in await source._specs()]


def source(told, resolve=None, **more):
    return StaticSource(
        on_endpoints=lambda found: None, log=told.log, **({"resolve": resolve} if resolve else {}), **more
    )


def test_a_name_that_stops_resolving_keeps_its_addresses():
    answers = [["10.0.0.1", "10.0.0.2"], OSError("away"), UnicodeError("label too long"), ["10.0.0.3"]]

    async def resolve(host):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    told = Told()
    names = source(told, resolve, targets=parse_list("name:80,10.9.9.9:81"))
    seen = [asyncio.run(specs(names)) for _ in range(4)]
    both = ["10.0.0.1:80", "10.0.0.2:80", "10.9.9.9:81"]
    assert seen == [both, both, both, ["10.0.0.3:80", "10.9.9.9:81"]]
    assert [level for level, _ in told.logged] == ["warning", "info"]


def test_a_name_that_does_not_resolve_at_the_start_joins_within_seconds_and_the_others_serve_meanwhile():
    """On a loop whose time is ours: the second round is asked for 2 s later, the third after 30 s."""
    asked: list[float] = []
    answers = [OSError("no such name"), ["10.0.0.1"], ["10.0.0.2"]]

    async def resolve(host):
        asked.append(asyncio.get_running_loop().time())
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen: list[list[str]] = []

    async def follow() -> None:
        told = Told()
        enough = asyncio.Event()

        def keep(found):
            seen.append([spec.address for spec in found])
            if not answers:
                enough.set()

        names = StaticSource(
            targets=parse_list("late:80,10.9.9.9:81"), on_endpoints=keep, log=told.log, resolve=resolve
        )
        task = asyncio.create_task(names.run())
        await enough.wait()
        task.cancel()

    class Loop(asyncio.SelectorEventLoop):
        """Jumps to the next timer when nothing else is to do."""

        skipped = 0.0

        def time(self) -> float:
            return self.skipped

        def _run_once(self) -> None:
            if not self._ready and self._scheduled:  # type: ignore[attr-defined]
                self.skipped = max(self.skipped, self._scheduled[0]._when)  # type: ignore[attr-defined]
            super()._run_once()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(follow())
    assert seen == [["10.9.9.9:81"], ["10.0.0.1:80", "10.9.9.9:81"], ["10.0.0.2:80", "10.9.9.9:81"]]
    assert [round(time) for time in asked] == [0, 2, 32]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(file, text):
    """As if it had been written long ago: at the start it is believed at once."""
    file.write_text(text)
    os.utime(file, (1, 1))


async def settled(followed, clock):
    """What two looks a second apart say."""
    first = await followed._reload()
    clock.now += 1
    return first or await followed._reload()


def test_a_name_that_left_the_file_is_forgotten(tmp_path):
    async def resolve(host):
        return ["10.0.0.1"]

    clock = Clock()
    file = tmp_path / "endpoints.yaml"
    write(file, "endpoints: ['name:80']")
    followed = source(Told(), resolve, file=file, clock=clock)
    assert asyncio.run(specs(followed)) == ["10.0.0.1:80"]
    write(file, "endpoints: ['10.0.0.9:80']")
    assert asyncio.run(settled(followed, clock))
    assert asyncio.run(specs(followed)) == ["10.0.0.9:80"]
    assert followed._known == {}


def test_a_file_that_goes_bad_or_away_keeps_the_last_list_and_says_so_once_each_time(tmp_path):
    file = tmp_path / "endpoints.yaml"
    good = "endpoints: ['10.0.0.1:8000']"
    write(file, good)
    told, clock = Told(), Clock()
    followed = source(told, file=file, clock=clock)
    for content, changed, errors in [
        (good, False, 0),
        (None, False, 1),
        (None, False, 1),
        (good, False, 1),
        (None, False, 2),
        (good, False, 2),
        ("", False, 3),
        ("", False, 3),
        ("endpoints: 2024-13-01", False, 4),
        ("endpoints: 2024-13-01", False, 4),
        ("endpoints: ['10.0.0.2:8000']", True, 4),
        ("endpoints: []", False, 5),
        ("[]", False, 6),
        ("endpoints: ['10.0.0.3:8000']", True, 6),
    ]:
        if content is None:
            file.unlink(missing_ok=True)
        else:
            write(file, content)
        assert asyncio.run(settled(followed, clock)) is changed
        assert len(told.logged) == errors
    assert addresses(followed._targets) == [("10.0.0.3", 8000)]


def test_a_list_that_is_being_written_again_loses_no_endpoint(tmp_path):
    """The beginning of the list in force, line by line: what an editor that writes in place leaves for a moment."""
    file = tmp_path / "endpoints.yaml"
    lines = ["endpoints:\n", *(f"- 10.0.0.{n}:8000\n" for n in range(1, 5))]
    write(file, "".join(lines))
    clock = Clock()
    followed = source(Told(), file=file, clock=clock)
    for count in range(len(lines) + 1):
        write(file, "".join(lines[:count]))
        assert not asyncio.run(settled(followed, clock))
        assert len(followed._targets) == 4


def test_a_list_that_is_written_anew_each_second_with_the_time_in_it_is_taken(tmp_path):
    """And in whatever order: it comes out of a map."""
    file = tmp_path / "endpoints.yaml"
    clock = Clock()

    def put(number, entries):
        turned = entries[number % len(entries) :] + entries[: number % len(entries)]
        write(file, "\n".join([f"# written at {number}", "endpoints:", *turned, ""]))

    def reloads(entries):
        found = 0
        for _ in range(20):
            put(int(clock.now), entries)
            found += asyncio.run(followed._reload())
            clock.now += 1
        return found

    before = [f"- 10.0.0.{n}:8000" for n in range(1, 4)]
    put(0, before)
    followed = source(told := Told(), file=file, clock=clock)
    assert reloads(before) == 0
    more = [*before, "- {address: 10.0.0.4, port: 8000, labels: {a: b, c: d}}"]
    assert reloads(more) == 1
    assert sorted(addresses(followed._targets))[-1] == ("10.0.0.4", 8000)
    assert reloads([*more[:-1], more[-1].replace("a: b, c: d", "c: d, a: b")]) == 0
    assert reloads([*more[:-1], more[-1].replace("c: d", "c: e")]) == 1
    assert not told.logged
    assert reloads(["- nonsense"]) == 0
    assert [level for level, _ in told.logged] == ["error"]


def test_thousands_of_endpoints_come_out_as_they_went_in(tmp_path):
    file = tmp_path / "endpoints.json"
    wanted = [f"10.0.{n // 200}.{n % 200}:8000" for n in range(3000)]
    write(file, json.dumps({"endpoints": wanted}))
    assert asyncio.run(specs(source(Told(), file=file))) == wanted


def test_an_address_has_one_spelling():
    assert addresses(parse_list("[fd00:0:0::1]:8000")) == [("fd00::1", 8000)]


def test_a_file_that_cannot_be_read_at_the_start_is_an_error_that_names_it(tmp_path):
    with pytest.raises(SourceError, match=r"missing\.yaml"):
        source(Told(), file=tmp_path / "missing.yaml")


def test_an_address_that_is_listed_twice_is_one_endpoint_told_once_and_counted():
    async def resolve(host):
        return ["10.0.0.1", "10.0.0.2"]

    told = Told()
    listed = source(told, resolve, targets=parse_list("10.0.0.1:80,name:80,10.0.0.1:80,10.0.0.1:81"))
    for _ in range(2):
        assert asyncio.run(specs(listed)) == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.1:81"]
        assert listed.address_collisions == 2
    assert [level for level, _ in told.logged] == ["warning"]
