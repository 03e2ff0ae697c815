"""The subcommands of `lm-eval-takeover`, one room each: its options, its run, its words.

A room knows what one subcommand asks for and prints; what it computes with lies in the rooms below. Comes in: the options
that `cli.py` has parsed. Goes out: tables on stdout, files where the options say, an exit status. A new subcommand is a new
module or package here with the attributes of `cli.Command`; no other file changes. Start reading at `cli.Command`, then in
the room's `command.py`.
"""
