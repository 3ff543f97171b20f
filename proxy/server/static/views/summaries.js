/* Summaries as a graph: which text stands for which messages, whether it is in use, and what lies beneath it. */
import { first, get, getText } from "../lib/api.js";
import { $, h, put, s } from "../lib/dom.js";
import { clock, count, int, short } from "../lib/format.js";
import { copy, emptyState, sign } from "../lib/parts.js";

const TALL = 46, STEP = 60;
let nodes = [], edges = [], chosen = "", session = null, id;

/* Columns: what was said, and summaries by how many layers of summaries they were made of. */
function build(summaries) {
  const byId = new Map(summaries.map((each) => [each.id, each])), depth = new Map();
  const measure = (each) => {
    if (!depth.has(each.id)) {
      depth.set(each.id, 1);
      depth.set(each.id, 1 + Math.max(0, ...each.parents.map((parent) => byId.get(parent)).filter(Boolean).map(measure)));
    }
    return depth.get(each.id);
  };
  summaries.forEach(measure);
  nodes = [];
  edges = [];
  const ordered = [...summaries].sort((a, b) => a.start - b.start || a.made_ms - b.made_ms), rows = new Map();
  ordered.forEach((each) => {
    const column = depth.get(each.id);
    if (column === 1) {
      const y = rows.get(0) ?? 0;
      rows.set(0, y + 1);
      nodes.push({ id: `t-${each.id}`, column: 0, y, isRaw: true, name: `Messages ${each.start + 1} to ${each.stop}`, line: `for ${each.id.slice(0, 8)}`, tokens: each.covered, kind: "output", isLive: false, summary: each });
      nodes.push({ id: each.id, column, y, kind: `sum${each.level}`, name: each.id.slice(0, 8), line: `level ${each.level}, ${each.start + 1} to ${each.stop}`, tokens: each.tokens, isLive: each.is_live, summary: each });
      edges.push([`t-${each.id}`, each.id]);
    }
  });
  ordered.filter((each) => depth.get(each.id) > 1).sort((a, b) => depth.get(a.id) - depth.get(b.id)).forEach((each) => {
    const from = each.parents.map((parent) => nodes.find((node) => node.id === parent)).filter(Boolean), column = depth.get(each.id);
    let y = from.length ? Math.round(from.reduce((sum, node) => sum + node.y, 0) / from.length) : 0;
    while (nodes.some((node) => node.column === column && node.y === y)) y++;
    nodes.push({ id: each.id, column, y, kind: `sum${each.level}`, name: each.id.slice(0, 8), line: `level ${each.level}, ${each.start + 1} to ${each.stop}`, tokens: each.tokens, isLive: each.is_live, summary: each });
    for (const node of from) edges.push([node.id, each.id]);
  });
  chosen = nodes.findLast((node) => node.isLive)?.id ?? nodes[0]?.id ?? "";
}

function kin(of) {
  const found = new Set([of]);
  const follow = (x, from, to) => edges.filter((edge) => edge[from] === x && !found.has(edge[to])).forEach((edge) => { found.add(edge[to]); follow(edge[to], from, to); });
  follow(of, 1, 0);
  follow(of, 0, 1);
  return found;
}

function draw() {
  const box = $("#dag"), columns = Math.max(2, ...nodes.map((node) => node.column + 1)), column = box.clientWidth / columns, wide = Math.min(column - 32, 220), near = kin(chosen);
  const most = Math.max(...nodes.map((node) => node.y)) + 1, byId = new Map(nodes.map((node) => [node.id, node]));
  box.style.setProperty("--dag-h", `${most * STEP - 6}px`);
  const X = (node) => node.column * column, Y = (node) => node.y * STEP + 4;
  const paths = edges.map(([a, b]) => {
    const from = byId.get(a), to = byId.get(b), x1 = X(from) + wide, y1 = Y(from) + TALL / 2, x2 = X(to), y2 = Y(to) + TALL / 2, bend = Math.min(60, (x2 - x1) / 2);
    return s("path", { class: `edge ${near.has(a) && near.has(b) ? "on" : ""}`, d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
  });
  const focused = document.activeElement?.dataset?.id;
  put(box, s("svg", { "aria-hidden": "true" }, paths), nodes.map((node) => h("button", {
    type: "button", class: `node ${node.isLive ? "" : "past"} ${node.isRaw ? "raw" : ""} ${near.has(node.id) ? "kin" : ""}`, data: { id: node.id, walk: "" }, "aria-pressed": String(node.id === chosen),
    "aria-label": `${node.isRaw ? node.name : `Summary ${node.name}, ${node.line}`}, ${int(node.tokens)} tokens, ${node.isLive ? "in use" : "held back or superseded, stored"}`,
    vars: { "--x": `${X(node)}px`, "--y": `${Y(node)}px`, "--w": `${wide}px`, "--nh": `${TALL}px` },
    onclick: () => { chosen = node.id; draw(); drawDetail(); },
    onkeydown: (event) => move(event, node),
  }, h("i", { class: `stripe k ${node.kind}` }), h("span", { class: "l1" }, h("span", {}, node.name), h("span", {}, short(node.tokens))), h("span", { class: "l2" }, node.line, node.summary.is_provisional && !node.isRaw && " \u00b7 provisional"))));
  $("#cols").style.setProperty("--cols", columns);
  put($("#cols"), Array.from({ length: columns }, (_, i) => h("span", {}, i === 0 ? "What was said" : i === 1 ? "Summaries" : i === 2 ? "Condensed" : "Condensed again")));
  if (focused) $(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

function move(event, node) {
  const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!by) return;
  event.preventDefault();
  const distance = (other) => Math.abs(other.y - node.y) + 20 * Math.abs(other.column - node.column);
  const next = nodes.filter((other) => (by[0] ? (other.column - node.column) * by[0] > 0 : other.column === node.column && (other.y - node.y) * by[1] > 0)).sort((a, b) => distance(a) - distance(b))[0];
  if (next) $(`[data-id="${CSS.escape(next.id)}"]`).focus();
}

async function drawBeneath(summary) {
  put($("#cov-note"), `messages ${summary.start + 1} to ${summary.stop}, exactly as they were`);
  put($("#cov"), h("p", { class: "dim" }, "Reading the first page\u2026"));
  const mine = chosen;
  try {
    const { text, headers } = await getText(`/refs/${summary.id}`);
    if (mine !== chosen) return;
    const pages = Number(headers.get("x-palimpsest-pages") ?? 1);
    put($("#cov"), h("pre", { class: "txt", tabindex: 0 }, text), pages > 1 && h("p", { class: "tiny faint" }, `page 1 of ${pages}; all: palimpsest expand ${summary.id} --page all`));
  } catch (error) { put($("#cov"), h("p", { class: "dim" }, error.message)); }
}

function drawDetail() {
  const node = nodes.find((each) => each.id === chosen), summary = node.summary;
  drawBeneath(summary);
  if (node.isRaw) {
    put($("#detail"), h("div", { class: "panel-head" }, h("h2", {}, node.name), h("span", { class: "tag held" }, "held back, stored")), h("dl", { class: "facts" }, h("dt", {}, "Tokens"), h("dd", {}, int(node.tokens)), h("dt", {}, "Told by"), h("dd", {}, summary.id)));
    return;
  }
  const check = (text, good = true) => h("li", {}, sign(good ? "good" : "warn", good ? "passed" : "attention"), h("span", {}, text));
  put($("#detail"), h("div", { class: "panel-head" }, h("h2", {}, "Summary ", h("span", { class: "mono" }, summary.id)), h("span", { class: summary.is_provisional ? "tag warn" : summary.is_live ? "tag good" : "tag" }, summary.is_provisional ? "provisional" : summary.is_live ? "in use" : "superseded")),
    h("dl", { class: "facts" }, h("dt", {}, "Covers"), h("dd", {}, `messages ${summary.start + 1} to ${summary.stop}`), h("dt", {}, "Tokens"), h("dd", {}, `${int(summary.covered)} \u2192 `, h("b", {}, int(summary.tokens)), summary.tokens ? h("span", { class: "dim" }, `, ${Math.max(1, Math.round(summary.covered / summary.tokens))} times smaller`) : ""),
      h("dt", {}, "Made by"), h("dd", {}, summary.level === 3 ? "rule, no model" : `${summary.model || "the provider"}, level ${summary.level}${summary.parents.length ? `, from ${count(summary.parents.length, "summary", "summaries")}` : ""}`), h("dt", {}, "Made at"), h("dd", {}, clock(summary.made_ms))),
    h("h3", { class: "subhead" }, "Checks"), h("ul", { class: "checks" }, check("Smaller than what it covers", summary.tokens < summary.covered), check(`${count(summary.files.length, "file")} named`), summary.reason ? check(summary.reason, false) : check(summary.level === 3 ? "Made by rule, of the messages alone" : "Accepted: every fact points to a message of its span"), summary.is_provisional && check("Provisional: a better one replaces it at a later epoch", false)),
    h("h3", { class: "subhead" }, "Text that the model sees"), h("pre", { class: "txt whole", tabindex: 0 }, summary.text || "(erased)"),
    h("div", { class: "blk-acts" }, h("button", { class: "btn small quiet mono", type: "button", onclick: () => copy(`ref:${summary.id}`, `Copied ref:${summary.id}`) }, `ref:${summary.id}`)));
}

export async function show() {
  const found = first(), items = found.items ?? found;
  id = location.pathname.split("/")[3];
  const drawPath = () => put($(".crumbs"), h("li", {}, h("a", { href: "/-/" }, "Sessions")), h("li", {}, h("a", { href: `/-/sessions/${id}` }, session?.title || id.slice(0, 10))), h("li", {}, "Summaries"));
  drawPath();
  put($("#dag-key"), [["sum1", "level 1, a report"], ["sum2", "level 2, a short form"], ["sum3", "level 3, by rule"], ["output", "messages, held back"]].map(([kind, text]) => h("span", {}, h("i", { class: `swatch k ${kind}` }), text)));
  const live = items.filter((each) => each.is_live), sum = (list, read) => list.reduce((total, each) => total + read(each), 0);
  put($("#lede"), live.length ? `${int(sum(live, (each) => each.covered))} tokens are told by ${count(live.length, "summary", "summaries")} of ${int(sum(live, (each) => each.tokens))} tokens. Nothing was thrown away: choose a node to read what lies beneath it.` : "");
  if (items.length) {
    build(items);
    drawDetail();
    new ResizeObserver(draw).observe($("#dag"));
  } else {
    put($("#dag"), emptyState("No summary yet", "Below the soft mark everything goes out as the client wrote it. The first summary is made when an epoch is near, if a model may be asked."));
    put($("#detail"), h("p", { class: "dim" }, "Tool outputs become tombstones and steps a ledger without any summary."));
    put($("#cov"), h("p", { class: "dim" }, "Nothing is covered."));
  }
  session = (await get(`/sessions/${id}`).catch(() => null))?.session ?? null;
  drawPath();
  document.title = `Summaries \u00b7 ${session?.title || id.slice(0, 10)} \u00b7 palimpsest`;
}
