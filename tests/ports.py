"""Free ports for servers that cannot choose one themselves."""

import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago, and that no client's connection is given (Linux: 32768 on)."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 32_000), 22_000):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"fewer than {count} free ports from 10,000 to 32,000")
