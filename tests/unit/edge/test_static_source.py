"""Endpoints from flags and files: every form, clear errors, and nothing lost when a file or a name goes away."""

import pytest

from picker.edge.static_source import SourceError, StaticSource, parse_file, parse_list


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
    import asyncio

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
    import asyncio

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
            if not self._ready and self._scheduled:
                self.skipped = max(self.skipped, self._scheduled[0]._when)
            super()._run_once()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(follow())
    assert seen == [["10.9.9.9:81"], ["10.0.0.1:80", "10.9.9.9:81"], ["10.0.0.2:80", "10.9.9.9:81"]]
    assert [round(time) for time in asked] == [0, 2, 32]


def test_a_name_that_left_the_file_is_forgotten(tmp_path):
    import asyncio

    async def resolve(host):
        return ["10.0.0.1"]

    file = tmp_path / "endpoints.yaml"
    file.write_text("endpoints: ['name:80']")
    followed = source(Told(), resolve, file=file)
    assert asyncio.run(specs(followed)) == ["10.0.0.1:80"]
    file.write_text("endpoints: ['10.0.0.9:80']")
    assert followed._reload()
    assert asyncio.run(specs(followed)) == ["10.0.0.9:80"]
    assert followed._known == {}


def test_a_file_that_goes_bad_or_away_keeps_the_last_list_and_says_so_once_each_time(tmp_path):
    file = tmp_path / "endpoints.yaml"
    good = "endpoints: ['10.0.0.1:8000']"
    file.write_text(good)
    told = Told()
    followed = source(told, file=file)
    for content, changed, errors in [
        (good, False, 0),
        (None, False, 1),
        (None, False, 1),
        (good, False, 1),
        (None, False, 2),
        (good, False, 2),
        ("endpoints: 2024-13-01", False, 3),
        ("endpoints: 2024-13-01", False, 3),
        ("endpoints: ['10.0.0.2:8000']", True, 3),
    ]:
        if content is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(content)
        assert followed._reload() is changed
        assert len(told.logged) == errors
    assert addresses(followed._targets) == [("10.0.0.2", 8000)]


def test_a_file_that_cannot_be_read_at_the_start_is_an_error_that_names_it(tmp_path):
    with pytest.raises(SourceError, match=r"missing\.yaml"):
        source(Told(), file=tmp_path / "missing.yaml")
