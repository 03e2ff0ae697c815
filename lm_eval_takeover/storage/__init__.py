"""Files, and no meaning of theirs: the standard library alone, so that every other room may stand on it.

Knows how a file is written whole or not at all (`whole_files`), how one process at a time has a folder (`locks`), what stands for
a document or a text (`digests`), and where the package's own data lies, installed or in a checkout (`package_data`). Comes in:
paths, bytes, values that JSON can hold. Goes out: files that are old or new but never torn, digests, folders. Start reading at
`whole_files`.
"""
