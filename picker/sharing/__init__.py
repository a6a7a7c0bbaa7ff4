"""What pickers tell each other, without I/O: the edge (edge/sharing) carries the bytes.

records.py    what a batch consists of
codec.py      batch <-> bytes, with a head that refuses what another version wrote
hashes.py     block hashes as bytes
names.py      what endpoints are called between pickers
trails.py     where chains ended that all pickers know: what the next turn is told relative to
peers.py      the other pickers: what was heard of each, and what they have in flight
books.py      the director's books as far as pickers tell each other of them
outbox.py     the director's news, a batch every so often
inbox.py      others' batches into our index, columns, rates, ejections and sessions
snapshots.py  the whole of what is known, in chunks
shared.py     all of it for one picker
attach.py     a director among others, or alone again
status.py     how it stands, for telemetry

Everything here may be lost, repeated or late: uses of the index merge by their time, load is told
whole, and a gap in a picker's numbering is made good by a snapshot of that picker.
"""
