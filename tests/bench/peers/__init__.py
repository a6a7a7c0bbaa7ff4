"""`make bench-peers`: the same requests through other routers and through the picker, on this machine, in turn.

Reading order: `__main__` (arguments), `contestants` (who takes part), `adapters/` (how each one is
started), `workload` (what is sent), `run` (rounds, cells, order), `cell` (one measurement), `verdict` (medians
over rounds, who beats whom), `report` (tables and sentences), `publish` (docs/benchmarks.md).

Invariants: in a round every contestant gets the same requests, drawn from one seed; it is
started anew for each cell and meets emptied caches; whatever fails makes one contestant absent, not the run.
"""
