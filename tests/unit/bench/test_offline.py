"""The bench's stand-in for the director has all that an exchange asks of one: no measuring finds out first."""

import ast
from pathlib import Path

from picker.extproc import exchange
from tests.bench.offline import FixedPolicy


def asked() -> set[str]:
    """What an exchange asks of its policy, as the source says: compiled, a class forgets its annotations."""
    source = Path(exchange.__file__).with_name("exchange.py").read_text("utf-8")
    policy = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Policy")
    values = {
        node.target.id for node in policy.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return values | {node.name for node in policy.body if isinstance(node, ast.FunctionDef)}


def test_the_fixed_policy_answers_whatever_an_exchange_asks() -> None:
    assert asked() > {"decide", "metering", "limits", "finish"}
    assert [name for name in sorted(asked()) if not hasattr(FixedPolicy, name)] == []
