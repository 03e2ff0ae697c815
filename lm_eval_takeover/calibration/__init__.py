"""The calibration artefact: the thresholds of a gate for one pair of models, measured or published.

Knows equations (3) and (4), the schema of a calibration file, its page and its comparison with others. Comes in: scores in nats
(as a sketch of their quantiles), or a file by name or path. Goes out: tau and kappa at a spike ratio, a checked file, Markdown.
It runs no model: `commands/calibrate` measures, `pair.loading` makes a gate of what is read here. Start reading at
`thresholds`, then `files` (JSON on disk), `sketch` (quantiles in bounded memory), `page` and `comparison`.
"""
