"""The calibration artefact: the thresholds of a gate for one pair of models, measured or published.

Knows equations (3) and (4) and the schema of a calibration file. In: scores in nats, or a file by name or path. Out: tau and
kappa at a spike ratio, a checked file. `commands/calibrate` measures, `pair.loading` makes a gate. Start reading at
`thresholds`, then `files` (JSON on disk), `tuning` (methods to solve for).
"""
