"""The ledger of costs: which tokens of a text are changed, and at which the donor is asked.

Both follow from the method's definition, not from the engine: how many tokens an engine drafts changes its passes alone.
"""

import numpy as np

from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import OBSERVED
from lm_eval_takeover.method.policy import Policy


def count_changed(policy: Policy, generation: Generation) -> int | None:
    """Tokens that are not what the host draws there with the same numbers.

    None without a trace, and for a policy that takes over without asking the host, as `random`: its draw is not known there.
    """
    if policy.donor is None:
        return 0
    asks_host = policy.host is not None and (policy.scorer is not None or policy.needs_token)
    if generation.observed is None or not asks_host:
        return None
    observed = np.frombuffer(generation.observed, np.float32).reshape(-1, len(OBSERVED))
    host_tokens = observed[:, OBSERVED.index("host_token")]
    written = np.array(generation.tokens[len(generation.tokens) - len(host_tokens) :], np.float32)
    return None if np.isnan(host_tokens).any() else int((host_tokens != written).sum())


def count_asked(policy: Policy, generation: Generation) -> int:
    """Tokens whose donor's distribution is needed to decide or to write, and those of an answer that the donor writes first."""
    here = len(generation.tokens) if policy.drafts else generation.takeovers
    return here + generation.donor_answer
