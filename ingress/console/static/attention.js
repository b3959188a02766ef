// What somebody should look at, the worst first, and where.

import { ago, count, duration, plural } from "./format.js";

const WAITS_LONG_S = 5;
const WAITS_TOO_LONG_S = 30;

export function attention(now) {
  const found = [];
  const tell = (level, what, detail, where) => found.push({ level, what, detail, where });
  for (const pod of now.pods) {
    const name = now.pods.length > 1 ? `${pod.pod}: ` : "";
    if (!pod.connected) tell("bad", `${name}The broker cannot be reached.`, "Requests are refused until it is back.", "pods");
    else if (pod.blocked) tell("bad", `${name}The broker takes nothing.`, "It is short of memory or disk.", "pods");
    if (pod.shutting_down) tell("warn", `${pod.pod} is shutting down.`, "", "pods");
  }
  for (const model of now.models) {
    if (model.state === "no worker") tell("bad", `No worker serves ${model.id}.`, "Requests for it are refused.", "models");
    else if (model.state === "draining") tell("bad", `All workers of ${model.id} are leaving.`, "", "models");
  }
  for (const gone of now.gone) {
    if (gone.how === "lost") tell("bad", `Worker ${gone.worker} was lost.`, `Last heard of ${ago(now.at - gone.at)}.`, "workers");
  }
  for (const worker of now.workers) {
    if (worker.state === "silent") tell("warn", `Worker ${worker.id} is silent.`, `Last heard of ${ago(worker.heard_s)}.`, "workers");
  }
  for (const queue of now.queues) {
    if (queue.job_class !== "batch" && queue.oldest_s >= WAITS_LONG_S) {
      const level = queue.oldest_s >= WAITS_TOO_LONG_S ? "bad" : "warn";
      const waits = queue.count === 1 ? "request waits" : "requests wait";
      tell(level, `${count(queue.count)} ${waits} for ${queue.model}.`, `The oldest for ${duration(queue.oldest_s)}.`, "queues");
    }
  }
  for (const account of now.accounts) {
    const full = account.uses.filter((use) => use.used >= use.limit).map((use) => use.kind);
    const name = account.name || account.account;
    const refused = account.refused ? `${plural(account.refused, "request")} refused lately.` : "";
    if (full.length) tell("warn", `Account ${name} has used up its ${full.join(" and ")}.`, refused, "accounts");
    else if (account.refused) tell("warn", `Account ${name} was at a limit.`, refused, "accounts");
  }
  for (const errors of now.errors) {
    if (errors.status >= 500) {
      tell("warn", `${plural(errors.count, "answer")} ${errors.code} (${errors.status}) in ten minutes.`, `The last ${ago(now.at - errors.last[0].at)}.`, "errors");
    }
  }
  if (now.batches_away) tell("bad", "The store of batches cannot be reached.", "", "batches");
  const releases = new Set(now.pods.map((pod) => pod.release));
  if (releases.size > 1) tell("warn", `Pods of ${releases.size} releases run side by side.`, [...releases].join(", "), "pods");
  return found.sort((a, b) => (a.level === "bad" ? 0 : 1) - (b.level === "bad" ? 0 : 1));
}

export function headline(now, found) {
  const bad = found.filter((one) => one.level === "bad").length;
  if (bad) return plural(bad, "thing needs", "things need") + " attention";
  if (found.length) return plural(found.length, "thing is", "things are") + " worth a look";
  const serving = now.models.filter((model) => model.state === "serving").length;
  const busy = now.pods.reduce((sum, pod) => sum + pod.in_flight, 0);
  const served = plural(serving, "model");
  return busy ? `All well: ${served} served, ${plural(busy, "request")} under way` : `All well: ${served} served, nothing to do`;
}
