"""The live state: endpoints, what engines report, what is in flight.

datastore.py     endpoints and readings in, snapshots out
snapshot.py      the pool at one moment, as a value
endpoint.py      a member of the pool
specs.py         what sources and scrapers tell of it
inflight.py      what was sent where and is not over
labels.py        endpoints by their labels
model_lists.py   which endpoints serve which model
"""
