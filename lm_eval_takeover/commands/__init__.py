"""The subcommands of `lm-eval-takeover`, one folder each: its options, its run, its messages.

A folder knows what one subcommand reads and prints. It computes with lower folders. In: the options that `cli.py` has parsed.
Out: tables on stdout, files, an exit status. A new subcommand is a new
module or package here with the attributes of `cli.Command`; no other file changes. Start reading at `cli.Command`, then in
the folder's `command.py`.
"""
