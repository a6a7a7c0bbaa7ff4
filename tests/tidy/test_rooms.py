"""The picture and the table of docs/architecture.md are the code's own. `make docs` writes them."""

from tests.tidy import rooms


def test_every_room_says_what_it_is_for():
    assert [name for name, text in rooms.rooms().items() if not text] == []


def test_every_room_stands_in_a_row_and_imports_go_down():
    names = rooms.rooms()
    graph = rooms.imports(names)
    plan = rooms.rows(graph)
    level = {name: number for number, row in enumerate(plan) for name in row}
    assert set(level) == set(names)
    assert sum(map(len, plan)) == len(names)
    assert [(name, other) for name, others in graph.items() for other in others if level[other] <= level[name]] == []


def test_a_line_is_left_out_only_where_a_longer_way_says_it():
    graph = {"a": frozenset("bcd"), "b": frozenset("c"), "c": frozenset(), "d": frozenset()}
    assert rooms.without_detours(graph) == {**graph, "a": frozenset("bd")}


def test_the_picture_is_the_codes_own():
    assert rooms.PICTURE.read_text("utf-8") == rooms.picture(), "run: make docs"


def test_the_table_is_the_codes_own():
    text = rooms.PAGE.read_text("utf-8")
    assert text == rooms.with_table(text), "run: make docs"
