"use strict";
// Run by `node --test`; test_building.py does so.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const report = require("../../../lm_eval_takeover/lab/report/page/report.js");

test("rollouts are aligned at the first token that differs", () => {
  assert.equal(report.firstDifference(["a", "b", "c"], ["a", "x", "c"]), 1);
  assert.equal(report.firstDifference(["a"], ["a", "b"]), 1);
  assert.equal(report.firstDifference(["a", "b"], ["a", "b"]), 2);
  assert.equal(report.firstDifference([], ["a"]), 0);
});

test("a link to a token leads to that token, whatever the names are", () => {
  const place = { task: "a&b=c#é", doc: 3, sample: 0, run: "guided 5 %", token: 41 };
  assert.deepEqual(report.parseHash(report.makeHash(place)), place);
  assert.equal(report.parseHash(report.makeHash({ ...place, token: null })).token, null);
  for (const hash of ["", "#show", "#task=t&doc=x&sample=0&run=r", "#task=t&doc=1&sample=0", "#task=t&doc=-1&sample=0&run=r"]) {
    assert.equal(report.parseHash(hash), null);
  }
});

test("next and previous takeover skip the one that is looked at", () => {
  const taken = [3, 8, 20];
  assert.equal(report.nextTakeover(taken, -1, 1), 3);
  assert.equal(report.nextTakeover(taken, 3, 1), 8);
  assert.equal(report.nextTakeover(taken, 20, 1), undefined);
  assert.equal(report.nextTakeover(taken, 8, -1), 3);
  assert.equal(report.nextTakeover(taken, 3, -1), undefined);
});

test("a point of a figure is named by the title of what it is a part of", () => {
  const title = (text) => ({ localName: "title", textContent: text });
  const [page, figure] = [{ children: [] }, { children: [] }];
  const point = { children: [title("ce@0.05: Acc 90.0%")], parentElement: figure };
  figure.parentElement = page;
  const shape = { children: [], parentElement: { children: [], parentElement: point } };
  assert.equal(report.namePart(shape), "ce@0.05: Acc 90.0%");
  assert.equal(report.namePart(figure), "");
});

test("the window's mean is over the positions before, at most window of them", () => {
  assert.equal(report.windowMean([1, 2, 3, 4], 3, 2), 2.5);
  assert.equal(report.windowMean([1, 2, 3, 4], 3, 10), 2);
  assert.ok(Number.isNaN(report.windowMean([1], 0, 10)));
});

test("no character of a text can change how it is read", () => {
  assert.equal(report.makeVisible("a\u202eb\ud800\u0000c\n\t😀"), "a\\u202eb\\ud800\\u0000c\n\t😀");
  assert.equal(report.nameToken(" \n"), '" \\n"');
});

test("mathematics is found between its signs, and prices are none", () => {
  const tex = (text) => report.splitMath(text).filter((part) => part.tex).map((part) => [part.tex, part.display]);
  assert.deepEqual(tex("If $x^2$ and \\(y\\) then $$z$$ or \\[w\n\\]."), [["x^2", false], ["y", false], ["z", true], ["w\n", true]]);
  assert.deepEqual(tex("She pays $5 and $6, or $7."), []);
  assert.equal(report.splitMath("a $x$ b").map((part) => part.text ?? part.source).join(""), "a $x$ b");
  assert.deepEqual(report.splitAnswer("\\frac12")[0].tex, "\\frac12");
  assert.deepEqual(report.splitAnswer("12 apples"), [{ text: "12 apples" }]);
});

const RIGHT = (right) => Array.from({ length: 8 }, (_, sample) => [sample, sample < right ? 0 : 1]);
const problem = (doc, before, now) => ({ task: "t", doc, problem: `words${doc}`, runs: [RIGHT(before), RIGHT(now)] });

test("problems stand by how much changed, and filters keep those that changed sides", () => {
  const problems = [problem(0, 4, 4), problem(1, 0, 1), problem(2, 8, 0), problem(3, 1, 5)];
  const list = (filters) => report.listProblems(problems, { find: "", task: "", change: "", ...filters }, 0, 0, 1);
  assert.deepEqual(list({}), [2, 3, 1, 0]);
  assert.deepEqual(list({ change: "rescued" }), [1]);
  assert.deepEqual(list({ change: "harmed" }), [2]);
  assert.deepEqual(list({ change: "missed" }), []); // no guide
  const other = report.listProblems(problems, { find: "", task: "", change: "missed" }, 0, 1, 0, 1);
  assert.deepEqual(other, [1]); // solved by the second run, taken for the guide, and not by the first
  assert.deepEqual(list({ find: "WORDS3" }), [3]);
  assert.deepEqual(list({ find: "#2" }), [2]);
  assert.deepEqual(list({ task: "other" }), []);
});

test("what all problems begin with is counted in whole words", () => {
  assert.equal(report.sharedStart(["When a cat adds 2", "When a cow adds 3", "When a car stops"]), "When a ".length);
  assert.deepEqual([["When"], [], ["one", "two"], ["same", "same"]].map(report.sharedStart), [0, 0, 0, 0]);
});

test("a token is described with its score against both thresholds", () => {
  const rollout = {
    text: ["a", "b", "c"], taken: [2], takenAt: new Set([2]), same: new Set(), host: { 2: "d\n" },
    score: [0.5, 1.5, 3], hostLogprob: [0, 0, Math.log(0.25)], donorLogprob: [NaN, 0, -9], rank: [1, 1, 7],
  };
  const run = { tau: 2, kappa: 2, window: 10, score: "ce", host: "base", donor: "guide" };
  const words = report.describeToken(rollout, 2, run).flat().join(" ");
  assert.match(words, /token 2 of 3 "c" : takeover, written by the guide; the base would have written "d\\n"/);
  assert.match(words, /rank 7 under the base; probability: base 25.0 %, guide < 0.1 %/);
  assert.match(words, /score \(ce\) 3.00 nats > tau 2.00; > kappa × window mean 2.00/);
  assert.match(report.describeToken(rollout, 0, run).flat().join(" "), /guide not known .*≤ tau/s);
  assert.deepEqual([0, 0.3, 0.9, 1.9, 2.1, NaN].map((score) => report.scoreLevel(score, 2)), [0, 1, 2, 3, 4, 0]);
});
