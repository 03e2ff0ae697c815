"""Plug-ins of strangers, as the text of their files."""

MARGIN = """
from lm_eval_takeover import register_score

@register_score("{name}", needs_donor=False)
def margin(host_logits):
    first, second = host_logits.softmax(-1).topk(2).values.unbind(-1)
    return 1 - (first - second)
"""
EVERY = """
from dataclasses import dataclass

from lm_eval_takeover import Policy, register_policy


@register_policy("test_every")
@dataclass(frozen=True, kw_only=True)
class Every(Policy):
    period: int = 10

    def takes_over(self, block):
        return block.positions % self.period == 0
"""
