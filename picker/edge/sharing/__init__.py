"""What several pickers tell each other, through a store (Redis, Valkey) or over a restart (a file).

partnership.py   what the configuration makes of a picker: a link, a state file, or neither
link.py          streams and snapshots: telling, hearing, joining, and a store that fails
store.py         a client of the store: TLS, credentials from files, sentinels, clusters
state_file.py    what is known, kept over a restart
"""
