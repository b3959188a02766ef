// A table whose rows stay the same elements from one moment to the next.

import { el, mark, say } from "./dom.js";

export class Table {
  // columns: { head, num, className, text(row) } or { …, make(td), show(parts, row) }.
  constructor(section, { title, empty, key, columns, search, level }) {
    this.key = key;
    this.columns = columns;
    this.rows = new Map();
    this.level = level;
    this.count = el("span", { class: "count" });
    const heading = el("h2", { id: `${section.id}-head` }, title);
    const head = el("div", { class: "head" }, heading, this.count);
    this.body = el("tbody");
    const line = columns.map((column) =>
      el("th", { scope: "col", class: column.num ? "num" : null }, column.head),
    );
    const table = el("table", {}, el("caption", {}, title), el("thead", {}, el("tr", {}, ...line)), this.body);
    this.frame = el("div", { class: "scroll-x", role: "region", "aria-label": `${title}, the table` }, table);
    // The keyboard stops there only if there is something to scroll.
    const scrolls = ({ scrollWidth, clientWidth, scrollHeight, clientHeight }) =>
      scrollWidth > clientWidth || scrollHeight > clientHeight;
    const observer = new ResizeObserver(() => mark(this.frame, "tabindex", scrolls(this.frame) ? "0" : null));
    observer.observe(this.frame);
    observer.observe(table);
    this.empty = el("p", { class: "empty" });
    this.emptyText = empty;
    if (search) {
      this.wanted = "";
      const field = el("input", { type: "search", placeholder: search, "aria-label": search });
      field.addEventListener("input", () => {
        this.wanted = field.value.trim().toLowerCase();
        this.update(this.all);
      });
      head.append(field);
    }
    section.setAttribute("aria-labelledby", heading.id);
    section.append(head, this.frame, this.empty);
  }

  update(rows, { note = "", empty = this.emptyText } = {}) {
    this.all = rows;
    const shown = this.wanted ? rows.filter((row) => this.matches(row)) : rows;
    const keys = new Set(shown.map(this.key));
    for (const [key, { line }] of this.rows) {
      if (!keys.has(key)) {
        line.remove();
        this.rows.delete(key);
      }
    }
    let before = this.body.firstChild;
    for (const row of shown) {
      const { line, cells } = this.rows.get(this.key(row)) ?? this.make(row);
      if (line === before) before = line.nextSibling;
      else this.body.insertBefore(line, before);
      this.columns.forEach((column, at) => {
        if (column.show) column.show(cells[at], row);
        else say(cells[at], String(column.text(row)));
      });
      if (this.level) mark(line, "data-dim", this.level(row) ? "" : null);
    }
    this.frame.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    say(this.empty, rows.length && !shown.length ? "None matches." : empty);
    say(this.count, note);
  }

  // Leaves a column out, for as long as it says nothing.
  without(head, hidden) {
    const at = this.columns.findIndex((column) => column.head === head);
    if (this.left === (hidden ? at : null)) return;
    this.left = hidden ? at : null;
    for (const line of this.frame.querySelectorAll("tr")) line.children[at].hidden = hidden;
  }

  matches(row) {
    const { cells } = this.rows.get(this.key(row)) ?? this.make(row, true);
    this.columns.forEach((column, at) => {
      if (column.show) column.show(cells[at], row);
      else say(cells[at], String(column.text(row)));
    });
    return this.columns.some((column, at) => (cells[at].td ?? cells[at]).textContent.toLowerCase().includes(this.wanted));
  }

  make(row, apart = false) {
    const line = el("tr");
    const cells = this.columns.map((column, at) => {
      const classes = [column.num ? "num" : "", column.className ?? ""].join(" ").trim();
      const td = el("td", { class: classes || null, hidden: at === this.left });
      line.append(td);
      return column.make ? { td, ...column.make(td) } : td;
    });
    const made = { line, cells };
    if (!apart) this.rows.set(this.key(row), made);
    return made;
  }
}

// Parts of cells that several tables have.

export const badge = (level, text) => ({
  make: (td) => ({ mark: td.appendChild(el("span", { class: "badge" })) }),
  show: (parts, row) => {
    mark(parts.mark, "data-level", level(row));
    say(parts.mark, text(row));
  },
});

// shares(row): [[className, part of the whole], …]
export const bar = (text, shares) => ({
  make: (td) => ({
    said: td.appendChild(el("span")),
    bar: td.appendChild(el("div", { class: "bar", "aria-hidden": "true" })),
  }),
  show: (parts, row) => {
    say(parts.said, text(row));
    shares(row).forEach(([name, part], at) => {
      const share = parts.bar.children[at] ?? parts.bar.appendChild(el("span"));
      mark(share, "class", name);
      share.style.width = `${Math.min(100, 100 * part)}%`;
    });
  },
});

export const withSub = (text, sub) => ({
  make: (td) => ({
    said: td.appendChild(el("span")),
    sub: td.appendChild(el("div", { class: "sub" })),
  }),
  show: (parts, row) => {
    say(parts.said, text(row));
    say(parts.sub, sub(row));
    parts.sub.hidden = !sub(row);
  },
});
