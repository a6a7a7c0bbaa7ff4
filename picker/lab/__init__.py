"""The real Envoy before simulated model servers: the demo, and what benchmarks and tests start.

demo.py           `picker demo`
demo_screen.py    what it shows
envoy.py          Envoy as a child process
envoy_config.py   its configuration from a dozen words
model_server.py   simulated model servers over HTTP
real_time.py      the engine model on an event loop's clock
vllm_answers.py   what vLLM answers
load_client.py    a workload over HTTP, and what a client sees
children.py       programs of ours that say when they are ready
child.py          child processes that cannot outlive us
"""
