"""The package of YAML files that the entry point `lm_eval.tasks` names: its `__path__` is their folder.

lm-eval 0.4.13 does not read that group yet; there the path file adds the folder.
"""

from lm_eval_takeover.storage.paths import data_folder

__path__ = [str(data_folder("task_configs"))]
