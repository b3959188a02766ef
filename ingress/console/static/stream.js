// The stream of moments, which connects again by itself and knows when it is silent.

const EVENTS = new URL("../events", import.meta.url);
const SILENT_MS = 5000;
const HIDDEN_MS = 60000;

export class Stream {
  // on: { past, moment, state }; a state is "live", "lost" or "connecting".
  constructor(on) {
    this.on = on;
    this.source = null;
    this.heardAt = 0;
    this.tries = 0;
    this.hidden = null;
    document.addEventListener("visibilitychange", () => this.seen());
    window.addEventListener("online", () => this.connect());
    setInterval(() => this.check(), 1000);
    this.connect();
  }

  connect() {
    clearTimeout(this.later);
    this.source?.close();
    const source = (this.source = new EventSource(EVENTS));
    this.openedAt = performance.now();
    for (const name of ["past", "moment"]) {
      source.addEventListener(name, (event) => {
        this.heardAt = performance.now();
        this.tries = 0;
        this.on[name](JSON.parse(event.data));
        this.on.state("live", 0);
      });
    }
    source.onerror = () => {
      if (source === this.source) this.retry();
    };
  }

  // The browser would try again too, but not after every kind of answer, and never tells of it.
  async retry() {
    this.source.close();
    this.report();
    this.tries += 1;
    clearTimeout(this.later);
    this.later = setTimeout(() => this.connect(), Math.min(5000, 250 * 2 ** Math.min(this.tries, 5)));
    if (this.tries === 1 && (await this.signedOut())) location.reload();
  }

  async signedOut() {
    const asking = new AbortController();
    try {
      const answer = await fetch(EVENTS, { signal: asking.signal, cache: "no-store" });
      return answer.status === 401;
    } catch {
      return false;
    } finally {
      asking.abort();
    }
  }

  check() {
    if (this.source === null) return;
    const silent = performance.now() - Math.max(this.heardAt, this.openedAt);
    if (silent > SILENT_MS && this.source.readyState !== EventSource.CLOSED) this.retry();
    else if (performance.now() - this.heardAt > SILENT_MS) this.report();
  }

  report() {
    if (this.heardAt) this.on.state("lost", (performance.now() - this.heardAt) / 1000);
    else this.on.state("connecting", 0);
  }

  // Nobody watches a page that has been out of sight for a while.
  seen() {
    clearTimeout(this.hidden);
    if (document.visibilityState === "hidden") {
      this.hidden = setTimeout(() => {
        clearTimeout(this.later);
        this.source?.close();
        this.source = null;
      }, HIDDEN_MS);
    } else if (this.source === null) {
      this.connect();
    }
  }
}
