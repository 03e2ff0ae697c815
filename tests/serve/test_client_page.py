"""The page at `/`, in a real browser against a scripted engine."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.browser import CHROMIUM, open_browser
from helpers.scripted_vllm import SCRIPTS, ScriptedVllm, serve, talk, tell

from lm_eval_takeover.demo import DEMO, calibration_prompts
from lm_eval_takeover.serve import server

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
MARKS = "[...document.querySelectorAll('#answer mark')].map((node) => node.textContent)"
SEND = """document.querySelector('#prompt').value = '{}'; document.querySelector('#send').click()"""
DONE = "!document.querySelector('#send').disabled"
TEXT = "document.querySelector('#answer').textContent"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which is not here")
def test_the_scripts_own_tests_pass():
    done = subprocess.run(["node", "--test", Path(__file__).parent / "page.test.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("keys", [None, ["secret"]])
def test_the_page_loads_nothing_and_asks_for_a_key_where_there_is_one(keys):
    for method in ("GET", "HEAD"):
        status, data, headers = asyncio.run(talk(ScriptedVllm(api_key=keys), None, method=method, path="/", whole=True))
        assert status == 200
    text, policy = data.decode(), headers[b"content-security-policy"].decode()
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert policy.endswith("form-action 'none'; connect-src 'self'; frame-ancestors 'none'")
    assert not re.search(r"""(?:src|href)=|https?:|\$\w""", re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL))
    assert ("<label hidden>Key" in text) == (keys is None)
    assert "secret" not in text and "policy=disagreement, tau=" in text


@pytest.mark.parametrize(("model", "prompt"), [(str(DEMO["guide"]), calibration_prompts()[0]), ("other", "Problem: What is")])
def test_the_page_has_a_prompt_of_its_models_to_try(model, prompt):
    _, data = asyncio.run(talk(ScriptedVllm(model=model), None, method="GET", path="/"))
    assert re.search(r"<textarea[^>]*>([^<]*)</textarea>", data.decode())[1].startswith(prompt)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian's package `chromium`), which is not here")
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.call("Emulation.setFocusEmulationEnabled", enabled=True)
        yield opened


@pytest.fixture
def open_page(browser, request):
    """The browser on the page of a scripted server, which has the keys that a test gives."""
    with serve(ScriptedVllm(chunks=(1, 3), pause=0.002, api_key=getattr(request, "param", None))) as url:
        browser.look(1280, 900, "light")
        browser.open(url)
        browser.messages.clear()
        yield browser
        browser.open("about:blank")


def test_an_answer_is_streamed_and_the_guides_tokens_are_marked(open_page):
    page = open_page
    page.evaluate(SEND.format("one"))
    page.wait_for(DONE)
    assert page.evaluate(TEXT) == tell(SCRIPTS["one"][0])
    assert page.evaluate(MARKS) == ["Paris", " the"]
    assert page.evaluate("document.querySelector('#status').textContent") == "8 tokens, 2 takeovers (25.0 %)."
    facts = []
    for act in ("focus()", "dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"):
        for number in (0, 1):
            page.evaluate(f"document.querySelectorAll('#answer mark')[{number}].{act}")
            facts.append(page.evaluate("document.querySelector('#fact').textContent"))
    assert facts[0] == 'The guide wrote token 0 "Paris"; the base would have written " London"; score 0.00.'
    assert facts[1] == 'The guide wrote token 2 " the"; the base would have written " a"; score 0.25.'
    assert facts[:2] == facts[2:]
    assert page.evaluate("document.querySelector('#answer mark').title") == facts[0]
    page.press("Tab")
    assert page.messages == []


def test_an_answer_is_marked_while_it_comes_and_can_be_stopped(open_page):
    page = open_page
    page.evaluate("document.querySelector('#max-tokens').value = 200")
    page.evaluate(SEND.format("long"))
    page.wait_for(f"{MARKS}.length")
    page.evaluate("document.querySelector('#stop').click()")
    page.wait_for(DONE)
    assert page.evaluate("document.querySelector('#status').textContent").endswith("%). Stopped.")
    assert 0 < len(page.evaluate(TEXT)) < len(tell(SCRIPTS["long"][0]))
    assert page.messages == []


def test_a_refusal_is_said(open_page):
    page = open_page
    page.evaluate(SEND.format("<img src=x onerror=alert(1)>"))
    page.wait_for("!document.querySelector('#error').hidden")
    said = page.evaluate("document.querySelector('#error').textContent")
    assert said == "no such prompt: <img src=x onerror=alert(1)>"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    page.evaluate(SEND.format("one"))
    page.wait_for(f"{DONE} && {MARKS}.length")
    assert page.evaluate("document.querySelector('#error').hidden")


@pytest.mark.parametrize("open_page", [["secret"]], indirect=True)
def test_the_key_goes_with_the_prompt(open_page, monkeypatch):
    page = open_page
    monkeypatch.setattr(server, "_has_key", lambda scope: (b"authorization", b"Bearer secret") in scope["headers"])
    page.evaluate(SEND.format("one"))
    page.wait_for("document.querySelector('#error').textContent == 'Unauthorized'")
    page.evaluate("document.querySelector('#key').value = 'secret'")
    page.evaluate(SEND.format("one"))
    page.wait_for(f"{DONE} && {MARKS}.length")
