"""The Kubernetes API server, over HTTP. What to ask and what it means is in picker/kubernetes.

source.py         a pool and its pods, or pods by selector, as a source of endpoints
follow.py         drives one list/watch machine
lease.py          drives the election machine
token_review.py   who may read the metrics page
api.py            requests: bytes in and out
credentials.py    where the API server is, and who we are
"""
