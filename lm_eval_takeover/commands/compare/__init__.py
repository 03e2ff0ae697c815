"""`lm-eval-takeover compare`: a pair by several methods, in one command that can be interrupted.

Comes in: a pair, tasks, rates, a folder (`comparison`). Goes out: a calibration where none fits, the results of each row
(`rows`, `worker`), and the tables of `leaderboard` and of costs (`running`). `planning`: what that takes. Start at `comparison`.

RUN_DIR/calibration-DIGEST.json    if no packaged one fitted
RUN_DIR/ROW/samples                the row's run_dir: its journal and traces
RUN_DIR/ROW/row.json               which of its samples the row is made of, by task (`runs.identity.read_row`)
RUN_DIR/ROW/results                its --output_path; RUN_DIR/ROW/results/TASK for a row with a rate of its own for each task
RUN_DIR/ROW/lm_eval.log            what lm-eval printed
RUN_DIR/leaderboard.json           the table; RUN_DIR/rows.json what `leaderboard`, `report` and `frontier` read
"""
