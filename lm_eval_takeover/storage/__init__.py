"""Files, locks and digests, with the standard library alone. Every other folder may use it.

In: paths, bytes, JSON values. Out: files, digests, checked values. Start at `whole_files`, which writes a file completely or not
at all. `locks` gives a folder to one process. `schema` checks foreign JSON against annotations. `paths` makes safe paths.
"""
