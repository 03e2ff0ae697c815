"""The paper's analyses as pure functions: where the models disagree, and what takeovers change.

Knows no folder and no option. Comes in: the tokens of one sample after the other, or a table with a row per sample. Goes out:
small tables with the columns of `catalogue`, and their figures (`figures`). What is measured on one sample stands beside how
samples are put together: `catalogue` (equations 7 to 9, Fig. 2), `planning` (appendix B.2, equation 10), `outcomes` (Table 2,
Fig. 4, ranks, cross-sampling). Start reading at `catalogue`.
"""
