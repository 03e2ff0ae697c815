"""What `batch_size=auto` chooses."""

from helpers.pairs import save_random_model

from lm_eval_takeover.decoding.engine import cache_bytes, rows_that_fit
from lm_eval_takeover.pair.member import Member


def test_the_bytes_of_a_token_are_those_of_keys_and_values(demo_pair, rough_pair):
    for member in (*demo_pair.members, *rough_pair.members):
        config = member.config
        assert cache_bytes(member) == 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4


def test_a_model_that_runs_in_lockstep_gets_the_most(tmp_path, machine):
    machine(available=1)
    member = Member("base", str(save_random_model(tmp_path / "m", vocab_size=544, seed=5, kind="mamba", state_size=4)))
    assert cache_bytes(member) is None
    assert rows_that_fit([member], 10, 512, 64) == 64


def test_longer_samples_are_fewer(demo_pair, machine):
    members = demo_pair.members
    machine(available=2**30)
    rows = [rows_that_fit(members, 10 + n, 512, 64) for n in (100, 5_000, 20_000, 10**7)]
    assert rows[0] == 64
    assert rows == sorted(rows, reverse=True)
    assert 1 < rows[2] < rows[1] < 64
    assert rows[3] == 1  # one sample is always tried
    per_row = 20_096 * sum(map(cache_bytes, members)) + 2 * 8 * 512 * 4
    assert rows[2] == int(0.8 * 2**30 / per_row)
    assert rows_that_fit(members[:1], 20_010, 512, 64) > rows[2]
