"""The picker as a process: memory, the file that it follows, and the one beside it that drains Envoy.

config_file.py   the configuration file, followed by content
envoy_drain.py   `picker drain-envoy`: on SIGTERM, Envoy finishes with its clients
gc_freeze.py     the cyclic collector: what lives long goes on living
line_watch.py    says that a recording or a usage file loses lines
loop_watch.py    how late the event loop runs, and timers that do not blame peers for it
malloc.py        glibc's allocator: large buffers come and go
memory.py        how much memory there is, and what part of it is for what
"""
