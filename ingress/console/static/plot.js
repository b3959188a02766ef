// Plots over time, drawn by hand: lines with areas, or a dot for each of many.

import { el, say, svg } from "./dom.js";
import { clock, duration } from "./format.js";

const LEFT = 44;
const BOTTOM = 18;
const TOP = 6;
const GAP_S = 4;
const SPANS_S = [120, 300, 600];

export class Plot {
  // caption(figure): fills the caption, and is called with each moment; axis(v): a label.
  constructor(figure, { name, axis, read }) {
    this.axis = axis;
    this.read = read;
    this.name = el("span", { class: "name" }, name);
    this.big = el("span", { class: "big" });
    this.keys = el("span", { class: "keys" });
    this.caption = el("figcaption", {}, this.name, this.big, this.keys);
    this.frame = svg("svg", { class: "plot", role: "img" });
    figure.append(this.caption, this.frame);
    this.label = name;
    this.at = null;
    this.frame.addEventListener("pointermove", (event) => {
      this.at = event.offsetX;
      this.draw();
    });
    this.frame.addEventListener("pointerleave", () => {
      this.at = null;
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.frame);
  }

  show(now, since, data, { big, keys, summary }) {
    Object.assign(this, { now, since, data });
    say(this.big, big);
    this.keyTexts = keys;
    this.frame.setAttribute("aria-label", `${this.label}: ${summary}`);
    this.draw();
  }

  draw() {
    const box = this.frame.getBoundingClientRect();
    if (this.now === undefined || !box.width) return;
    const [width, height] = [box.width, box.height];
    this.span = SPANS_S.find((span) => this.now - this.since <= span) ?? SPANS_S.at(-1);
    this.x = (at) => LEFT + (width - LEFT) * (1 - (this.now - at) / this.span);
    this.first = this.now - this.span;
    this.frame.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const { ticks, y } = this.scale(height - BOTTOM, TOP);
    const parts = [];
    for (const tick of ticks) {
      const at = y(tick);
      parts.push(svg("line", { class: "rule", x1: LEFT, x2: width, y1: at, y2: at }));
      parts.push(svg("text", { x: LEFT - 7, y: at + 4, "text-anchor": "end" }, this.axis(tick)));
    }
    for (const back of [this.span, this.span / 2, 0]) {
      const anchor = back === this.span ? "start" : back ? "middle" : "end";
      const text = back ? `${back / 60} min ago` : "now";
      parts.push(svg("text", { x: this.x(this.now - back), y: height - 3, "text-anchor": anchor }, text));
    }
    parts.push(...this.marks(y, height - BOTTOM));
    let texts = this.keyTexts;
    const found = this.at === null ? null : this.nearest(this.at);
    if (found) {
      const x = this.x(found.at);
      parts.push(svg("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: height - BOTTOM }));
      texts = [["", `${clock(found.at)}: ${this.read(found)}`]];
    }
    texts = texts.filter(([, text]) => text);
    this.keys.replaceChildren(...texts.map(([name, text]) => el("span", { class: name || null }, text)));
    this.frame.replaceChildren(...parts);
  }

  nearest(pixel) {
    let best = null;
    let distance = 24;
    for (const one of this.data) {
      const away = Math.abs(this.x(one.at) - pixel);
      if (away < distance) [best, distance] = [one, away];
    }
    return best;
  }
}

// Values stacked on each other.
export class Lines extends Plot {
  constructor(figure, options) {
    super(figure, options);
    this.series = options.series; // [[className, (sample) => value], …], the lowest first
    this.least = options.least;
  }

  scale(bottom, top) {
    const shown = this.data.filter((sample) => sample.at >= this.first);
    const sum = (sample) => this.series.reduce((total, [, value]) => total + value(sample), 0);
    const most = Math.max(this.least, ...shown.map(sum));
    const step = niceStep(most / 3);
    const end = Math.ceil(most / step) * step;
    const ticks = [];
    for (let tick = 0; tick <= end + step / 2; tick += step) ticks.push(tick);
    return { ticks, y: (value) => bottom - ((bottom - top) * value) / end };
  }

  marks(y) {
    const parts = [];
    let below = () => 0;
    for (const [name, value] of this.series) {
      const base = below;
      const over = (sample) => base(sample) + value(sample);
      const used = this.data.some((sample) => value(sample) > 0) || name === "";
      for (const run of used ? this.runs() : []) {
        const line = run.map((one) => `${this.x(one.at).toFixed(1)},${y(over(one)).toFixed(1)}`);
        const back = run.map((one) => `${this.x(one.at).toFixed(1)},${y(base(one)).toFixed(1)}`).reverse();
        parts.push(svg("path", { class: `area ${name}`, d: `M${[...line, ...back].join("L")}Z` }));
        parts.push(svg("path", { class: `line ${name}`, d: `M${line.join("L")}` }));
      }
      below = over;
    }
    return parts;
  }

  // What was watched without a break.
  runs() {
    const runs = [];
    let last = null;
    for (const sample of this.data) {
      if (sample.at < this.first) continue;
      if (last === null || sample.at - last > GAP_S) runs.push([]);
      runs.at(-1).push(sample);
      last = sample.at;
    }
    return runs;
  }
}

// A dot for each, by the logarithm: what is ten times slower is as far away everywhere.
export class Dots extends Plot {
  scale(bottom, top) {
    const shown = this.data.filter((one) => one.at >= this.first).map((one) => one.value);
    const low = Math.floor(Math.log10(Math.max(0.001, Math.min(0.1, ...shown))));
    const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(1, ...shown))));
    const ticks = [];
    for (let power = low; power <= high; power += 1) ticks.push(10 ** power);
    return {
      ticks,
      y: (value) => bottom - ((bottom - top) * (Math.log10(Math.max(value, 10 ** low)) - low)) / (high - low),
    };
  }

  marks(y) {
    const parts = this.data
      .filter((one) => one.at >= this.first)
      .map((one) => svg("circle", { class: "spot", r: 2.4, cx: this.x(one.at).toFixed(1), cy: y(one.value).toFixed(1) }));
    if (this.middle != null) {
      const at = y(this.middle);
      const from = this.x(Math.max(this.first, this.now - 60));
      parts.push(svg("line", { class: "middle", x1: from, x2: this.x(this.now), y1: at, y2: at }));
    }
    return parts;
  }
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const part = rough / power;
  const step = (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10) * power;
  return Math.max(step, rough < 1 ? 1 : step);
}

export const secondsAxis = (value) => (value < 1 ? duration(value) : `${value} s`);
