"""What the package offers at its top."""

from inspect import ismodule


def test_all_is_complete():
    import lm_eval_takeover

    public = {
        name for name, value in vars(lm_eval_takeover).items() if not name.startswith("_") and not ismodule(value)
    }
    assert set(lm_eval_takeover.__all__) == public | {"__version__"}
