/* The timeline of a session: tokens that the client sent and that went upstream, epochs, marks, reads from the cache.
   A call is a column of `calls`; of more calls than there are pixels, each pixel shows the largest. */
import { $, h, put, s } from "./dom.js";
import { clock, int, money, percent, share, short } from "./format.js";

export const MARKS = { epoch: "epoch opened", error: "error", miss: "cache miss", loop: "doom loop", compaction: "compacted", notice: "told to the client" };
const SHAPES = {
  epoch: (x, y) => s("path", { class: "m-epoch", d: `M${x} ${y - 5}l5 9h-10Z` }),
  error: (x, y) => s("path", { class: "m-error", d: `M${x - 4} ${y - 4}l8 8m0-8l-8 8` }),
  miss: (x, y) => s("path", { class: "m-cache", d: `M${x + 1.5} ${y - 7}l-6 8h3.5l-1 6 6-8h-3.5Z` }),
  loop: (x, y) => s("path", { class: "m-loop", d: `M${x + 4.5} ${y}a4.5 4.5 0 1 1-1.5-3.4m.4-2.4v2.6h-2.6` }),
};
const GRAVE = ["error", "loop", "epoch", "miss"], SIGN_WIDE = 14, WIDEST_BAR = 16;
const LEFT = 44, RIGHT = 8, TOP = 22, SIGNS = 26, CACHE = 26, AXIS = 16;

/* Returns `draw`, which shows calls with marks, and moves along them. `open` is called with the number of a call. */
export function timeline(box, readout, open) {
  let calls = null, marks = [], limits = {}, byTime = false, at = -1;

  const isMain = (i) => !calls.is_auxiliary[i] && !calls.is_side[i]; // of the client's own conversation
  const size = (i) => (!isMain(i) ? 0 : Math.max(calls.client[i] ?? 0, calls.sent[i] ?? 0));

  function step(most) { // a round number for at most five lines
    const raw = most / 4, base = 10 ** Math.floor(Math.log10(Math.max(1, raw)));
    return [1, 2, 2.5, 5, 10].map((k) => k * base).find((k) => k >= raw);
  }

  /* The calls that are drawn: all of them, or of each pixel the one with the most tokens. */
  function pick(X, count, width) {
    if (count <= width * 1.5) return Array.from({ length: count }, (_, i) => i);
    const best = new Map();
    for (let i = 0; i < count; i++) {
      const column = Math.round(X(i));
      if (!best.has(column) || size(i) > size(best.get(column))) best.set(column, i);
    }
    return [...best.values()].sort((a, b) => a - b);
  }

  function draw(data = null) {
    if (data) {
      const follows = calls === null || at === calls.n.length - 1;
      ({ calls, marks, limits } = data);
      if (follows) at = calls.n.length - 1;
    }
    if (!calls) return;
    const count = calls.n.length, W = Math.max(300, box.clientWidth), H = box.clientHeight || 304, small = W < 520;
    const bottom = SIGNS + CACHE + AXIS + 8, width = W - LEFT - RIGHT, height = H - TOP - bottom;
    const begin = calls.at_ms[0], end = calls.at_ms[count - 1];
    const place = (i) => (count < 2 ? 0.5 : byTime ? (calls.at_ms[i] - begin) / Math.max(1, end - begin) : i / (count - 1));
    const X = (i) => LEFT + place(i) * width;
    let most = 1000;
    for (let i = 0; i < count; i++) most = Math.max(most, size(i));
    const highest = most * 1.06, Y = (v) => TOP + height - (Math.min(v, highest) / highest) * height;
    const shown = pick(X, count, width).filter((i) => (calls.sent[i] != null || calls.client[i] != null) && isMain(i));
    const point = (i, v) => `${X(i).toFixed(1)},${Y(v).toFixed(1)}`;
    const client = shown.map((i) => point(i, calls.client[i] ?? calls.sent[i]));
    const sent = [];
    shown.forEach((i, k) => {
      const before = shown[k - 1];
      if (k && calls.epoch[i] !== calls.epoch[before]) sent.push(`${X(i).toFixed(1)},${Y(calls.sent[before] ?? 0).toFixed(1)}`); // an epoch is a step
      sent.push(point(i, calls.sent[i] ?? calls.client[i]));
    });
    const parts = [s("defs", {}, s("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("line", { class: "hatch-line", x1: 0, y1: 0, x2: 0, y2: 5 })))];
    const starts = [];
    for (let i = 0, before = -1; i < count; i++) if (isMain(i)) { if (before < 0 || calls.epoch[i] !== calls.epoch[before]) starts.push(i); before = i; }
    const isDense = width / starts.length < 8; // then only the epochs that are named have a line, and none a ground
    starts.forEach((i, k) => {
      if (k % 2 && !isDense) parts.push(s("rect", { class: "ep-band", x: X(i), y: TOP, width: (k + 1 < starts.length ? X(starts[k + 1]) : LEFT + width) - X(i), height: H - TOP - AXIS }));
    });
    for (let v = 0, by = step(highest); v <= highest; v += by) parts.push(s("line", { class: "grid-line", x1: LEFT, x2: LEFT + width, y1: Y(v), y2: Y(v) }), s("text", { x: LEFT - 6, y: Y(v) + 4, "text-anchor": "end" }, v ? short(v) : "0"));
    if (shown.length) {
      const [a, z] = [X(shown[0]), X(shown.at(-1))].map((x) => x.toFixed(1));
      parts.push(s("polygon", { class: "held", points: [...client, ...sent.toReversed()].join(" ") }));
      parts.push(s("polygon", { class: "sent", points: [`${a},${Y(0)}`, ...sent, `${z},${Y(0)}`].join(" ") }), s("polyline", { class: "client", points: client.join(" ") }));
    }
    let above = -100; // where the last label is
    for (const [name, look, value] of [["high mark", "limit hard", limits.high], ["soft mark", "limit", limits.soft]]) {
      if (!value || value >= highest) continue;
      parts.push(s("line", { class: look, x1: LEFT, x2: LEFT + width, y1: Y(value), y2: Y(value) }));
      if (Y(value) - above > 14) { parts.push(s("text", { class: "lbl", x: LEFT + 5, y: Y(value) - 5 }, small ? name : `${name} ${short(value)}`)); above = Y(value); }
    }
    let free = 0; // where the next label has room
    starts.forEach((i) => {
      const epoch = calls.epoch[i], x = X(i), label = epoch ? `E${epoch}` : starts[0] === i && !small ? "verbatim" : "", hasRoom = label && x > free && x + 7 * label.length < LEFT + width + RIGHT;
      if (epoch && (hasRoom || !isDense)) parts.push(s("line", { class: "ep-line", x1: x, x2: x, y1: TOP - 4, y2: H - AXIS }));
      if (hasRoom) { parts.push(s("text", { class: "ep-label", x: x + (epoch ? 4 : 0), y: 11 }, label)); free = x + 7 * label.length + 8; }
    });
    const y = TOP + height + 8 + 10, byNumber = new Map(Array.from(calls.n, (n, i) => [n, i]));
    const groups = []; // what lies closer than a sign is wide has one sign, the most serious, with the number of those
    for (const mark of marks) {
      const i = byNumber.get(mark.n);
      if (i === undefined || !SHAPES[mark.kind]) continue;
      if (!groups.length || X(i) - groups.at(-1).x >= SIGN_WIDE) groups.push({ x: X(i), marks: [] });
      groups.at(-1).marks.push(mark);
    }
    for (const group of groups) {
      const kind = GRAVE.find((each) => group.marks.some((mark) => mark.kind === each)), alike = group.marks.filter((mark) => mark.kind === kind).length;
      parts.push(s("g", {}, s("title", {}, group.marks.slice(0, 12).map((mark) => `Call ${mark.n}: ${mark.title}`).join("\n")), SHAPES[kind](group.x, y), alike > 1 && s("text", { class: "sign-n", x: group.x, y: y + 13, "text-anchor": "middle" }, alike)));
    }
    const floor = TOP + height + 8 + SIGNS, bar = Math.min(WIDEST_BAR, Math.max(1, width / Math.max(1, shown.length) - 0.8));
    for (const i of shown) {
      const part = share(calls.read[i], calls.input[i]);
      if (part == null) continue;
      const tall = Math.max(1.5, part * (CACHE - 6));
      parts.push(s("rect", { class: part < 0.5 && i ? "cache-no" : "cache-ok", x: Math.max(LEFT, Math.min(LEFT + width - bar, X(i) - bar / 2)), y: floor + CACHE - tall - 2, width: bar, height: tall }));
    }
    parts.push(s("text", { x: LEFT - 6, y: floor + CACHE - 5, "text-anchor": "end" }, "cache"));
    const ticks = (small ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).filter((part) => byTime || Number.isInteger(part) || count > 8);
    if (count > 1) ticks.forEach((part, k) => parts.push(s("text", { x: LEFT + part * width, y: H - 2, "text-anchor": k === 0 ? "start" : k === ticks.length - 1 ? "end" : "middle" },
      byTime ? clock(begin + part * (end - begin)).slice(0, 5) : `${k ? "" : "call "}${calls.n[Math.round(part * (count - 1))]}`)));
    const cross = s("g", {});
    parts.push(cross);
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "slider", tabindex: 0, "aria-label": "Call on the timeline", "aria-valuemin": calls.n[0], "aria-valuemax": calls.n[count - 1] }, parts);

    const move = (to) => {
      at = Math.max(0, Math.min(count - 1, to));
      const x = X(at), [n, own, up] = [calls.n[at], calls.client[at], calls.sent[at]];
      put(cross, s("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: H - AXIS }), own != null && s("circle", { class: "knob", cx: x, cy: Y(own), r: 3 }), up != null && s("circle", { class: "knob", cx: x, cy: Y(up), r: 3 }));
      const flags = marks.filter((mark) => mark.n === n).map((mark) => MARKS[mark.kind] ?? mark.title).join(", ");
      put(readout, h("b", {}, `Call ${n}`), h("span", {}, clock(calls.at_ms[at])), h("span", {}, "client ", h("b", {}, int(own))), h("span", {}, "upstream ", h("b", {}, int(up))),
        h("span", {}, "cache ", h("b", {}, percent(share(calls.read[at], calls.input[at])))), calls.rounds[at] > 1 && h("span", {}, `${calls.rounds[at]} rounds, `, h("b", {}, int(calls.input[at])), " in all"), h("span", {}, "cost ", h("b", {}, money(calls.money[at]))), flags && h("span", { class: "tag warn" }, flags), h("a", { href: open(n) }, "Open call"));
      svg.setAttribute("aria-valuenow", n);
      svg.setAttribute("aria-valuetext", `Call ${n}, client ${int(own)}, upstream ${int(up)} tokens${flags ? `, ${flags}` : ""}`);
    };
    const nearest = (pixel) => {
      let best = 0;
      for (let i = 0; i < count; i++) if (Math.abs(X(i) - pixel) < Math.abs(X(best) - pixel)) best = i;
      return best;
    };
    svg.addEventListener("pointermove", (event) => move(nearest(event.clientX - svg.getBoundingClientRect().left)));
    svg.addEventListener("click", () => { location.href = open(calls.n[at]); });
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (by) { event.preventDefault(); move(at + by); } else if (event.key === "Home") move(0); else if (event.key === "End") move(count - 1); else if (event.key === "Enter") location.href = open(calls.n[at]);
    });
    const focused = box.contains(document.activeElement);
    put(box, svg);
    if (at >= 0) move(at);
    if (focused) svg.focus();
  }

  new ResizeObserver(() => draw()).observe(box);
  return { draw, setAxis(isTime) { byTime = isTime; draw(); }, get byTime() { return byTime; } };
}
