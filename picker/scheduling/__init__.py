"""Where? Costs in seconds for every endpoint, and the one that is chosen.

scheduler.py     filters, costs and the epsilon-greedy affinity rule: one choice
columns.py       what scorers see: the pool's loads and this request's numbers
loads.py         the pool's load as a table: a row a quantity, a column a slot
filters/         who may be asked at all
scorers/         columns to a column of seconds, one file each: the definition of the costs
fused.py         the three scorers at once, in one matrix product
normalized.py    the weighted sum of 0..1 scores that peers use (`scoring: normalized`)
rates.py         what is learned while serving: prefill rates, sizes by model
demand.py        how many replicas the work that arrives keeps busy
adapters.py      LoRA adapters: where they are loaded, where no slot is free
stickiness.py    sessions, stored responses and conversations go where they were
served.py         who served, as the proxy tells, beside what was picked
ejection.py      endpoints that fail are passed over
explanation.py   why this endpoint: a decision's columns, in words when somebody asks
shares.py   each endpoint's share of the prefix index
sizing.py   how that follows what is observed
"""
