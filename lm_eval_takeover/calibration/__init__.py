"""The calibration artefact: the thresholds of a gate for one pair of models, measured or published.

In: scores in nats, or a file by name or path. Out: tau and kappa at a spike ratio, a checked file. `commands/calibrate` measures,
`pair.policy_choice` makes a gate. Start at `files` (equations (3), (4), JSON files), then `tuning` (methods to solve for).
"""
