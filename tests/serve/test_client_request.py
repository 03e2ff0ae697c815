"""What serve and its clients may ask."""

import json
import re
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.pairs import METHODS, POLICIES, ROOT

from lm_eval_takeover import cli
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.serve.client_request import DEEPEST, MOST_ITEMS, MOST_SAMPLES, Repeats, parse_body, split_request
from lm_eval_takeover.serve.command import check_address, check_rest
from lm_eval_takeover.vllm.launch import list_words
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings, change_policy, check_params, describe_policy

ENGINE = EngineSettings(policy=describe_policy(POLICIES["disagreement"]), vocab=512, ends=[1])
LENGTH = 1000
PLAIN = {"model": "guided", "prompt": "2 + 2 ="}


def split(body, **engine):
    return split_request(body, replace(ENGINE, **engine), Repeats(), LENGTH)


@pytest.mark.parametrize("asked", [{"logprobs": 1}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": 0}])
def test_log_probabilities_of_drafts_are_refused(asked):
    assert split(PLAIN | asked)[0].body["logprobs"] == asked["logprobs"]
    with pytest.raises(ValueError, match=r"logprobs=.* verifies drafts of 4 tokens, .*; start one with block_size=1"):
        split(PLAIN | asked, block=4)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n": 20_000}, "n=20000; expected a whole number from 1 to 256"),
        ({"n": 2.5}, r"n=2\.5; expected"),
        ({"n": 2, "prompt": ["a"] * MOST_SAMPLES}, "is more than 256 samples; send several requests"),
        ({"temperature": "0.5"}, r'temperature="0\.5"; expected a number'),
        ({"prompt": [3, 512]}, "512 is no token; expected ids from 0 to 511"),
        ({"prompt": [3, True]}, "true is no token"),
        ({"prompt": [[]]}, "prompt: it has no tokens; expected ids from 0 to 511"),
        ({"prompt": {"a": 1}}, "expected a text, token ids, or a list of them"),
        ({"stop_token_ids": "x"}, "stop_token_ids is .*expected a list"),
        ({"vllm_xargs": {"takeover_run": "x" * 300}}, "expected a text of at most 200"),
        ({"vllm_xargs": {"Takeover_tau": 1}}, "unknown setting 'Takeover_tau'; did you mean 'takeover_tau'"),
        ({"vllm_xargs": {"takeover_tua": 1}}, "unknown setting 'takeover_tua'; did you mean 'takeover_tau'"),
        ({"vllm_xargs": {"takeover_tau": True}}, "takeover_tau=true; expected a number from -1e"),
        ({"vllm_xargs": {"takeover_window": "2.5"}}, "takeover_window=2.5; expected a whole number from 1 to 4096"),
        ({"vllm_xargs": {"takeover_rate": 10**400}}, "takeover_rate=.*; expected a number from 0 to 1"),
        ({"vllm_xargs": {"takeover_sealed": "{}"}}, "unknown setting 'takeover_sealed'"),
        ({"vllm_xargs": {"takeover_trace": 2}}, "takeover_trace=2; expected 0 or 1"),
        ({"vllm_xargs": {"takeover_trace": 1}, "echo": True}, "echo=true goes without takeover_trace"),
        ({"stream": "false"}, 'stream="false"; expected true or false'),
        ({"max_tokens": LENGTH + 1}, "max_tokens=1001; expected a whole number from 1 to 1000"),
        ({"prompt": [3] * LENGTH}, "prompt: 1000 tokens, and this server reads 1000"),
        ({"prompt": "x" * 2**16, "n": 250}, "n=250 and 1 prompts make requests of .* bytes; at most 8,388,608"),
        ({"response_format": {"type": "json_object"}}, "response_format=.*: guided texts"),
    ],
)
def test_what_is_out_of_bounds_is_one_line(body, message):
    with pytest.raises(ValueError, match=message) as error:
        split(PLAIN | body)
    assert len(str(error.value)) < 250


def test_numbers_may_be_texts_and_what_is_not_ours_passes():
    (one,) = split(PLAIN | {"vllm_xargs": {"takeover_tau": "2.5", "takeover_window": 7, "session_id": "another's"}})
    settings = json.loads(one.body["vllm_xargs"].pop("takeover_sealed"))
    gate = json.loads(settings["policy"])["gate"]
    assert (gate["tau"], gate["window"], one.body["vllm_xargs"]["session_id"]) == (2.5, 7, "another's")


def test_the_example_of_the_page_is_a_request():
    (body,) = re.findall(r"-d '(\{.*?\})'", (ROOT / "docs" / "serve.md").read_text(), re.DOTALL)
    (one,) = split(parse_body(body.encode()))
    assert one.traced and one.body["prompt"].endswith("steps?\nSolution:")


def test_what_every_client_sends_by_default_is_taken():
    sent = {"presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.0, "logit_bias": None}
    sent |= {"response_format": {"type": "text"}, "tool_choice": "auto", "use_beam_search": False, "max_tokens": LENGTH}
    assert split(PLAIN | sent)[0].body.keys() >= sent.keys()
    sealed = [json.loads(split(PLAIN | own)[0].body["vllm_xargs"]["takeover_sealed"]) for own in ({"min_p": 0.2}, {"min_p": 0})]
    assert [one.get("min_p", 0) for one in sealed] == [0.2, 0]


def test_only_so_many_prompts_are_remembered():
    repeats = Repeats(most=3)
    assert [repeats.next("", prompt) for prompt in "aabcd"] == [0, 1, 0, 0, 0] and len(repeats._counts) == 3
    assert (repeats.next("", "a"), repeats.next("", "d"), repeats.next("run", "d")) == (0, 1, 0)


@pytest.mark.parametrize("name", ["stop_token_ids", "messages", "tools", "logit_bias"])
def test_lists_are_bounded_and_prompts_by_the_context(name):
    items = {str(i): 0 for i in range(MOST_ITEMS + 1)} if name == "logit_bias" else [0] * (MOST_ITEMS + 1)
    for body in ({name: items}, {"other": [{name: items}]}):
        with pytest.raises(ValueError, match=f"{name} has 1025 items; expected at most 1024"):
            parse_body(json.dumps(PLAIN | body).encode())
    long = {"prompt": [3] * 2 * MOST_ITEMS}
    assert parse_body(json.dumps(long).encode()) == long


@pytest.mark.parametrize("field", ["stop", "request_id", "vllm_xargs", "kv_transfer_params", "prompt", "\ud800"])
@pytest.mark.parametrize("value", ["\ud800", ["a", "\udc00b"], {"a": {"\ud800": 1}}])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(field, value):
    told = f"{json.dumps(field)[1:-1].replace(chr(92), '.+')}.* has half of a surrogate pair"
    for data in (json.dumps(PLAIN | {field: value}), json.dumps(PLAIN | {field: value}, ensure_ascii=False)):
        with pytest.raises(ValueError, match=told):
            parse_body(data.encode(errors="surrogatepass"))
    assert parse_body(json.dumps(PLAIN | {field[:0] + "stop": "\U0001f600"}).encode())["stop"] == "\U0001f600"


def test_depth_is_bounded():
    nested = b'{"a": ' * DEEPEST + b"1" + b"}" * DEEPEST
    assert parse_body(nested)
    for data in (b'{"a": ' + nested + b"}", b'{"a": ' * 100_000):
        with pytest.raises(ValueError, match=r"nested deeper|no JSON object: Expecting"):
            parse_body(data)


def test_what_a_worker_cannot_trust_or_honour_is_refused_before_it_sees_it():
    forged = {"takeover_sealed": '{"forced": [1000000000]}'}
    for extra in ({}, {"takeover_tau": 2.5}, forged, forged | {"takeover_seal": "0" * 64}):
        with pytest.raises(ArgumentError, match="a request without this package's seal"):
            check_params(SimpleNamespace(extra_args=extra))
    asked = SimpleNamespace(extra_args=RequestSettings().to_extra_args(), min_tokens=3)
    with pytest.raises(ArgumentError, match="min_tokens: guided texts are drawn without it; leave it out"):
        check_params(asked)


def test_settings_change_the_policy_and_what_it_does_not_read_is_an_error():
    policy = POLICIES["disagreement"]
    changed = change_policy(policy, {"tau": 2.5})
    assert changed == replace(policy, gate=replace(policy.gate, tau=2.5))
    assert RequestSettings(policy=describe_policy(changed)).choose_policy(policy) == changed
    assert change_policy(POLICIES["random"], {"rate": 0.5}).rate == 0.5
    with pytest.raises(ArgumentError, match=r"takeover_rate=0\.5 is not read by policy=disagreement"):
        change_policy(policy, {"rate": 0.5, "tau": 3.0})
    with pytest.raises(ArgumentError, match=r"kappa=2.* needs scores above 0, not score=log_ratio"):
        change_policy(METHODS["log_ratio"], {"kappa": 2.0})


def test_a_policy_that_reads_the_text_is_refused_at_the_start_and_by_request():
    said = "policy=segment reads the text so far, which backend=vllm does not show a policy; use backend=hf"
    with pytest.raises(ArgumentError, match=said):
        describe_policy(METHODS["segment"])
    with pytest.raises(ArgumentError, match=said):
        RequestSettings(policy='{"name": "segment"}').choose_policy(POLICIES["disagreement"])


def test_an_address_is_tried_before_models_are_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"--port {port} cannot be used: Address already in use; give"):
            check_address("127.0.0.1", port)
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, port)
    with pytest.raises(ArgumentError, match="--port 99999 is not a port; expected 1 to 65535"):
        check_address("127.0.0.1", 99999)


def test_engine_arguments_become_words():
    given = {"model": "m", "enforce_eager": True, "enable_x": False, "left": None, "sizes": [1, 2], "hf": {"a": 1}}
    words = list_words(given)
    assert " ".join(words) == '--model m --enforce-eager --no-enable-x --sizes 1 2 --hf {"a": 1}'
    check_rest(["--gpu-memory-utilization", "0.8", "--api-key=--model"], words)
    with pytest.raises(ArgumentError, match="--enforce_eager after `--` is set by `serve` itself; give it before"):
        check_rest(["--enforce_eager=1"], words)


def test_an_option_of_vllm_in_the_wrong_place_is_told_the_right_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--data-parallel-size", "2"])
    assert "options of `vllm serve` go after `--`" in capsys.readouterr().err


def test_a_bos_that_the_server_would_not_add_is_refused():
    with pytest.raises(ArgumentError, match="guide_add_bos_token=True: the server encodes prompts by its tokenizer"):
        cli.main(["serve", "--port", "18181", "--model_args", "guide_add_bos_token=True"])
