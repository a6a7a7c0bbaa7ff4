"""What the picker shows of itself.

observers.py   who is told of every decision and of every end
page.py        the metrics page: one call a request, one page a scrape
series.py      accumulators, and the page that they make
buckets.py     bounds of the histograms
models.py      what is counted for each model
objectives.py  requests served in time
tenants.py     who used what
usage_file.py  the same, one JSON line a request
pool.py        the page's gauges
epp_names.py   the same under the names of the llm-d router
shared.py      its series about what pickers tell each other
view.py        what is asked when the page is read
decisions.py   the last decisions, with their reasons
question.py    what can be asked of them: request, endpoint, tenant, time
moments.py     times as people write them
decision_page.py   GET /debug/decisions
explain.py     `picker explain`: those of a running picker, on a terminal
top/           `picker top`: all of it at a glance, on a terminal
live/          the page people look at, and its stream
faults.py      our own faults: counted, and logged now and then
logs.py        logs on stderr, a line each
tracing.py     OpenTelemetry spans
printable.py   what strangers said, made fit for terminals and logs
server.py      HTTP on the metrics port
"""
