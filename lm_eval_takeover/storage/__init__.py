"""Storage: files that are there whole or not at all, locks between processes, digests, and where package data lies.

In come paths, bytes and JSON values; out go files on disk, held locks and hexadecimal digests.
It knows nothing of models, tasks or runs, and imports nothing of the package.
Start with `whole_files.write_whole`, which every file but the journals is written by.
"""
