"""Files, locks and digests, with the standard library alone. Every other folder may use it.

In: paths, bytes, JSON values. Out: files, digests, checked values. Start at `files`: it writes a file completely or not at all,
gives a folder to one process. `schema` checks foreign JSON against annotations.
"""
