"""Files, locks and digests, with the standard library alone. Every other folder may use it.

`whole_files` writes a file completely or not at all, `locks` gives a folder to one process at a time, `digests` makes digests of
documents and texts, `schema` checks JSON of others against annotations, `paths` makes paths and finds the package's own data.
In: paths, bytes, JSON values. Out: files, digests, checked values. Start reading at `whole_files`.
"""
