"""Runs of lm-eval's on the demo task, in this process."""


def evaluate_demo(model, arguments, limit, task="takeover_demo", task_folder=None, **options):
    """lm-eval's results of the demo task, or of a task whose file is in this folder."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from lm_eval_takeover.storage.paths import TASK_CONFIGS

    return simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        limit=limit,
        task_manager=TaskManager(include_path=str(task_folder or TASK_CONFIGS), include_defaults=False),
        bootstrap_iters=0,
        **options,
    )


def run_demo(folder, limit, arguments, **options):
    """The same by our model with a run_dir."""
    from lm_eval_takeover.tasks.verdicts import get_verdict_log

    found = evaluate_demo("guided-takeover", {"batch_size": 64, "run_dir": str(folder), **arguments}, limit, **options)
    get_verdict_log().close()
    return found
