"""The task files. The entry point `lm_eval.tasks` names this package; lm-eval 0.4.13 gets its folder from the path file."""
