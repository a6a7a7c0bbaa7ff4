"""HPACK's Huffman code (RFC 7541 section 5.2, appendix B), a byte at a time.

A decoder that walks the tree by bits, or hpack's by half bytes, takes longer than everything
else about a request header that changes (a trace id). Here what one byte does in one state of the
tree is worked out once and remembered: at most 256 states x 256 bytes for the whole process.
"""

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

_EOS: Final = 256

Step = tuple[int, bytes]
"""The state after a byte, and what the byte completed."""


class HuffmanError(ValueError):
    """Not the code's: the EOS symbol inside, or padding that is not the beginning of it."""


def _build_tree() -> list[list[int]]:
    """Inner nodes as [on 0, on 1]; a symbol is written as its complement (negative)."""
    nodes = [[0, 0]]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = ~symbol
    return nodes


def _padding_states(nodes: list[list[int]]) -> frozenset[int]:
    """Where a string may end: between symbols, or up to 7 bits into EOS, whose code is all ones."""
    states, node = [0], 0
    for _ in range(7):
        node = nodes[node][1]
        states.append(node)
    return frozenset(states)


_TREE: Final = _build_tree()
_ENDS: Final = _padding_states(_TREE)
_STEPS: Final[dict[int, Step]] = {}


def decode(data: bytes) -> bytes:
    """Raises `HuffmanError`."""
    state, out, steps = 0, [], _STEPS
    for byte in data:
        step = steps.get(state << 8 | byte) or _work_out(state, byte)
        state = step[0]
        out.append(step[1])
    if state not in _ENDS:
        raise HuffmanError("bad padding")
    return b"".join(out)


def _work_out(state: int, byte: int) -> Step:
    node, emitted = state, bytearray()
    for shift in range(7, -1, -1):
        node = _TREE[node][byte >> shift & 1]
        if node < 0:
            if ~node == _EOS:
                raise HuffmanError("EOS inside a string")
            emitted.append(~node)
            node = 0
    step = _STEPS[state << 8 | byte] = (node, bytes(emitted))
    return step
