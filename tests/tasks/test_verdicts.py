"""Where verdicts are logged."""

from lm_eval_takeover.tasks.verdicts import get_verdict_log, redirect_verdicts, set_verdict_log


class Log:
    def add_verdicts(self, verdicts):
        pass


def test_verdicts_are_redirected_inside_of_the_block_only():
    outer, inner = Log(), Log()
    before = get_verdict_log()
    set_verdict_log(outer)
    try:
        with redirect_verdicts(inner):
            assert get_verdict_log() is inner
        assert get_verdict_log() is outer
    finally:
        set_verdict_log(before)
