"use strict";
// The report's page. Pure functions first, with tests under `node --test`; then what they are shown with. Texts of models are
// put into the page as text nodes only, with control and format characters as their codes; mathematics goes through Temml, untrusted.

const MAX_FORMULA = 4000; // characters of one formula; longer ones are shown as they are written

const REASONS = {
  correct: "equals the gold answer",
  incorrect: "differs from the gold answer",
  no_answer: "no answer was found in the text",
  unparsed: "the answer could not be read as mathematics",
  timed_out: "comparing the answer took too long",
};

/** A rollout as `pack` in building.py wrote it; columns as arrays with NaN for unknown. */
function parseRollout(text) {
  const packed = JSON.parse(text);
  const column = (values) => Float64Array.from(values, (value) => value ?? NaN);
  return {
    text: packed.text,
    taken: packed.taken,
    takenAt: new Set(packed.taken),
    same: new Set(packed.same),
    host: packed.host,
    score: column(packed.score),
    hostLogprob: column(packed.host_logprob),
    donorLogprob: column(packed.donor_logprob),
    rank: column(packed.rank),
  };
}

/** The first position at which two rollouts have different tokens; the length of the shorter one where there is none. */
function firstDifference(one, other) {
  const end = Math.min(one.length, other.length);
  let at = 0;
  while (at < end && one[at] === other[at]) at += 1;
  return at;
}

/** The mean of the scores in the gate's window before position `at`; NaN at 0. */
function windowMean(scores, at, window) {
  const start = Math.max(0, at - window);
  let sum = 0;
  for (let i = start; i < at; i += 1) sum += scores[i];
  return sum / (at - start);
}

/** The nearest takeover behind (`step` 1) or before (-1) a position; undefined where there is none. */
function nextTakeover(taken, at, step) {
  return step > 0 ? taken.find((place) => place > at) : taken.findLast((place) => place < at);
}

/** The title of the nearest part of a figure that has one, as of a point; "" where none has. */
function namePart(part) {
  for (; part; part = part.parentElement) {
    const title = Array.from(part.children).find((child) => child.localName === "title");
    if (title) return title.textContent;
  }
  return "";
}

/** `#task=…&doc=…&sample=…&run=…&token=…` as an object; null for anything else. */
function parseHash(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (name) => (/^\d{1,9}$/.test(words.get(name) ?? "") ? Number(words.get(name)) : null);
  const [task, run] = [words.get("task"), words.get("run")];
  const [doc, sample] = [whole("doc"), whole("sample")];
  return task === null || run === null || doc === null || sample === null ? null : { task, doc, sample, run, token: whole("token") };
}

function makeHash(place) {
  const words = new URLSearchParams({ task: place.task, doc: place.doc, sample: place.sample, run: place.run });
  if (place.token !== null && place.token !== undefined) words.set("token", place.token);
  return `#${words}`;
}

/** Control, format, private and lone surrogate characters as their codes: none of them may change how a text is read. */
function makeVisible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}]/gu, (character) =>
    character === "\n" || character === "\t" ? character : `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** A token in a line of its own, so that spaces and ends of lines are seen. */
function nameToken(text) {
  return text === "" ? "part of a character" : `"${makeVisible(text).replaceAll("\n", "\\n").replaceAll("\t", "\\t")}"`;
}

/** Text with TeX between $…$, $$…$$, \(…\), \[…\] as `{ text }` and `{ tex, display }`. A price is no formula, as in pandoc. */
function splitMath(text) {
  const parts = [];
  const rule = /\$\$([^]+?)\$\$|\\\[([^]+?)\\\]|\\\(([^]+?)\\\)|(?<!\\)\$(?!\s)([^$\n]*?[^\s\\$])\$(?!\d)/g;
  let end = 0;
  for (const match of text.matchAll(rule)) {
    const tex = match[1] ?? match[2] ?? match[3] ?? match[4];
    if (match.index > end) parts.push({ text: text.slice(end, match.index) });
    parts.push({ tex, display: match[1] !== undefined || match[2] !== undefined, source: match[0] });
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push({ text: text.slice(end) });
  return parts;
}

/** An answer, which stands without dollars: as a formula where it looks like TeX. */
function splitAnswer(text) {
  if (text.includes("$") || text.includes("\\(")) return splitMath(text);
  return /[\\^_]/.test(text) ? [{ tex: text, display: false, source: text }] : [{ text }];
}

/** How dark a token is, 0 to 4; 4 is above the threshold `scale`. */
function scoreLevel(score, scale) {
  if (!(score >= 0) || !(scale > 0)) return 0;
  const share = score / scale;
  return share > 1 ? 4 : share > 0.6 ? 3 : share > 0.3 ? 2 : share > 0.1 ? 1 : 0;
}

/** Right samples of a problem in a run: `{ right, all }`. */
function countRight(samples, correct) {
  return { right: samples.filter((sample) => sample[1] === correct).length, all: samples.length };
}

/** `rescued`: not by the base, but by the run; `harmed`: the reverse; by any sample. Null where one of them lacks the problem. */
function nameChange(base, run) {
  if (!base.all || !run.all) return null;
  if (!base.right && run.right) return "rescued";
  return base.right && !run.right ? "harmed" : "";
}

/** Whether a problem has this change; `missed`: by the guide, but not by the run. */
function hasChange(change, base, run, guide) {
  return change === "missed" ? nameChange(guide, run) === "harmed" : nameChange(base, run) === change;
}

/** Problems that pass the filters, those first that changed most; of equal ones in their order. Without a guide none is missed. */
function listProblems(problems, filters, correct, base, compared, guide = -1) {
  const words = filters.find.toLowerCase().split(/\s+/).filter(Boolean);
  const share = (count) => (count.all ? count.right / count.all : 0);
  const found = [];
  problems.forEach((problem, place) => {
    if (filters.task && problem.task !== filters.task) return;
    const text = `${problem.task} ${problem.doc} #${problem.doc} ${problem.problem ?? ""}`.toLowerCase();
    if (!words.every((word) => (/^#\d+$/.test(word) ? word === `#${problem.doc}` : text.includes(word)))) return;
    let change = 0;
    if (base !== null && compared !== null) {
      const [before, now] = [base, compared].map((run) => countRight(problem.runs[run], correct));
      if (filters.change && !hasChange(filters.change, before, now, countRight(problem.runs[guide] ?? [], correct))) return;
      change = before.all && now.all ? Math.abs(share(now) - share(before)) : -1;
    }
    found.push({ place, change });
  });
  return found.sort((one, other) => other.change - one.change || one.place - other.place).map((row) => row.place);
}

/** How many characters these texts begin with in common, in whole words: they tell none of them from the others. */
function sharedStart(texts) {
  if (texts.length < 2) return 0;
  const end = texts.reduce((at, text) => Math.min(at, firstDifference(text, texts[0])), texts[0].length);
  return texts[0].slice(0, end).search(/\S*$/);
}

function percent(logprob) {
  if (Number.isNaN(logprob)) return "not known";
  const share = 100 * Math.exp(logprob);
  return share >= 0.1 ? `${share.toFixed(share > 99.9 && share < 100 ? 2 : 1)} %` : "< 0.1 %";
}

function nats(value) {
  return Number.isNaN(value) ? "not known" : value.toFixed(value < 0.1 ? 3 : 2);
}

/** What is known of one token, as lines; `run` has tau, kappa, window, score, host, donor and policy. */
function describeToken(rollout, at, run) {
  const taken = rollout.takenAt.has(at);
  const lines = [];
  let who = "";
  if (taken) {
    const other = rollout.host[at];
    who = `: takeover, written by the ${run.donor}`;
    if (other !== undefined) who += `; the ${run.host} would have written ${nameToken(other)}`;
    else if (rollout.same.has(at)) who += `; the ${run.host} would have written it, too`;
  }
  lines.push([`token ${at} of ${rollout.text.length}`, nameToken(rollout.text[at]), who]);
  const rank = Number.isNaN(rollout.rank[at]) ? "not known" : rollout.rank[at];
  lines.push([
    `rank ${rank} under the ${run.host}; probability: ${run.host} ${percent(rollout.hostLogprob[at])}, ` +
      `${run.donor} ${percent(rollout.donorLogprob[at])}`,
  ]);
  const score = rollout.score[at];
  if (Number.isNaN(score)) return [...lines, ["score: not known"]];
  let words = `score (${run.score}) ${nats(score)} nats`;
  if (run.tau !== null && run.tau !== undefined) {
    words += ` ${score > run.tau ? ">" : "≤"} tau ${nats(run.tau)}`;
    if (at > 0 && run.kappa) {
      const limit = run.kappa * windowMean(rollout.score, at, run.window);
      words += `; ${score > limit ? ">" : "≤"} kappa × window mean ${nats(limit)}`;
    }
  }
  return [...lines, [words]];
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Parts of `splitMath` as nodes. */
function showMath(target, parts) {
  for (const part of parts) {
    if (part.text !== undefined) {
      target.append(element("bdi", {}, makeVisible(part.text)));
      continue;
    }
    const place = element("span");
    try {
      if (part.tex.length > MAX_FORMULA || makeVisible(part.tex) !== part.tex) throw new RangeError("not to be rendered");
      temml.render(part.tex, place, { displayMode: part.display, throwOnError: true, trust: false, strict: false, maxExpand: 100 });
      place.querySelectorAll("[id]").forEach((node) => node.removeAttribute("id"));
    } catch {
      place.replaceChildren(element("code", {}, makeVisible(part.source)));
    }
    target.append(place);
  }
}

async function openRollout(number) {
  const packed = document.querySelector(`script[data-rollout="${number}"]`).textContent;
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return parseRollout(await new Response(stream).text());
}

function start() {
  const find = (id) => document.querySelector(`main #${id}, dialog#${id}`);
  const index = JSON.parse(document.querySelector("script#index").textContent);
  const correct = index.outcomes.indexOf("correct");
  const filters = { find: "", task: "", change: "" };
  const guide = index.runs.findIndex((run) => run.policy === "guide");
  let compared = index.compared;
  let beside = index.base; // the run of the right pane
  let listed = [];
  let shown = null; // { place, run, sample, token, rollout, other, spans }
  let opening = 0;

  const starts = new Map();
  for (const { task } of index.problems) {
    const texts = index.problems.filter((one) => one.task === task && one.problem !== null).map((one) => one.problem);
    if (!starts.has(task)) starts.set(task, sharedStart(texts));
  }

  /** What tells a problem from others of its task. */
  function shortened({ task, problem }) {
    const start = starts.get(task);
    return `${start ? "… " : ""}${problem.slice(start, start + 160)}`;
  }

  const runName = (run) => makeVisible(index.runs[run].name);
  const title = (problem) => `${makeVisible(problem.task)} #${problem.doc}`;

  function fillChoices() {
    const tasks = [...new Set(index.problems.map((problem) => problem.task))];
    for (const task of tasks) find("task").append(element("option", { value: task }, makeVisible(task)));
    find("task").parentElement.hidden = tasks.length < 2;
    index.runs.forEach((run, place) => {
      if (place !== index.base) find("compared").append(element("option", { value: place }, runName(place)));
      find("beside").append(element("option", { value: place }, runName(place)));
    });
    if (beside !== null) find("beside").value = beside;
    find("beside").parentElement.hidden = index.runs.length < 2;
    if (compared !== null) find("compared").value = compared;
    const comparable = index.base !== null && compared !== null;
    for (const id of ["compared", "change"]) find(id).parentElement.hidden = !comparable;
  }

  /** The runs in the order of the grid: a narrow page shows the first two beside the problem. */
  function columns() {
    const first = [index.base, compared].filter((run) => run !== null);
    return [...new Set([...first, ...index.runs.keys()])];
  }

  function drawGrid() {
    listed = listProblems(index.problems, filters, correct, index.base, compared, guide);
    const head = element("tr", {}, element("th", { scope: "col" }, "Problem"));
    for (const run of columns()) head.append(element("th", { scope: "col" }, runName(run)));
    find("grid").tHead.replaceChildren(head);
    find("grid").tBodies[0].replaceChildren(...listed.map(drawRow));
    const all = index.problems.length;
    find("count").textContent = listed.length
      ? `${listed.length} of ${all} problems; cells: right samples of all, and the difference from the base.`
      : `No problem of ${all} is left; change the filters.`;
    markRow();
  }

  function drawRow(place) {
    const problem = index.problems[place];
    const words = problem.problem === null ? "(withheld)" : makeVisible(shortened(problem).replace(/\s+/g, " "));
    const row = element("tr", { "data-place": place });
    row.append(element("th", { scope: "row" }, element("b", {}, title(problem)), element("bdi", { class: "words" }, words)));
    const base = index.base === null ? null : countRight(problem.runs[index.base], correct);
    for (const run of columns()) row.append(element("td", {}, drawCell(problem, place, problem.runs[run], run, base)));
    return row;
  }

  function drawCell(problem, place, samples, run, base) {
    if (!samples.length) return "–";
    const { right, all } = countRight(samples, correct);
    const more = run === index.base || !base || !base.all || base.all !== all ? 0 : right - base.right;
    const sign = more ? ` ${more > 0 ? "+" : "−"}${Math.abs(more)}` : "";
    const inside = samples.some((sample) => sample.length > 6);
    const words = `${title(problem)}, ${runName(run)}: ${right} of ${all} right${more ? `, ${Math.abs(more)} ${more > 0 ? "more" : "fewer"} than the base` : ""}`;
    const label = inside ? words : `${words}; no rollout in this file`;
    const cell = element("button", { type: "button", class: `c${Math.round((4 * right) / all)}`, "aria-label": label });
    cell.append(`${right}/${all}${sign}${inside ? "" : " ◌"}`);
    cell.dataset.place = place;
    cell.dataset.run = run;
    return cell;
  }

  /** The sample to open first: one in this file, and one that base and run judge differently. */
  function chooseSample(place, run) {
    const { runs } = index.problems[place];
    const base = new Map((index.base === null ? [] : runs[index.base]).map((sample) => [sample[0], sample[1] === correct]));
    const inside = runs[run].filter((sample) => sample.length > 6);
    const changed = inside.find((sample) => base.has(sample[0]) && base.get(sample[0]) !== (sample[1] === correct));
    return (changed ?? inside[0] ?? runs[run][0])?.[0];
  }

  const findSample = (place, run, number) => index.problems[place].runs[run].find((sample) => sample[0] === number);

  async function open(place, run, number, token = null, focus = true) {
    const sample = findSample(place, run, number);
    if (!sample) return;
    opening += 1;
    const mine = opening;
    const base = beside === null || run === beside ? undefined : findSample(place, beside, number);
    const [rollout, other] = await Promise.all(
      [sample, base].map((one) => (one && one.length > 6 ? openRollout(one[6]) : null)),
    );
    if (mine !== opening) return; // another one was opened meanwhile
    shown = { place, run, sample: number, rollout, other, token: null, spans: [] };
    const problem = index.problems[place];
    find("rollout").hidden = false;
    find("rollout-title").textContent = `${title(problem)}: ${runName(run)}, sample ${number}`;
    find("problem").replaceChildren();
    if (problem.problem === null) find("problem").append("The task withholds its questions.");
    else showMath(find("problem"), splitMath(problem.problem));
    drawSamples(problem);
    drawAnswers(problem, sample, base);
    drawText();
    drawMap();
    markRow();
    const first = token ?? rollout?.taken[0] ?? 0;
    if (rollout) goTo(Math.min(first, rollout.text.length - 1), token !== null && focus);
    else remember();
    if (focus && token === null) {
      find("rollout-title").focus({ preventScroll: true });
      find("rollout").scrollIntoView({ block: "start" });
    }
  }

  function drawSamples(problem) {
    const strips = problem.runs.map((samples, run) => {
      const strip = element("div", { class: "strip" }, element("span", {}, runName(run)));
      for (const sample of samples) {
        const right = sample[1] === correct;
        const button = element("button", {
          type: "button",
          "aria-pressed": String(run === shown.run && sample[0] === shown.sample),
          "aria-label": `${runName(run)}, sample ${sample[0]}: ${right ? "right" : "wrong"}${sample.length > 6 ? "" : ", not in this file"}`,
        });
        button.append(`${sample[0]} `, element("span", { class: right ? "right" : "wrong" }, right ? "✓" : "✗"));
        button.disabled = sample.length < 7;
        button.addEventListener("click", () => open(shown.place, run, sample[0], null, false));
        strip.append(button);
      }
      return strip;
    });
    find("samples").replaceChildren(...strips);
  }

  function drawAnswers(problem, sample, base) {
    const gold = element("div", { class: "answer" }, element("h4", {}, "Gold answer"));
    if (problem.gold === null) gold.append("not known");
    else showMath(gold, splitAnswer(problem.gold));
    const boxes = [gold, drawAnswer(runName(shown.run), sample)];
    if (base) boxes.push(drawAnswer(runName(beside), base));
    find("answers").replaceChildren(element("div", { class: "answers" }, ...boxes));
  }

  function drawAnswer(name, [, outcome, answer, truncated, tokens, takeovers]) {
    const box = element("div", { class: "answer" }, element("h4", {}, name));
    if (answer === null) box.append("no answer");
    else showMath(box, splitAnswer(answer));
    const word = index.outcomes[outcome];
    const right = word === "correct";
    const reason = word === null ? "not verified" : `${word.replaceAll("_", " ")}: ${REASONS[word] ?? word}`;
    box.append(" ", element("span", { class: right ? "right" : "wrong" }, `${right ? "✓" : "✗"} ${reason}`));
    const share = tokens && takeovers ? `, ${takeovers} takeovers (${((100 * takeovers) / tokens).toFixed(1)} %)` : "";
    box.append(element("div", { class: "quiet" }, `${tokens} tokens${share}${truncated ? "; cut off by the token limit" : ""}`));
    return box;
  }

  function drawText() {
    const { rollout, other, run } = shown;
    const panes = element("div", { class: "panes" });
    if (!rollout) {
      panes.append(element("p", {}, "This answer is not in the file, which holds only some. Build the report with a larger --max_size."));
      find("text").replaceChildren(panes);
      return;
    }
    const from = other ? firstDifference(rollout.text, other.text) : 0;
    const apart = other && (from < rollout.text.length || from < other.text.length);
    const mine = drawTokens(rollout, 0, other ? from : rollout.text.length, run, true);
    const heading = !other ? runName(run) : apart ? `Both, up to token ${from}` : "Both wrote the same text";
    const same = element("div", { class: "same" }, element("h4", {}, heading), mine);
    if (!other || from > 0) panes.append(same);
    if (apart) {
      for (const [name, one, which] of [[runName(run), rollout, run], [runName(beside), other, beside]]) {
        const tokens = drawTokens(one, from, one.text.length, which, one === rollout);
        panes.append(element("div", {}, element("h4", {}, `${name}, from token ${from}`), tokens));
      }
    }
    if (!other && beside !== null && run !== beside) {
      panes.append(element("p", { class: "quiet" }, `The rollout of ${runName(beside)} is not in this file.`));
    }
    find("text").replaceChildren(panes);
  }

  /** The tokens of one rollout from a position on; those of the one that is read can be reached by keys. */
  function drawTokens(rollout, from, to, run, read) {
    const scale = index.runs[run].tau ?? index.runs[index.compared]?.tau ?? rollout.score.reduce((a, b) => Math.max(a, b || 0), 0);
    const box = element("div", { class: "tokens", role: "group", "aria-label": `Tokens of ${runName(run)}`, dir: "auto" });
    const holder = document.createDocumentFragment();
    for (let at = from; at < to; at += 1) {
      const taken = rollout.takenAt.has(at);
      const text = makeVisible(rollout.text[at]);
      const span = element("span", { "data-at": at });
      span.className = [`t${scoreLevel(rollout.score[at], scale)}`, ...(taken ? ["taken"] : [])].join(" ");
      span.append(taken ? text.replaceAll("\n", "↵\n") || "▯" : text);
      holder.append(span);
      if (taken && rollout.host[at] !== undefined) holder.append(element("del", {}, makeVisible(rollout.host[at]).replaceAll("\n", "↵") || "▯"));
      if (read) {
        span.tabIndex = -1;
        shown.spans[at] = span;
      }
    }
    box.append(holder);
    box.addEventListener("pointerover", (event) => {
      const at = event.target.dataset?.at;
      if (at !== undefined) drawFacts(rollout, Number(at), run);
    });
    box.addEventListener("pointerleave", () => shown.token !== null && drawFacts(shown.rollout, shown.token, shown.run));
    if (read) {
      box.addEventListener("click", (event) => event.target.dataset.at !== undefined && goTo(Number(event.target.dataset.at), true));
    }
    return box;
  }

  function drawFacts(rollout, at, run) {
    const facts = { ...index.runs[run], score: index.runs[run].score ?? index.score };
    const lines = describeToken(rollout, at, facts).map(([words, token, more]) => {
      const line = element("div", {}, words);
      if (token !== undefined) line.append(" ", element("b", {}, token), more);
      return line;
    });
    find("facts").replaceChildren(...lines);
  }

  /** Make a token the one that is looked at. */
  function goTo(at, focus) {
    const span = shown.spans[at];
    if (!span) return;
    const before = shown.spans[shown.token];
    if (before) {
      before.tabIndex = -1;
      before.classList.remove("at");
    }
    shown.token = at;
    span.tabIndex = 0;
    span.classList.add("at");
    if (focus) {
      span.focus({ preventScroll: true });
      span.scrollIntoView({ block: "center" });
    }
    drawFacts(shown.rollout, at, shown.run);
    drawMap();
    remember();
  }

  function remember() {
    const problem = index.problems[shown.place];
    const hash = makeHash({ task: problem.task, doc: problem.doc, sample: shown.sample, run: index.runs[shown.run].name, token: shown.token });
    find("link").href = hash;
    if (location.hash !== hash) history.replaceState(null, "", hash);
  }

  function drawMap() {
    const canvas = find("map");
    const { rollout, token } = shown;
    canvas.hidden = !rollout;
    if (!rollout) return;
    const colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue(name);
    const [width, height, n] = [canvas.width, canvas.height, rollout.text.length];
    const top = rollout.score.reduce((a, b) => Math.max(a, b || 0), 0);
    const context = canvas.getContext("2d");
    const bar = Math.max(1, width / n);
    context.clearRect(0, 0, width, height);
    const box = (at, y, tall, name, wide = bar) => {
      context.fillStyle = colour(name);
      context.fillRect((at / n) * width, y, Math.max(1, wide), tall);
    };
    if (top > 0) rollout.score.forEach((score, at) => score > 0 && box(at, (height - 8) * (1 - score / top), ((height - 8) * score) / top, "--t4"));
    for (const at of rollout.taken) box(at, height - 7, 7, "--taken", Math.max(2, bar));
    if (token !== null) box(token, 0, height, "--focus", 3);
    const highest = rollout.score.indexOf(top);
    const peak = top > 0 ? `, the highest ${nats(top)} nats at token ${highest}` : "";
    canvas.setAttribute("aria-label", `Scores along the rollout${peak}; ${rollout.taken.length} takeovers (marks below)`);
  }

  function markRow() {
    for (const row of find("grid").tBodies[0].rows) {
      if (shown && Number(row.dataset.place) === shown.place) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }

  function stepProblem(step) {
    if (!listed.length) return;
    const at = shown ? listed.indexOf(shown.place) : -1;
    const next = at < 0 ? (step > 0 ? 0 : listed.length - 1) : at + step;
    if (next < 0 || next >= listed.length) return;
    let run = shown?.run ?? compared ?? 0;
    const { runs } = index.problems[listed[next]];
    if (!runs[run].length) run = runs.findIndex((samples) => samples.length);
    open(listed[next], run, chooseSample(listed[next], run));
    find("grid").tBodies[0].rows[next].scrollIntoView({ block: "nearest" });
  }

  function act(key) {
    if (key === "?") find("help").showModal();
    else if (key === "/") find("find").focus();
    else if (key === "j" || key === "k") stepProblem(key === "j" ? 1 : -1);
    else if (!shown) return false;
    else if (key === "Escape") {
      const cell = find("grid").querySelector(`button[data-place="${shown.place}"][data-run="${shown.run}"]`);
      (cell ?? find("find")).focus();
    } else if (!shown.rollout) return false;
    else if (key === "n" || key === "p") {
      const focused = document.activeElement === shown.spans[shown.token];
      // From the place where the rollout was opened, the first takeover itself is the next one.
      const from = focused || shown.token === null ? (shown.token ?? -1) : key === "n" ? shown.token - 1 : shown.token;
      const at = nextTakeover(shown.rollout.taken, from, key === "n" ? 1 : -1);
      if (at === undefined) find("facts").append(element("div", {}, `No ${key === "n" ? "later" : "earlier"} takeover.`));
      else goTo(at, true);
    } else return moveToken(key);
    return true;
  }

  function moveToken(key) {
    if (document.activeElement?.dataset?.at === undefined) return false;
    const last = shown.rollout.text.length - 1;
    const to = { ArrowLeft: shown.token - 1, ArrowRight: shown.token + 1, Home: 0, End: last }[key];
    if (to === undefined) return false;
    goTo(Math.min(Math.max(to, 0), last), true);
    return true;
  }

  function follow() {
    const place = parseHash(location.hash);
    if (!place) return;
    const run = index.runs.findIndex((one) => one.name === place.run);
    const problem = index.problems.findIndex((one) => one.task === place.task && one.doc === place.doc);
    if (run < 0 || problem < 0 || !findSample(problem, run, place.sample)) {
      find("count").textContent = "The link names a rollout that is not in this report.";
    } else if (!shown || shown.place !== problem || shown.run !== run || shown.sample !== place.sample || shown.token !== place.token) {
      open(problem, run, place.sample, place.token);
    }
  }

  find("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["find", "task", "change"]) {
    find(id).addEventListener("input", () => {
      filters[id] = find(id).value;
      drawGrid();
    });
  }
  find("compared").addEventListener("input", () => {
    compared = Number(find("compared").value);
    drawGrid();
  });
  find("beside").addEventListener("input", () => {
    beside = Number(find("beside").value);
    if (shown) open(shown.place, shown.run, shown.sample, shown.token, false);
  });
  find("grid").addEventListener("click", (event) => {
    const cell = event.target.closest("button");
    if (cell) open(Number(cell.dataset.place), Number(cell.dataset.run), chooseSample(Number(cell.dataset.place), Number(cell.dataset.run)));
  });
  find("help-button").addEventListener("click", () => act("?"));
  for (const button of document.querySelectorAll("button[data-key]")) button.addEventListener("click", () => act(button.dataset.key));
  find("map").addEventListener("click", (event) => {
    const { left, width } = find("map").getBoundingClientRect();
    goTo(Math.floor(((event.clientX - left) / width) * shown.rollout.text.length), true);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
    if (event.target.closest("input, select, textarea") && event.key !== "Escape") return;
    if (act(event.key)) event.preventDefault();
  });
  for (const output of document.querySelectorAll("figure output")) {
    for (const kind of ["pointerover", "click"]) {
      output.parentElement.querySelector("svg").addEventListener(kind, (event) => {
        output.textContent = makeVisible(namePart(event.target));
      });
    }
  }
  window.addEventListener("hashchange", follow);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && drawMap());
  fillChoices();
  drawGrid();
  follow();
}

if (typeof module === "undefined") start();
else {
  module.exports = {
    parseRollout, firstDifference, windowMean, nextTakeover, namePart, parseHash, makeHash, makeVisible, nameToken, splitMath, splitAnswer,
    scoreLevel, sharedStart, countRight, nameChange, listProblems, percent, nats, describeToken,
  };
}
