"""What engines and GPUs report, read over HTTP.

scraper.py        every endpoint's metrics page about once a second
watch.py          one endpoint: its page, its list of models
target.py         where an endpoint's page may be
gpu.py            DCGM exporters
http_get.py       a lean GET client
bearer_token.py   a token from a file that others rotate
answer.py   what an answer to a request for a page means
tls.py   TLS towards metrics pages
"""
