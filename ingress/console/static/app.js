// Where the page begins: views, and the stream that feeds them.

import { byId, mark, say } from "./dom.js";
import { ago } from "./format.js";
import { Playground } from "./playground.js";
import { Service } from "./service.js";
import { Stream } from "./stream.js";

const service = new Service();
const playground = new Playground();

function route() {
  const at = location.hash.slice(1) || "service";
  const shown = at === "playground" ? "playground" : "service";
  for (const view of ["service", "playground"]) {
    byId(view).hidden = view !== shown;
    mark(byId(`to-${view}`), "aria-current", view === shown ? "page" : null);
  }
  if (shown === "service" && at !== "service") byId(at)?.scrollIntoView();
}

function linkState(state, silent) {
  const lost = state === "lost";
  mark(byId("link"), "data-state", state);
  say(byId("link-text"), { live: "Live", lost: "Connection lost", connecting: "Connecting…" }[state]);
  mark(document.body, "data-lost", lost ? "" : null);
  const notice = byId("lost");
  notice.hidden = !lost;
  // Only the silence changes from second to second: it is not read aloud each time.
  if (lost && !notice.firstChild) notice.append("The connection is lost. What you see is old; it is tried again. ", document.createElement("span"));
  if (lost) {
    mark(notice.lastChild, "aria-hidden", "true");
    say(notice.lastChild, `Last heard ${ago(silent)}.`);
  } else notice.replaceChildren();
}

window.addEventListener("hashchange", route);
route();
new Stream({
  past: (past) => service.past(past),
  moment: (now) => {
    service.moment(now);
    playground.moment(now);
  },
  state: linkState,
});
