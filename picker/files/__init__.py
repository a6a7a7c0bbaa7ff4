"""Files: those that others write while the picker runs, and those that it writes on disks that may be full.

followed_file.py    one reader for all: what counts as changed, what is refused, what never blocks
files_in_use.py     a token, certificates: looked at before each use, the last good content stays
long_list.py        the items of a long list, in YAML or JSON, one at a time
background.py       long work in a thread that no request notices
pem.py              certificates and keys from memory, for `ssl`, which reads files
line_file.py        whole lines, rotated, in bounds
line_writer.py      a thread that writes them, and what waits for it
"""
