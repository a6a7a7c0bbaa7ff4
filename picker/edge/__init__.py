"""All that touches the outside world. The rooms do not know each other; wiring.py joins them to the core.

grpc/                 the port that Envoy calls, and health
kubernetes/           the API server: pods, pools, leases, rights
scraping/             what engines and GPUs report
sharing/              what several pickers tell each other, through a store
kvevents/             what engines publish of their KV caches
telemetry/            metrics, logs, traces, explanations
process/              memory of the process, and its configuration file
membership.py         who joins and leaves, told to the core in steps
static_endpoints.py   endpoints from the command line or a file
"""
