"""What engines say of their KV caches, and which of our chains that is. No I/O.

wire.py       bytes of a batch -> events, token ids skipped
sequence.py   what is missing of a publisher's numbered batches
heard.py      what is counted of the messages
residency.py  events of a slot -> what the prefix index is to confirm, shorten or forget
"""
