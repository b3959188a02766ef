// The playground: a form in any dialect, its answer as it comes, the events behind it, and the call.

import { DIALECTS, Mistake } from "./dialects.js";
import { byId, el, say } from "./dom.js";
import { count, duration, rate } from "./format.js";
import { curl, python } from "./snippets.js";
import { records } from "./sse.js";

const BASE = new URL("../..", import.meta.url).href.replace(/\/$/, "");
const MOST_RECORDS = 3000;

const TOOLS = [
  {
    name: "get_weather",
    description: "The weather at a place, now.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
      additionalProperties: false,
    },
  },
];

const SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, year: { type: "integer" } },
  required: ["name", "year"],
  additionalProperties: false,
};

export class Playground {
  constructor() {
    this.models = [];
    this.keyed = false;
    this.turns = [];
    this.running = null;
    const form = byId("ask");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    form.addEventListener("input", () => this.changed());
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.tagName !== "BUTTON") {
        event.preventDefault();
        this.send();
      }
    });
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("fresh").addEventListener("click", () => this.begin());
    byId("tools-example").addEventListener("click", () => this.insert("tools", TOOLS));
    byId("schema-example").addEventListener("click", () => this.insert("schema", SCHEMA));
    byId("copy").addEventListener("click", () => this.copy());
    for (const field of document.getElementsByName("snippet")) field.addEventListener("change", () => this.write());
    this.begin();
    this.changed();
  }

  get dialect() {
    return DIALECTS[this.dialectName];
  }

  get dialectName() {
    return byId("ask").elements.dialect.value;
  }

  // --- The form ---------------------------------------------------------------------------------

  moment(now) {
    this.keyed = now.keys_needed;
    byId("key-field").hidden = !this.keyed;
    const ids = now.models.map((model) => model.id).join("\n");
    this.models = now.models;
    if (ids !== this.shownIds) {
      this.shownIds = ids;
      const select = byId("model");
      const chosen = select.value;
      select.replaceChildren(...now.models.map((model) => el("option", { value: model.id }, model.id)));
      if (now.models.some((model) => model.id === chosen)) select.value = chosen;
      this.changed();
    }
  }

  changed() {
    const { fields, conversation } = this.dialect;
    const model = this.models.find((one) => one.id === byId("model").value);
    for (const field of document.querySelectorAll(".chatty")) field.hidden = !conversation;
    say(document.querySelector("label[for=prompt]"), conversation ? "Message" : "Prompt, as token ids");
    byId("seed-field").hidden = !fields.includes("seed");
    byId("tools-part").hidden = !fields.includes("tools");
    byId("schema-part").hidden = !fields.includes("schema");
    this.offerEfforts(fields.includes("effort") ? (model?.efforts ?? []) : []);
    this.write();
  }

  offerEfforts(efforts) {
    byId("effort-field").hidden = !efforts.length;
    const select = byId("effort");
    const offered = ["", ...efforts].join();
    if (select.dataset.offered === offered) return;
    const chosen = select.value;
    select.dataset.offered = offered;
    select.replaceChildren(...["", ...efforts].map((one) => el("option", { value: one }, one || "default")));
    if (efforts.includes(chosen)) select.value = chosen;
  }

  insert(id, value) {
    byId(id).value = JSON.stringify(value, null, 2);
    this.changed();
    byId(id).focus();
  }

  form(turns) {
    const { fields, conversation } = this.dialect;
    return {
      model: byId("model").value,
      system: conversation ? byId("system").value : "",
      turns,
      maxTokens: number("max-tokens"),
      temperature: number("temperature"),
      seed: fields.includes("seed") ? number("seed") : undefined,
      effort: byId("effort-field").hidden ? "" : byId("effort").value,
      tools: fields.includes("tools") ? json("tools", "Tools", Array.isArray) : undefined,
      schema: fields.includes("schema") ? json("schema", "The JSON schema", isObject) : undefined,
      stream: byId("stream").checked,
    };
  }

  // The turns as they would be sent now.
  nextTurns() {
    const results = this.results();
    if (results) return [...this.turns, { role: "tools", results }];
    const text = byId("prompt").value;
    return text ? [...this.turns, { role: "user", text }] : this.turns;
  }

  // Those of the call that is shown as a program: the next one, or else the last.
  shownTurns() {
    const next = this.nextTurns();
    return next === this.turns && this.sent ? this.sent : next;
  }

  results() {
    const fields = [...byId("rendering").querySelectorAll(".turn:last-child textarea")];
    return fields.length ? fields.map((field) => ({ id: field.dataset.call, text: field.value })) : null;
  }

  complain(text) {
    const said = byId("ask-error");
    said.hidden = !text;
    say(said, text);
  }

  // --- The call as a program --------------------------------------------------------------------

  write() {
    let text;
    try {
      const body = this.dialect.request(this.form(this.shownTurns()));
      const wanted = document.querySelector("input[name=snippet]:checked").value;
      text = wanted === "curl" ? curl(this.dialect, BASE, body, this.keyed) : python(this.dialectName, BASE, body, this.keyed);
    } catch (error) {
      if (!(error instanceof Mistake)) throw error;
      text = error.message;
    }
    say(byId("snippet"), text);
    say(byId("copied"), "");
  }

  async copy() {
    const text = byId("snippet").textContent;
    try {
      await navigator.clipboard.writeText(text);
      say(byId("copied"), "Copied.");
    } catch {
      // Without HTTPS a browser may refuse; what is selected can be copied by hand.
      getSelection().selectAllChildren(byId("snippet"));
      say(byId("copied"), "Selected: copy it with the keyboard.");
    }
  }

  // --- Asking -----------------------------------------------------------------------------------

  begin() {
    this.running?.abort();
    this.turns = [];
    this.sent = null;
    byId("rendering").replaceChildren(el("p", { class: "hint" }, "The answer appears here."));
    byId("raw").replaceChildren(el("div", { class: "hint" }, "What the service sends appears here, as it comes."));
    say(byId("raw-count"), "");
    byId("figures").replaceChildren();
    byId("fresh").hidden = true;
    this.write();
  }

  async send() {
    if (this.running) return;
    this.complain("");
    let body;
    let turns = this.nextTurns();
    try {
      if (!this.dialect.conversation) turns = turns.slice(-1);
      if (!turns.length || turns === this.turns) throw new Mistake("Write a message first.");
      body = this.dialect.request(this.form(turns));
    } catch (error) {
      if (!(error instanceof Mistake)) throw error;
      this.complain(error.message);
      return;
    }
    const before = this.turns;
    this.turns = this.sent = turns;
    const answer = new Answer(this.dialect, turns.at(-1), before.length === 0 || !this.dialect.conversation);
    this.running = new AbortController();
    this.busy(true);
    try {
      await answer.take(BASE, body, this.headers(), this.running.signal);
    } finally {
      this.running = null;
      this.busy(false);
    }
    if (answer.whole) {
      this.turns = [...turns, { role: "assistant", parts: answer.reader.parts }];
      if (turns.at(-1).role === "user") byId("prompt").value = "";
      answer.askForResults();
      byId("rendering").querySelectorAll(".turn:last-child textarea").forEach((field) => {
        field.addEventListener("input", () => this.write());
      });
    } else {
      this.turns = before;
    }
    byId("fresh").hidden = !this.dialect.conversation || !this.turns.length;
    this.write();
  }

  headers() {
    const key = byId("api-key").value.trim();
    return {
      "content-type": "application/json",
      ...this.dialect.headers,
      ...(this.keyed && key ? { authorization: `Bearer ${key}` } : {}),
    };
  }

  busy(busy) {
    byId("stop").hidden = !busy;
    byId("send").disabled = busy;
    byId("rendering").setAttribute("aria-busy", busy);
  }
}

function number(id) {
  const field = byId(id);
  return field.value === "" ? undefined : Number(field.value);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function json(id, what, fits) {
  const text = byId(id).value.trim();
  if (!text) return undefined;
  try {
    const value = JSON.parse(text);
    if (fits(value)) return value;
  } catch {
    // It is said below.
  }
  throw new Mistake(`${what}: this is not the JSON that is asked for.`);
}

// One answer on its way, with the events behind it.
class Answer {
  constructor(dialect, asked, first) {
    this.dialect = dialect;
    this.reader = dialect.reader();
    this.shown = [];
    this.records = 0;
    this.waiting = [];
    this.whole = false;
    const rendering = byId("rendering");
    if (first) rendering.replaceChildren();
    for (const field of rendering.querySelectorAll("textarea")) field.disabled = true;
    if (asked.role === "user") {
      const said = el("div", { class: "part" }, asked.text);
      rendering.append(el("div", { class: "turn" }, el("div", { class: "who" }, "You"), said));
    }
    this.turn = el("div", { class: "turn" }, el("div", { class: "who" }, "Model"));
    rendering.append(this.turn);
    byId("raw").replaceChildren();
  }

  async take(base, body, headers, signal) {
    this.began = performance.now();
    say(byId("answered"), "");
    try {
      const response = await fetch(base + this.dialect.path, {
        method: "POST", headers, body: JSON.stringify(body), signal, credentials: "omit",
      });
      this.requestId = response.headers.get("x-request-id");
      this.raw("", `HTTP ${response.status}, request ${this.requestId}`, response.ok ? "" : "bad");
      if (!response.ok || !response.headers.get("content-type")?.startsWith("text/event-stream")) {
        await this.takeWhole(response);
      } else {
        await this.takeStream(response);
      }
    } catch (error) {
      this.reader.error = signal.aborted ? "Stopped." : `The connection broke: ${error.message}`;
    }
    this.ended = performance.now();
    say(byId("answered"), this.reader.error ?? `The answer is complete: ${count(this.reader.usage?.output ?? 0)} tokens.`);
    this.whole = this.reader.error === null && this.reader.parts.length > 0;
    this.draw();
    if (this.reader.error !== null) this.turn.append(el("div", { class: "part error", role: "alert" }, this.reader.error));
    else if (!this.reader.parts.length) this.turn.append(el("div", { class: "part note" }, "The answer is empty."));
  }

  async takeWhole(response) {
    const text = await response.text();
    let data;
    try {
      data = JSON.parse(text);
    } catch {
      data = null;
    }
    this.raw("", data === null ? text : JSON.stringify(data, null, 2), response.ok ? "" : "bad");
    if (!response.ok) this.reader.error = data?.error?.message ?? `HTTP ${response.status}`;
    else if (data === null) this.reader.error = "The answer is no JSON.";
    else this.reader.body(data);
  }

  async takeStream(response) {
    let ended = false;
    for await (const record of records(response.body)) {
      if (record.comment !== undefined) {
        this.raw("", `: ${record.comment}`);
        continue;
      }
      if (record.data === "[DONE]") {
        ended = true;
        this.raw(record.event, record.data);
        continue;
      }
      const before = this.reader.parts.length;
      this.reader.event(record.event, JSON.parse(record.data));
      if (before === 0 && this.reader.parts.length) this.firstAt = performance.now();
      this.raw(record.event, record.data, this.reader.error === null ? "" : "bad");
    }
    if (!ended && this.reader.finish === null && this.reader.error === null) {
      this.reader.error = "The stream broke off.";
    }
  }

  raw(event, data, level = "") {
    this.records += 1;
    if (this.records <= MOST_RECORDS) this.waiting.push({ at: performance.now() - this.began, event, data, level });
    this.planned ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.planned);
    this.planned = undefined;
    const raw = byId("raw");
    const following = raw.scrollHeight - raw.scrollTop - raw.clientHeight < 40;
    raw.append(
      ...this.waiting.map(({ at, event, data, level }) =>
        el("div", { class: "record" },
          el("span", { class: "at" }, `${Math.round(at)} ms`),
          el("span", { class: level || null }, event ? el("span", { class: "event" }, event) : null, data)),
      ),
    );
    this.waiting = [];
    if (following) raw.scrollTop = raw.scrollHeight;
    const omitted = this.records > MOST_RECORDS ? `, the first ${count(MOST_RECORDS)} shown` : "";
    say(byId("raw-count"), `${count(this.records)}${omitted}`);
    this.drawParts();
    this.drawFigures();
  }

  drawParts() {
    const rendering = byId("rendering");
    const following = rendering.scrollHeight - rendering.scrollTop - rendering.clientHeight < 40;
    this.reader.parts.forEach((part, at) => {
      let shown = this.shown[at];
      if (!shown) {
        shown = part.kind === "tool" ? toolCall() : textPart(part.kind);
        this.shown.push(shown);
        this.turn.append(shown.block);
      }
      shown.show(part);
    });
    if (following) rendering.scrollTop = rendering.scrollHeight;
  }

  drawFigures() {
    const { usage, finish } = this.reader;
    const figures = [];
    const tell = (name, value) => figures.push(el("span", {}, `${name} `, el("b", {}, value)));
    if (this.firstAt) tell("first token", duration((this.firstAt - this.began) / 1000));
    if (this.ended) tell("all", duration((this.ended - this.began) / 1000));
    if (usage?.output && this.ended && this.firstAt && this.ended - this.firstAt > 20) {
      tell("tokens per second", rate((1000 * usage.output) / (this.ended - this.firstAt)));
    }
    if (usage) {
      tell("prompt", `${count(usage.input ?? 0)}${usage.cached ? `, ${count(usage.cached)} cached` : ""}`);
      tell("output", `${count(usage.output ?? 0)}${usage.reasoning ? `, ${count(usage.reasoning)} reasoning` : ""}`);
    }
    if (finish) tell("end", finish);
    if (this.requestId) tell("request", this.requestId);
    byId("figures").replaceChildren(...figures);
  }

  // Each call of a tool waits for what the tool would answer.
  askForResults() {
    this.reader.parts.forEach((part, at) => {
      if (part.kind !== "tool") return;
      const id = `result-${part.id}`;
      const field = el("textarea", { class: "code", rows: "2", id, "data-call": part.id, spellcheck: "false" });
      this.shown[at].block.append(el("label", { for: id }, "What it answers; Send goes on with that"), field);
    });
  }
}

function textPart(kind) {
  const block = el("div", { class: `part ${kind}` });
  const text = block.appendChild(document.createTextNode(""));
  return {
    block,
    show: (part) => {
      if (part.text.length > text.length) text.appendData(part.text.slice(text.length));
    },
  };
}

function toolCall() {
  const name = el("b");
  const given = el("div", { class: "code" });
  return {
    block: el("div", { class: "part tool" }, el("div", {}, "calls ", name), given),
    show: (part) => {
      say(name, part.name ?? "");
      say(given, pretty(part.text));
    },
  };
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
