"use strict";
// Run by `node --test`; test_middleware.py does so.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const page = require("../../lm_eval_takeover/serve/page/page.js");

test("events are read when they are whole, wherever a stream is cut", () => {
  const text = 'data: {"a": 1}\n\n: keep-alive\n\ndata: {"a": "x\\n"}\n\ndata: [DONE]\n\n';
  for (let cut = 0; cut <= text.length; cut += 1) {
    const first = page.splitEvents(text.slice(0, cut));
    const second = page.splitEvents(first.rest + text.slice(cut));
    assert.deepEqual([...first.events, ...second.events], [{ a: 1 }, { a: "x\n" }]);
    assert.equal(second.rest, "");
  }
});

test("a request is traced, and has a tau where one is given", () => {
  const asked = { prompt: "p", maxTokens: "20", temperature: "0.5", topP: "0.9", tau: "", chat: false };
  const common = { temperature: 0.5, top_p: 0.9, stream: true };
  assert.deepEqual(page.makeBody(asked), { ...common, prompt: "p", max_tokens: 20, vllm_xargs: { takeover_trace: 1 } });
  assert.deepEqual(page.makeBody({ ...asked, tau: "0", chat: true }), {
    ...common, messages: [{ role: "user", content: "p" }], max_completion_tokens: 20,
    vllm_xargs: { takeover_trace: 1, takeover_tau: 0 },
  });
});

test("a chunk of several tokens says that its takeovers are in it, a trace where", () => {
  const own = { id: 7, text: " London" };
  const chunk = { choices: [{ text: "Paris is" }], takeover: { start: 0, tokens: 2, positions: [0], host_tokens: [own] } };
  const coarse = page.readChunk(chunk);
  assert.deepEqual(coarse, { text: "Paris is", taken: [{ position: 0, host: own }], tokens: 2 });
  assert.equal(page.describePiece(coarse, "base", "guide"),
    'The guide wrote token 0, one of "Paris is"; the base would have written " London".');
  const told = { positions: [0], host_tokens: [own], trace: { text: ["Paris", " is"], score: [1.5, null] } };
  const [exact, plain] = page.readTrace(told);
  assert.equal(page.describePiece(exact, "base", "guide"),
    'The guide wrote token 0 "Paris"; the base would have written " London"; score 1.50.');
  assert.match(page.describePiece({ ...exact, text: own.text }, "base", "guide"), /; the base would have written the same; /);
  assert.deepEqual(plain, { text: " is", taken: [], tokens: 1 });
  assert.equal(page.readTrace({ positions: [] }), null);
  assert.equal(page.readChunk({ choices: [{ delta: { content: "x" } }] }).text, "x");
});

test("no character of a text can change how it is read", () => {
  assert.equal(page.makeVisible("a\u202eb\ud800\u0000c\n\t😀"), "a\\u202eb\\ud800\\u0000c\n\t😀");
  const piece = { text: "\n\u202e", taken: [{ position: 3, host: null }], tokens: 1 };
  assert.equal(page.describePiece(piece, "base", "guide"),
    'The guide wrote token 3 "\\n\\u202e"; the base\'s own choice is not known.');
});

test("tokens and takeovers are counted in words", () => {
  assert.equal(page.describeCounts(0, 0), "0 tokens, 0 takeovers.");
  assert.equal(page.describeCounts(8, 1), "8 tokens, 1 takeover (12.5 %).");
});
