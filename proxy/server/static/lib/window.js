/* What fills the context window: a grid of squares, and its legend. The order of kinds is that of the document. */
import { $$, h, put } from "./dom.js";
import { int, percent } from "./format.js";

export const KINDS = {
  system: ["system", "System"], tools: ["tools", "Tools"], pinned: ["pinned", "Pinned"], ledger: ["tomb", "Ledger"], summary1: ["sum1", "Summary, level 1"], summary2: ["sum2", "Summary, level 2"],
  summary3: ["sum3", "Summary, level 3"], user: ["user", "User"], assistant: ["assistant", "Assistant"], reasoning: ["assistant", "Reasoning"], output: ["output", "Tool output"], tombstone: ["tomb", "Tombstones"],
  file: ["file", "File references"], other: ["tools", "Other"], memory: ["sum1", "Memory"],
};
const CELLS = 200, APART = 0.18;

/* The scale ends with what may be used: a window that is many times the ceiling would leave a square or two for all that is sent. */
export function drawWindow({ cells, note, marks, legend }, found) {
  const window = found.window ?? Math.max(found.ceiling ?? 0, found.high), reserve = Math.max(0, Math.min(found.output_reserve, window - found.high));
  const total = found.high + reserve, beyond = Math.max(0, window - total);
  const unit = total / CELLS, at = (tokens) => Math.round(tokens / unit);
  const order = [];
  let sum = 0;
  for (const kind of found.kinds) { // cumulative, so that rounding does not add up
    const before = at(sum);
    sum += kind.tokens;
    const count = Math.max(at(sum) - before, kind.tokens > 0 && at(sum) === before && kind.tokens > unit / 4 ? 1 : 0);
    for (let i = 0; i < count; i++) order.push(kind.kind);
  }
  const soft = at(found.soft), high = at(found.high);
  const squares = [];
  for (let i = 0; i < CELLS; i++) {
    if (i === Math.round(soft / 20) * 20 && soft > 0 && soft < CELLS) squares.push(h("span", { class: "soft-row" }));
    const key = order[i] ?? (i >= high ? "reserve" : "free");
    squares.push(h("i", { class: `k ${KINDS[key]?.[0] ?? key}${i === high ? " high" : ""}`, data: { k: key } }));
  }
  put(cells, squares);
  cells.setAttribute("aria-label", `Window of ${int(total)} tokens, ${int(found.used)} used: ${found.kinds.map((kind) => `${KINDS[kind.kind]?.[1] ?? kind.kind} ${int(kind.tokens)}`).join(", ")}`);
  put(note, `1 square = ${int(unit)} tokens of ${int(total)} that may be used`);
  const low = (Math.round(soft / 20) * 20) / CELLS, up = Math.max((high + 10) / CELLS, low + APART); // beside their rows, one below the other
  put(marks, [["\u2014 soft mark ", found.soft, low], ["| high mark ", found.high, up]].map(([name, tokens, part]) => h("span", { vars: { "--y": `${Math.min(part, 0.93) * 100}%` } }, name, h("b", {}, int(tokens)))));
  const light = (key) => { cells.classList.toggle("lit", Boolean(key)); for (const square of $$("i", cells)) square.classList.toggle("on", square.dataset.k === key); };
  const rows = [...found.kinds.filter((kind) => kind.tokens).map((kind) => [kind.kind, KINDS[kind.kind]?.[1] ?? kind.kind, kind.note, kind.tokens]),
    ["free", "Free", "up to the high mark", Math.max(0, found.high - found.used)], ["reserve", "Reserved", "for the response", reserve], ...(beyond ? [["beyond", "Not used", found.window && found.ceiling < found.window ? `above the ceiling, ${int(found.ceiling)}` : "of the window: for summaries, and for estimates", beyond]] : [])];
  put(legend, h("thead", { class: "hide" }, h("tr", {}, ["Kind", "What", "Tokens", "Share"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(([key, name, what, tokens]) => h("tr", { onpointerenter: () => light(key), onpointerleave: () => light(null) },
      h("th", { scope: "row" }, h("button", { type: "button", class: "kname", onfocus: () => light(key), onblur: () => light(null) }, h("span", { class: `swatch k ${KINDS[key]?.[0] ?? key}` }), name)),
      h("td", { class: "what clip", title: what }, what), h("td", { class: "num" }, int(tokens)), h("td", { class: "num dim" }, key === "beyond" ? "" : percent(tokens / total, 1))))));
}
