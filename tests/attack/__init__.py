"""`make attack`: what strangers, clients and engines can do to a picker, while an honest client asks 50 times a second.

Each attack runs against a picker of its own, compiled and interpreted. Right is: no honest request fails or
waits 100 ms longer than without the attack, resident memory stays within what `limits.memory_bytes_max` says, and
returns to within 64 MB of before, and health answers SERVING all along. `--write` puts the table into docs/security.md.

    python -m tests.attack                          every attack on both builds
    python -m tests.attack --build interpreted --only bodies_never_finished,idle_connections
"""
