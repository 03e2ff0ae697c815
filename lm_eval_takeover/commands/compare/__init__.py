"""`lm-eval-takeover compare`: a guided run of the demo task beside other ways to spend its budget.

Knows which methods the demo is compared with, and which of its tokens are decisions. Comes in: the results file of a guided
run. The others run with its seed through lm-eval, which knows the model type by its name. Goes out: lm-eval's table, the
recovery by method (`methods`), precision and recall of the gate against the true decisions (`decisions`). Start reading at
`command`.
"""

from lm_eval_takeover.commands.compare.command import DESCRIPTION, EXAMPLE, HELP, add_options, run

__all__ = ["DESCRIPTION", "EXAMPLE", "HELP", "add_options", "run"]
