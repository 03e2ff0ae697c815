"""`lm-eval-takeover frontier`: accuracy against cost, from folders that `compare` left.

Comes in: comparisons of other methods, seeds or pairs. Goes out: a line for each row, areas under each method's curve and an
oracle (`study`, with `curves`, the pure functions), tables and a picture (`output`). Start reading at `command`, then `study`.
The costs that a frontier may be drawn against are here, without numpy.
"""

COSTS = {  # by the name of an axis its column in frontier.csv, and what it is called
    "share": ("realized_rate", "share of tokens that the guide writes"),
    "changed": ("changed_rate", "share of tokens that differ from the base's"),
    "asked": ("asked_rate", "share of tokens at which the guide is asked"),
    "passes": ("donor_passes_per_token", "passes of the guide per token"),
    "weights": ("weights_per_token", "weights read per token"),
    "seconds": ("seconds_per_problem", "seconds per problem"),
}
AREA_AXES = ("share", "changed")  # elsewhere a method may have one cost at all rates
