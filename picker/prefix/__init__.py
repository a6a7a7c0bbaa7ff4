"""Which endpoints hold which prefix of a prompt.

blocks.py    a prompt as chained block hashes (`_blocks.c` beside it)
index.py     hashes to endpoints: a bounded radix tree
nodes.py     what the tree is made of
matches.py   what it answers with
walks.py     from a node upwards: a chain by where it once ended
"""
