// Figures as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (n) => whole.format(n);

export const rate = (n) => (n >= 100 || n === 0 ? whole.format(n) : fine.format(n));

export function duration(s) {
  if (s == null) return "";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 59.95) return `${s.toFixed(1)} s`;
  if (s < 3599.5) return parts(Math.round(s), 60, "m", "s");
  if (s < 172800) return parts(Math.round(s / 60), 60, "h", "m");
  return parts(Math.round(s / 3600), 24, "d", "h");
}

function parts(n, base, large, small) {
  return `${Math.floor(n / base)} ${large} ${String(n % base).padStart(2, "0")} ${small}`;
}

export function ago(s) {
  return s < 1.5 ? "now" : `${duration(Math.round(s))} ago`.replace(".0 s", " s");
}

export const clock = (at) =>
  new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function tokens(n) {
  if (n < 10000) return count(n);
  if (n < 1e6) return `${rate(n / 1000)} K`;
  return `${rate(n / 1e6)} M`;
}
