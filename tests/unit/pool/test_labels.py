"""Selectors: Kubernetes' equality syntax, nothing else, and errors that tell the client what to write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.pool.labels import REQUIREMENTS_MAX, TEXT_CHARS_MAX, InvalidSelector, parse_selector, selector

GOLD = {"tier": "gold", "zone": "a", "llm-d.ai/role": "decode"}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("tier=gold", True),
        ("tier==gold", True),
        (" tier = gold , zone=a ", True),
        ("tier=gold,zone=b", False),
        ("tier=silver", False),
        ("tier!=silver", True),
        ("tier!=gold", False),
        ("missing=x", False),
        ("missing!=x", True),
        ("llm-d.ai/role=decode", True),
        ("tier=", False),
        ("missing=", False),
        (",tier=gold,", True),
    ],
)
def test_which_endpoints_a_text_selects(text, selected):
    """Kubernetes: `=` wants the label with that value, `!=` also takes endpoints without the label."""
    parsed = parse_selector(text)
    assert parsed is not None and parsed.matches(GOLD) is selected


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_an_empty_text_asks_for_nothing(text):
    assert parse_selector(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tier", ["entry 1", "label=value"]),
        ("tier=gold,zone", ["entry 2", "label=value"]),
        ("=gold", ["entry 1", "before '='"]),
        ("ti er=gold", ["before '='"]),
        ("tier in (gold)", ["no '='"]),
        ("tier=go ld", ["after '='"]),
        ("tier===gold", ["after '='"]),
        ("-tier=gold", ["before '='"]),
        ("a/b/c=d", ["before '='"]),
        ("tier=" + "x" * 64, ["after '='"]),
        ("tier=gol\x00d", ["after '='"]),
        ("tier=\u00e9", ["after '='"]),
        (",".join(f"k{n}=v" for n in range(REQUIREMENTS_MAX + 1)), [str(REQUIREMENTS_MAX)]),
        ("k=" + "," * TEXT_CHARS_MAX, [str(TEXT_CHARS_MAX)]),
    ],
)
def test_what_cannot_be_read_is_said_without_repeating_it(text, words):
    with pytest.raises(InvalidSelector) as refused:
        parse_selector(text)
    for word in words:
        assert word in str(refused.value)
    assert "gold" not in str(refused.value) and len(str(refused.value)) < 200


@given(st.text(max_size=200))
def test_any_text_is_a_selector_or_refused(text):
    try:
        parsed = parse_selector(text)
    except InvalidSelector:
        return
    assert parsed is None or isinstance(parsed.matches(GOLD), bool)


def test_configuration_selects_by_match_and_by_what_is_not_in():
    configured = selector({"tier": "gold"}, {"zone": ["b", "c"], "unused": []})
    assert configured is not None
    assert configured.matches(GOLD)
    assert not configured.matches({**GOLD, "zone": "c"})
    assert not configured.matches({"zone": "a"})
    assert selector({}, {"unused": []}) is None and selector({}, {}) is None
