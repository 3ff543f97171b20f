/* Numbers, money, times. Unknown is a dash, never 0; minus is U+2212. */
const UNKNOWN = "\u2013";
const known = (write) => (value, ...rest) => (value == null || Number.isNaN(value) ? UNKNOWN : write(value, ...rest));
const sign = (value) => (value < 0 ? "\u2212" : "");

export const int = known((n) => sign(n) + Math.abs(Math.round(n)).toLocaleString("en-US"));
export const short = known((n) => {
  const size = Math.abs(n);
  if (size >= 1e9) return `${sign(n)}${(size / 1e9).toFixed(2)} G`;
  if (size >= 1e6) return `${sign(n)}${(size / 1e6).toFixed(size >= 1e7 ? 1 : 2)} M`;
  return size >= 1e4 ? `${sign(n)}${(size / 1e3).toFixed(size >= 1e5 ? 0 : 1)} k` : int(n);
});
export const money = (n, digits) => {
  if (n == null) return "no price";
  const places = digits ?? (Math.abs(n) > 0 && Math.abs(n) < 0.1 ? 3 : 2);
  if (n !== 0 && Math.abs(n) < 0.5 / 10 ** places) return `${sign(n)}< $${(1 / 10 ** places).toFixed(places)}`;
  return `${sign(n)}$${Math.abs(n).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places })}`;
};
export const percent = known((x, digits = 0) => `${sign(x)}${Math.abs(x * 100).toFixed(digits)} %`);
export const bytes = known((n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} MB` : n >= 1e4 ? `${(n / 1e3).toFixed(0)} kB` : `${int(n)} B`));
export const seconds = known((n) => (n < 1 ? `${Math.round(n * 1000)} ms` : n < 120 ? `${n.toFixed(1)} s` : `${Math.round(n / 60)} min`));
export const milliseconds = known((n) => (n < 10 ? `${n.toFixed(1)} ms` : seconds(n / 1000)));
export const clock = known((ms) => new Date(ms).toLocaleTimeString("en-GB"));
export const day = known((ms) => new Date(ms).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" }));
export const when = (ms) => (ms == null ? UNKNOWN : Date.now() - ms < 86_400_000 ? clock(ms) : `${day(ms)}, ${clock(ms).slice(0, 5)}`);
export const ago = (ms) => {
  if (ms == null) return UNKNOWN;
  const passed = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (passed < 60) return `${passed} s ago`;
  if (passed < 3600) return `${Math.round(passed / 60)} min ago`;
  return passed < 86_400 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86_400)} d ago`;
};
export const count = (n, one, many = `${one}s`) => `${int(n)} ${n === 1 ? one : many}`;
export const share = (part, whole) => (part == null || !whole ? null : part / whole);
