"""The page people look at: `GET /` on the metrics port, and the stream that it (and any other viewer) follows.

live.py        what a viewer is told, once a second while somebody looks: one rendering for all of them
history.py     the pool over the last 15 minutes, from differences of what telemetry counts anyway
columns.py     the endpoints as they stand now, a column a quantity
what_if.py     the kept decisions again, with other weights
residence.py   where a session, a stored response or a prompt's prefix lives
routes.py      HTTP: the page's files, the stream, what is asked about
assets/        the page itself: no library, nothing from elsewhere

The stream is `GET /live`, server-sent events; every `data` is one line of JSON. docs/telemetry.md has its contract.
"""
