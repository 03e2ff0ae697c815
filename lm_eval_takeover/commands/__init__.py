"""The subcommands of `lm-eval-takeover`, one folder each: its options, its run, its messages.

In: the options that `cli.py` has parsed. Out: tables on stdout, files, an exit status. A new subcommand is a new folder whose
`command.py` has the attributes that `cli` names; no other file changes. `_options` has the options that several commands share,
`_output` writes tables, figures and files. Start reading at `cli`, then in a folder's `command.py`.
"""
