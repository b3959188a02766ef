// The view of the service: every moment onto the page.

import { attention, headline } from "./attention.js";
import { byId, el, mark, say } from "./dom.js";
import { ago, clock, count, duration, plural, rate, tokens } from "./format.js";
import { Dots, Lines, secondsAxis } from "./plot.js";
import { badge, bar, Table, withSub } from "./table.js";

const KEPT_S = 600;
const CLASSES = { interactive: "live", batch: "batch", count: "count" };
const CAPABILITIES = {
  vision: "vision", tools: "tools", json_schema: "JSON schema", regex: "regex", grammar: "grammar",
  completions: "completions", logprobs: "logprobs",
};

export class Service {
  constructor() {
    this.samples = [];
    this.firsts = [];
    this.plots = plots();
    this.tables = tables();
    this.told = null;
  }

  past({ samples, first_tokens }) {
    this.samples = samples.map(asSample);
    this.firsts = first_tokens.map(asFirst);
  }

  moment(now) {
    const last = this.samples.at(-1)?.at ?? 0;
    if (now.sample[0] > last) {
      this.samples.push(asSample(now.sample));
      const known = new Set(this.firsts.map((one) => one.at));
      this.firsts.push(...now.first_tokens.map(asFirst).filter((one) => !known.has(one.at)));
    }
    this.samples = this.samples.filter((one) => one.at > now.at - KEPT_S);
    this.firsts = this.firsts.filter((one) => one.at > now.at - KEPT_S);
    this.showState(now);
    this.showPlots(now);
    this.showTables(now);
  }

  showState(now) {
    const found = attention(now);
    say(byId("headline"), headline(now, found));
    const list = byId("attention");
    found.forEach((one, at) => {
      let item = list.children[at];
      if (!item) {
        item = el("li", {}, el("b"), el("span"), el("a"));
        list.append(item);
      }
      const [what, detail, link] = item.children;
      mark(item, "data-level", one.level);
      say(what, one.what);
      say(detail, one.detail);
      mark(link, "href", `#${one.where}`);
      say(link, `Show ${one.where}`);
    });
    while (list.children.length > found.length) list.lastChild.remove();
    this.announce(found);
    document.title = found.some((one) => one.level === "bad") ? "(!) Headrace console" : "Headrace console";
  }

  // Aloud only when something new is there, or gone: ages and counts change all the time.
  announce(found) {
    const kinds = found.map((one) => `${one.level} ${one.where}`).join();
    if (this.told !== null && kinds !== this.told) {
      say(byId("said"), found.length ? found.map((one) => one.what).join(" ") : "All is well again.");
    }
    this.told = kinds;
  }

  showPlots(now) {
    const since = Math.min(this.samples[0]?.at ?? now.at, now.at);
    const { live, batch, prompt, waiting, waitingBatch, inFlight } = this.samples.at(-1);
    const most = Math.max(0, ...this.samples.map((one) => one.live + one.batch));
    this.plots.tokens.show(now.at, since, this.samples, {
      big: rate(live + batch),
      keys: [["key", `live ${rate(live)}`], ["key batch", `batch ${rate(batch)}`], ["", `prompts ${rate(prompt)}`]],
      summary: `${rate(live + batch)} now, at most ${rate(most)} in the time shown`,
    });
    const oldest = Math.max(0, ...now.queues.filter((one) => one.job_class !== "batch").map((one) => one.oldest_s));
    this.plots.waiting.show(now.at, since, this.samples, {
      big: count(waiting),
      keys: [
        ["", oldest ? `oldest for ${duration(oldest)}` : "nothing waits"],
        ["", `in flight ${count(inFlight)}`], ["", waitingBatch ? `lines of batches ${count(waitingBatch)}` : ""],
      ],
      summary: `${count(waiting)} now, at most ${count(Math.max(...this.samples.map((one) => one.waiting)))} in the time shown`,
    });
    const minute = this.firsts.filter((one) => one.at > now.at - 60).map((one) => one.value).sort((a, b) => a - b);
    const [middle, slow] = [quantile(minute, 0.5), quantile(minute, 0.95)];
    this.plots.ttft.middle = middle;
    this.plots.ttft.show(now.at, since, this.firsts, {
      big: middle == null ? "–" : duration(middle),
      keys: [
        ["", middle == null ? "none in the last minute" : "median of a minute"],
        ["", slow == null ? "" : `95 % within ${duration(slow)}`],
      ],
      summary: middle == null ? "none in the last minute" : `median ${duration(middle)}, 95 percent within ${duration(slow)}`,
    });
  }

  showTables(now) {
    const several = now.pods.length > 1;
    say(byId("where"), several ? `${plural(now.pods.length, "process", "processes")} · ${now.release}` : `${now.pod} · ${now.release}`);
    const { tables } = this;
    const serving = now.models.filter((model) => model.state === "serving").length;
    tables.models.update(now.models, { note: now.models.length ? `${serving} of ${now.models.length} served` : "" });
    const gone = now.gone.map((one) => ({ ...one, id: one.worker, state: one.how, heard_s: now.at - one.at }));
    tables.workers.update([...now.workers, ...gone], { note: workersNote(now.workers) });
    tables.queues.update(queueRows(now));
    tables.accounts.update(now.accounts, {
      empty: now.keys_needed ? "No account is near one of its limits." : "There are no accounts: requests need no key.",
    });
    const more = now.requests_omitted ? `, and ${count(now.requests_omitted)} more` : "";
    tables.requests.without("Pod", !several);
    tables.requests.update(now.requests, { note: now.requests.length ? `${count(now.requests.length)}${more}` : "" });
    tables.errors.update(now.errors.map((one) => ({ ...one, now: now.at })), { note: "of the last ten minutes" });
    const away = now.batches_away ? "The store cannot be reached." : "No batch is under way.";
    tables.batches.update((now.batches ?? []).map((one) => ({ ...one, now: now.at })), {
      empty: now.batches === null ? "This service keeps no batches: it has no database." : away,
    });
    tables.pods.update(now.pods.map((one) => ({ ...one, here: one.pod === now.pod })), { note: "" });
    byId("pods").hidden = !several;
  }
}

const asSample = ([at, live, batch, prompt, waiting, waitingBatch, inFlight]) =>
  ({ at, live, batch, prompt, waiting, waitingBatch, inFlight });
const asFirst = ([at, value, model]) => ({ at, value, model });

function quantile(sorted, part) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : null;
}

function plots() {
  return {
    tokens: new Lines(byId("plot-tokens"), {
      name: "Output tokens per second", axis: tokens, least: 10,
      series: [["", (one) => one.live], ["batch", (one) => one.batch]],
      read: (one) => `live ${rate(one.live)}, batch ${rate(one.batch)}`,
    }),
    waiting: new Lines(byId("plot-waiting"), {
      name: "Live requests that wait for a worker", axis: tokens, least: 3,
      series: [["", (one) => one.waiting]],
      read: (one) => `${count(one.waiting)} waiting, ${count(one.inFlight)} in flight`,
    }),
    ttft: new Dots(byId("plot-ttft"), {
      name: "Time to first token", axis: secondsAxis,
      read: (one) => `${duration(one.value)}, ${one.model}`,
    }),
  };
}

function workersNote(workers) {
  if (!workers.length) return "";
  const taking = workers.filter((one) => one.state !== "draining");
  const slots = taking.reduce((sum, one) => sum + one.slots, 0);
  const busy = workers.reduce((sum, one) => sum + one.live + one.batch, 0);
  return `${count(busy)} of ${plural(slots, "slot")} busy`;
}

function queueRows(now) {
  return now.models.flatMap((model) =>
    ["interactive", "batch"].map((job_class) => {
      const found = now.queues.find((one) => one.model === model.id && one.job_class === job_class);
      return { count: 0, oldest_s: 0, rate: null, ...found, model: model.id, job_class };
    }),
  );
}

const PHASES = {
  preparing: ["", "fetches images"], queued: ["warn", "queued"], prefill: ["live", "prefill"], decode: ["good", "decode"],
};
const WORKER = { well: "good", silent: "warn", draining: "warn", lost: "bad", left: "" };
const MODEL = { serving: "good", draining: "warn", "no worker": "bad" };
const BATCH = { in_progress: "live", finalizing: "live", completed: "good", failed: "bad", expired: "bad" };

function tables() {
  const table = (id, options) => new Table(byId(id), options);
  return {
    models: table("models", {
      title: "Models", key: (one) => one.id, empty: "No model is known yet. One appears when its worker is ready.",
      columns: [
        { head: "Model", className: "id", ...withSub((one) => one.id, (one) => (one.aliases ?? []).join(", ")) },
        { head: "State", ...badge((one) => MODEL[one.state], (one) => one.state) },
        { head: "Slots", num: true, text: (one) => (one.workers ? count(one.slots) : "") },
        { head: "Window", num: true, text: (one) => (one.told ? tokens(one.context_length) : "") },
        { head: "Most output", num: true, text: (one) => (one.max_output_tokens ? tokens(one.max_output_tokens) : "–") },
        { head: "Can", className: "wrap", text: (one) => abilities(one) },
      ],
    }),
    workers: table("workers", {
      title: "Workers", key: (one) => one.id, empty: "No worker has been heard of.",
      level: (one) => one.state === "left",
      columns: [
        { head: "Worker", className: "id", ...withSub((one) => one.id, (one) => one.model) },
        { head: "State", ...badge((one) => WORKER[one.state], (one) => one.state) },
        { head: "Engine", text: (one) => one.engine ?? "" },
        { head: "Busy slots", className: "slots", ...bar(
          (one) => (one.slots ? slotsText(one) : ""),
          (one) => (one.slots ? [["", one.live / one.slots], ["batch", one.batch / one.slots]] : []),
        ) },
        { head: "Heard", num: true, text: (one) => ago(one.heard_s) },
      ],
    }),
    queues: table("queues", {
      title: "Queues", key: (one) => `${one.model} ${one.job_class}`, empty: "No model is known yet.",
      level: (one) => one.count === 0,
      columns: [
        { head: "Model", className: "id", text: (one) => one.model },
        { head: "Class", text: (one) => CLASSES[one.job_class] },
        { head: "Waiting", num: true, text: (one) => count(one.count) },
        { head: "Oldest", num: true, text: (one) => (one.count ? duration(one.oldest_s) : "") },
        { head: "Taken per second", num: true, text: (one) => (one.count && one.rate ? rate(one.rate) : "") },
        { head: "Expected wait", num: true, text: (one) => (one.count && one.rate ? duration(one.count / one.rate) : "") },
      ],
    }),
    accounts: table("accounts", {
      title: "Accounts near a limit", key: (one) => one.account, empty: "",
      columns: [
        { head: "Account", className: "id", ...withSub((one) => one.name || one.account, (one) => (one.name ? one.account : "")) },
        { head: "Of its limits", className: "slots", ...uses() },
        { head: "Refused", num: true, text: (one) => (one.refused ? count(one.refused) : "") },
      ],
    }),
    requests: table("requests", {
      title: "Requests under way", key: (one) => one.id + one.pod, empty: "Nothing is under way.", search: "Filter by id, model, account …",
      columns: [
        { head: "Request", className: "id", text: (one) => one.id },
        { head: "Phase", ...badge((one) => PHASES[one.phase]?.[0], phaseText) },
        { head: "Age", num: true, text: (one) => duration(one.age_s) },
        { head: "First token", num: true, text: (one) => duration(one.ttft_s) },
        { head: "Prompt", num: true, text: (one) => (one.input_tokens ? tokens(one.input_tokens) : "") },
        { head: "Output", num: true, text: (one) => (one.output_tokens ? tokens(one.output_tokens) : "") },
        { head: "Dialect", text: (one) => one.dialect + (one.stream ? ", stream" : one.job_class === "batch" ? ", batch" : "") },
        { head: "Model", className: "id", text: (one) => one.model },
        { head: "Account", className: "id", text: (one) => one.account ?? "" },
        { head: "Worker", className: "id", text: (one) => (one.worker ? one.worker + (one.attempt > 1 ? `, attempt ${one.attempt}` : "") : "") },
        { head: "Pod", className: "id", text: (one) => one.pod },
      ],
    }),
    errors: table("errors", {
      title: "Errors", key: (one) => `${one.code} ${one.status}`, empty: "None in the last ten minutes.",
      level: (one) => one.status === 499,
      columns: [
        { head: "Code", ...withSub((one) => one.code, (one) => `HTTP ${one.status}`) },
        { head: "Times", num: true, text: (one) => count(one.count) },
        { head: "Last", num: true, text: (one) => ago(one.now - one.last[0].at) },
        { head: "Latest requests", ...examples() },
      ],
    }),
    batches: table("batches", {
      title: "Batches", key: (one) => one.id, empty: "", level: (one) => one.ended,
      columns: [
        { head: "Batch", className: "id", ...withSub((one) => one.id, (one) => [one.account, one.model].filter(Boolean).join(" · ")) },
        { head: "State", ...badge((one) => BATCH[one.status] ?? "", (one) => one.status.replace("_", " ")) },
        { head: "Lines done", className: "slots", ...bar(batchText, batchShares) },
        { head: "Left", num: true, text: batchLeft },
      ],
    }),
    pods: table("pods", {
      title: "Processes", key: (one) => one.pod, empty: "",
      columns: [
        { head: "Process", className: "id", ...withSub((one) => one.pod, (one) => (one.here ? "shows this page" : "")) },
        { head: "Is", text: (one) => one.process },
        { head: "State", ...badge(podLevel, podText) },
        { head: "In flight", num: true, text: (one) => count(one.in_flight) },
        { head: "Waiting", num: true, text: (one) => count(one.waiting) },
        { head: "Up", num: true, text: (one) => duration(Math.round(one.up_s)) },
        { head: "Release", text: (one) => one.release },
      ],
    }),
  };
}

function abilities(model) {
  if (!model.told) return "";
  const can = model.capabilities.map((one) => CAPABILITIES[one]);
  const efforts = model.efforts.filter((one) => one !== "none");
  if (efforts.length) can.push(`reasoning (${efforts.join(", ")})`);
  if (model.zdr) can.push("zero retention");
  return can.join(", ");
}

function slotsText(worker) {
  const busy = worker.batch ? `${count(worker.live)} live + ${count(worker.batch)} batch` : count(worker.live);
  return `${busy} of ${count(worker.slots)}`;
}

function phaseText(one) {
  const text = PHASES[one.phase]?.[1] ?? one.phase;
  return one.waits_s == null ? text : `${text} ${duration(one.waits_s)}`;
}

function uses() {
  return {
    make: (td) => ({ list: td.appendChild(el("div")) }),
    show: ({ list }, row) => {
      row.uses.forEach((use, at) => {
        let line = list.children[at];
        if (!line) {
          line = el("div", {}, el("span"), el("div", { class: "bar", "aria-hidden": "true" }, el("span")));
          list.append(line);
        }
        const part = use.limit ? use.used / use.limit : 1;
        say(line.children[0], useText(use));
        const share = line.children[1].firstChild;
        mark(share, "class", part >= 1 ? "bad" : part >= 0.8 ? "warn" : "");
        share.style.width = `${Math.min(100, part * 100)}%`;
      });
      while (list.children.length > row.uses.length) list.lastChild.remove();
    },
  };
}

function useText(use) {
  if (use.kind === "budget") {
    const money = (cents) => (cents / 100).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
    return `budget ${money(use.used)} of ${money(use.limit)}, ${use.unit.replace("cents ", "")}`;
  }
  return `${use.kind} ${count(use.used)} of ${count(use.limit)} ${use.unit}`.trim();
}

function examples() {
  return {
    make: (td) => ({ list: td.appendChild(el("div", { class: "ids" })) }),
    show: ({ list }, row) => {
      const few = row.last.slice(0, 3);
      few.forEach((seen, at) => {
        const item = list.children[at] ?? list.appendChild(el("span", { class: "id" }));
        say(item, seen.request_id);
        mark(item, "title", [clock(seen.at), seen.dialect, seen.model, seen.account].filter(Boolean).join(" · "));
      });
      while (list.children.length > few.length) list.lastChild.remove();
    },
  };
}

const done = ({ counts }) => counts.succeeded + counts.errored + counts.cancelled + counts.expired;

function batchText(one) {
  if (!one.counts.total) return "is read";
  const failed = one.counts.errored ? `, ${count(one.counts.errored)} failed` : "";
  return `${count(done(one))} of ${count(one.counts.total)}${failed}`;
}

function batchShares({ counts }) {
  const total = Math.max(1, counts.total);
  return [["", counts.succeeded / total], ["bad", counts.errored / total], ["warn", (counts.cancelled + counts.expired) / total]];
}

function batchLeft(one) {
  const finished = done(one);
  if (one.ended || one.status !== "in_progress" || !finished || !one.began_at) return "";
  return `about ${duration(Math.round(((one.now - one.began_at) * (one.counts.total - finished)) / finished))}`.replace(".0 s", " s");
}

const podText = (one) =>
  !one.connected ? "no broker" : one.blocked ? "broker blocked" : one.shutting_down ? "shutting down" : "well";
const podLevel = (one) => (podText(one) === "well" ? "good" : one.shutting_down && one.connected ? "warn" : "bad");
