"""`picker top`: a running picker on a terminal, for whoever has no browser there.

reading.py        what is shown, from wherever it was read
from_stream.py    read from the stream of the live page, once a second
from_metrics.py   read from /metrics and /debug/decisions, where there is no stream
screen.py         a reading as tables and bars
viewing.py        the loop: read, draw, try again
"""
