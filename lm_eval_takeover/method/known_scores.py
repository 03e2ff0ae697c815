"""Whether a score is known, without loading torch for the usual ones."""


def check_score(score: str | None, plugins: str | None) -> None:
    """Refuse a score that nobody has registered; those of plug-ins are known once they are loaded. Raises ArgumentError."""
    if score is not None and plugins is None and score not in ("ce", "rkl", "js", "entropy"):
        from lm_eval_takeover.method.registry import scores

        scores.get(score)
