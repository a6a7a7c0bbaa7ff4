"""Talking to Envoy, without I/O: one HTTP request and its response on one ext_proc stream.

wire.py         bytes to events, replies to bytes; the only core file that knows protobuf
headers.py      the headers that are read, out of a message's bytes (`_headers.c` beside it)
crumbs.py       messages that are not taken apart
events.py       what the proxy tells us
exchange.py     the state machine: events in, replies out
replies.py      what we tell the proxy
errors.py       our own answers, in the shape of the client's API
value.py        what events and replies have in common
remembered.py   what comes again and again, by its key
"""
