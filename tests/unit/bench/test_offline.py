"""The bench's stand-in for the director has all that an exchange asks of one: no measuring finds out first."""

from picker.extproc.exchange import Policy
from tests.bench.offline import FixedPolicy


def test_the_fixed_policy_answers_whatever_an_exchange_asks() -> None:
    asked = {*Policy.__annotations__, *(name for name in vars(Policy) if not name.startswith("_"))}
    assert asked > {"decide", "metering", "limits", "finish"}
    assert [name for name in sorted(asked) if not hasattr(FixedPolicy, name)] == []
