"""The simulator: whole pools, the production director among the policies. `picker simulate`, `picker tune`.

cli_simulate.py      `picker simulate`
cli_tune.py          `picker tune`
simulate.py          one run, and the knee that loads are shares of
contest.py           every policy in every cell
tune.py              the search for better knobs
policies/            routing policies by name
sources.py           where a run's requests come from
workloads.py         seeded generators of sessions
heavy_workloads.py   those where routing is hardest
draws.py             their dice
traces.py            trace files
recorded.py          recordings of real traffic
prompts.py           prompts without text
scripts.py           what the fleet plays
fleet.py             the event loop: scripts through routers to servers
autoscale.py         an autoscaler, by the rules of Kubernetes
days.py              a workload whose rate follows the hours
sharing.py           pickers of one run that tell each other
engine.py            a model server: batching, KV cache, prefix caching
decoding.py          its sequences, a token each in every step
block_cache.py       its KV blocks
profiles.py          how fast it is
served_requests.py   what it understands of a request over HTTP
pooled_lru.py        the ceiling of any router's hit rate
records.py           what happened to each request
statistics.py        figures of it
results.py           what table, JSON and report show
report_table.py      the table
report_html.py       the page
report_svg.py        its plots
"""
