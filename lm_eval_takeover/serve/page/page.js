"use strict";
// The server's page. Pure functions first, with tests under `node --test`; then what they are shown with. Texts of models are put
// into the page as text nodes only, with control and format characters as their codes.

/** The events of a stream that are whole, and what is left of its text. */
function splitEvents(text) {
  const parts = text.split("\n\n");
  const rest = parts.pop();
  const events = parts.filter((part) => part.startsWith("data: ")).map((part) => part.slice("data: ".length));
  return { events: events.filter((event) => event !== "[DONE]").map((event) => JSON.parse(event)), rest };
}

/** The body of a request; `asked` is what the form says. */
function makeBody(asked) {
  const xargs = { takeover_trace: 1 };
  if (asked.tau !== "") xargs.takeover_tau = Number(asked.tau);
  const what = asked.chat ? { messages: [{ role: "user", content: asked.prompt }] } : { prompt: asked.prompt };
  const limit = { [asked.chat ? "max_completion_tokens" : "max_tokens"]: Number(asked.maxTokens) };
  const draws = { temperature: Number(asked.temperature), top_p: Number(asked.topP) };
  return { ...what, ...limit, ...draws, stream: true, vllm_xargs: xargs };
}

/** A piece of the answer for one streamed chunk: exact where it holds one token, else its takeovers are somewhere in it. */
function readChunk(chunk) {
  const choice = chunk.choices[0];
  const told = chunk.takeover ?? { start: 0, tokens: 0, positions: [], host_tokens: [] };
  const text = choice.text ?? choice.delta?.content ?? "";
  const taken = told.positions.map((position, i) => ({ position, host: told.host_tokens[i] }));
  return { text, taken, tokens: told.tokens };
}

/** The pieces of a whole answer, a token each, from the last event's `takeover`; null where it has no texts. */
function readTrace(told) {
  const texts = told.trace?.text;
  if (!texts) return null;
  const hosts = new Map(told.positions.map((position, i) => [position, told.host_tokens[i]]));
  return texts.map((text, position) => ({
    text,
    taken: hosts.has(position) ? [{ position, host: hosts.get(position), score: told.trace.score[position] }] : [],
    tokens: 1,
  }));
}

/** Characters that would not be seen, or would change how others are read, as their codes. */
function makeVisible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}]/gu, (character) =>
    character === "\n" || character === "\t" ? character : `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`,
  );
}

function quote(text) {
  return `"${makeVisible(text).replaceAll("\n", "\\n").replaceAll("\t", "\\t")}"`;
}

/** What is known of a marked piece, in a sentence for each takeover. */
function describePiece(piece, host, donor) {
  return piece.taken.map(({ position, host: own, score }) => {
    const place = piece.tokens === 1 ? `token ${position} ${quote(piece.text)}` : `token ${position}, one of ${quote(piece.text)}`;
    const same = piece.tokens === 1 && own?.text === piece.text;
    const choice = own && `the ${host} would have written ${same ? "the same" : quote(own.text)}`;
    const instead = choice || `the ${host}'s own choice is not known`;
    const nats = typeof score === "number" ? `; score ${score.toFixed(2)}` : "";
    return `The ${donor} wrote ${place}; ${instead}${nats}.`;
  }).join(" ");
}

function describeCounts(tokens, takeovers) {
  const count = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;
  const rate = tokens ? ` (${((100 * takeovers) / tokens).toFixed(1)} %)` : "";
  return `${count(tokens, "token")}, ${count(takeovers, "takeover")}${rate}.`;
}

if (typeof module !== "undefined") {
  module.exports = { splitEvents, makeBody, readChunk, readTrace, makeVisible, describePiece, describeCounts };
}

if (typeof document !== "undefined") {
  const at = (id) => document.getElementById(id);
  const { host, donor } = document.body.dataset;
  let going = null;

  const showError = (message) => {
    at("error").hidden = !message;
    at("error").textContent = message;
  };

  const makeNode = (piece) => {
    const text = document.createTextNode(makeVisible(piece.text));
    if (!piece.taken.length) return text;
    const mark = document.createElement("mark");
    mark.append(text);
    mark.tabIndex = 0;
    mark.title = describePiece(piece, host, donor);
    mark.setAttribute("aria-description", mark.title);
    return mark;
  };

  const showFact = (event) => {
    const mark = event.target.closest?.("mark");
    if (mark && at("answer").contains(mark)) at("fact").textContent = mark.title;
  };
  at("answer").addEventListener("mouseover", showFact);
  at("answer").addEventListener("focusin", showFact);

  const show = (chunk, counts) => {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.object === "takeover") {
      const pieces = readTrace(chunk.takeover);
      if (pieces) at("answer").replaceChildren(...pieces.map(makeNode));
      [counts.tokens, counts.takeovers] = [chunk.takeover.tokens, chunk.takeover.takeovers];
    } else if (chunk.choices?.length) {
      const piece = readChunk(chunk);
      at("answer").append(makeNode(piece));
      counts.tokens += piece.tokens;
      counts.takeovers += piece.taken.length;
    }
    at("status").textContent = describeCounts(counts.tokens, counts.takeovers);
  };

  const read = async (body) => {
    const counts = { tokens: 0, takeovers: 0 };
    const decoder = new TextDecoder();
    const reader = body.getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      const found = splitEvents(rest + decoder.decode(value, { stream: !done }));
      rest = found.rest;
      for (const chunk of found.events) show(chunk, counts);
      if (done) return;
    }
  };

  const send = async () => {
    const field = (id) => at(id).value;
    const asked = { prompt: field("prompt"), maxTokens: field("max-tokens"), temperature: field("temperature"),
      topP: field("top-p"), tau: field("tau"), chat: at("chat").checked };
    const headers = { "Content-Type": "application/json" };
    if (field("key")) headers.Authorization = `Bearer ${field("key")}`;
    const path = asked.chat ? "v1/chat/completions" : "v1/completions";
    const options = { method: "POST", headers, body: JSON.stringify(makeBody(asked)), signal: going.signal };
    const answer = await fetch(path, options);
    if (answer.ok) {
      await read(answer.body);
      return;
    }
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error?.message ?? `status ${answer.status}`);
  };

  at("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (going) return;
    going = new AbortController();
    showError("");
    at("answer").replaceChildren();
    at("fact").textContent = "";
    at("status").textContent = "Waiting for the first token.";
    at("answer").setAttribute("aria-busy", "true");
    [at("send").disabled, at("stop").disabled] = [true, false];
    try {
      await send();
    } catch (error) {
      if (error.name !== "AbortError") showError(error.message);
      at("status").textContent += error.name === "AbortError" ? " Stopped." : " The answer is not whole.";
    } finally {
      going = null;
      at("answer").removeAttribute("aria-busy");
      [at("send").disabled, at("stop").disabled] = [false, true];
    }
  });
  at("stop").addEventListener("click", () => going?.abort());
  at("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
  });
}
