"""Kubernetes as machines without I/O or clock. Their HTTP is in picker/edge/kubernetes.

listwatch.py            list/watch: says what to request, is told what came
watch_messages.py       what it and its edge tell each other
kubernetes_objects.py   objects reduced to what the picker looks at
pool_endpoints.py       a pool and its pods to the endpoints that serve now
election.py             leader election by a Lease
backoff.py              what can go wrong with a request, and how long to wait after it
"""
