/* A session: what is in the window now, when it was rewritten and why, what happens at this moment. */
import { revertEpoch } from "../lib/actions.js";
import { first, follow, get, post, remove } from "../lib/api.js";
import { $, h, put } from "../lib/dom.js";
import { ago, bytes, clock, count, int, milliseconds, money, percent, seconds, share, short, when } from "../lib/format.js";
import { keys } from "../lib/keys.js";
import { ask, bones, emptyState, errorState, icon, say, sign, strip } from "../lib/parts.js";
import { MARKS, timeline } from "../lib/timeline.js";
import { drawWindow } from "../lib/window.js";

const TAIL = 13, MOST_CALLS = 10_000, MOST_EVENTS = 10, MORE_EVENTS = 100;
const SIGNS = { epoch: "epoch", error: "error", miss: "cache", loop: "loop", compaction: "epoch", notice: "warn" };

let session, id, calls = null, marks = [], filled = null, chart, paused = matchMedia("(prefers-reduced-motion: reduce)").matches, epochs = [], stream = "connecting", told = MOST_EVENTS;

const callUrl = (n) => `/-/sessions/${id}/calls/${n}`;
/* The client's own conversation: neither its side calls, nor those that we made for a summary. */
const isMain = (i) => !calls.is_auxiliary[i] && !calls.is_side[i];
const lastKnown = (column) => { for (let i = calls.n.length - 1; i >= 0; i--) if (isMain(i) && calls[column][i] != null) return calls[column][i]; return null; };
const part = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];

function drawHead() {
  document.title = `${session.title || session.id} \u00b7 palimpsest`;
  put($("#sid"), session.id);
  put($("#title"), session.title || session.name || session.id);
  put($("#meta"), session.erased_ms ? h("span", { class: "tag warn" }, `erased on ${when(session.erased_ms)}`) : session.status === "live" ? h("span", { class: "tag good" }, h("span", { class: "dot live" }), "live") : h("span", {}, `last call ${ago(session.last_ms)}`),
    session.client && h("span", {}, session.client), h("span", {}, session.model), session.strategy && h("span", {}, `strategy ${session.strategy}`),
    h("span", {}, `started ${clock(session.created_ms)}`), h("span", {}, count(session.turns, "turn")), h("span", {}, count(session.calls, "call")),
    session.summaries > 0 && h("a", { href: `/-/sessions/${id}/summaries` }, `Summaries (${session.summaries})`), h("a", { href: `/-/search?session=${id}` }, "Search this session"),
    session.parent && h("a", { href: `/-/sessions/${session.parent}` }, "started by another session"));
  const undoable = epochs.findLast((each) => each.state === "active" && !["revert", "refused"].includes(each.why));
  if (session.erased_ms) { put($("#acts")); return; }
  put($("#acts"), h("a", { class: "btn", href: `/-/sessions/${id}/conversation` }, "Conversation"), h("button", { class: "btn", type: "button", onclick: compactNow }, "Compact now"),
    undoable && h("button", { class: "btn", type: "button", onclick: () => revertEpoch(session, undoable.n, reload) }, `Revert epoch ${undoable.n}`),
    h("a", { class: "btn", href: `/-/api/sessions/${id}/export?form=jsonl`, download: `${id}.jsonl` }, "Export"),
    h("button", { class: "btn danger", type: "button", onclick: erase }, "Erase\u2026"));
}

async function compactNow() {
  const preview = h("p", { class: "dim" }, "What would be cut is being computed\u2026");
  ask("Compact now?", "The conversation is summarised and sent in short from the next call on. The call that runs is not touched; every original stays in the log.", "Compact", async () => {
    const made = await post(`/sessions/${id}/compact`, {});
    setTimeout(reload, 300);
    return `Sent in short from the next call on: ${int(made.tokens_before)} \u2192 ${int(made.tokens_after)} tokens.`;
  }, { extra: [preview] });
  try {
    const plan = await get(`/sessions/${id}/epochs/next`);
    put(preview, `${int(plan.tokens_before)} tokens would become about ${int(plan.tokens_after)}`, plan.cost ? `; writing the cache anew costs ${money(plan.cost.money)}` : "", ". ", h("a", { href: `/-/sessions/${id}/epochs/next` }, "What would go"));
  } catch (error) { put(preview, error.message); }
}

async function erase() {
  let text = `${count(session.calls, "call")}, their originals and summaries are deleted for good. References to them lead nowhere. Sizes, times, counts and hashes stay, and a note that it was erased.`;
  try {
    const found = await remove(`/sessions/${id}`, { dry_run: true });
    text = `${bytes(found.bytes)} of ${count(found.calls, "call")} are deleted for good. ${found.shared_with.length ? `${bytes(found.kept_bytes)} stay: ${count(found.shared_with.length, "other session")} said the same. ` : ""}References to them lead nowhere. Sizes, times, counts and hashes stay, and a note that it was erased.`;
  } catch { /* the price is not known; the text says what happens */ }
  ask("Erase this session?", text, "Erase for good", async () => { await remove(`/sessions/${id}`); location.href = "/-/"; }, { danger: true });
}

function drawStrip() {
  const client = calls ? lastKnown("client") : session.window_tokens.client, sent = calls ? lastKnown("sent") : session.window_tokens.sent;
  const sorted = (column) => (calls ? calls[column].filter((x, i) => x != null && isMain(i)).sort((a, b) => a - b) : []);
  const waits = sorted("first_ms"), added = sorted("overhead_ms");
  const saved = session.saved, next = filled?.next_epoch;
  strip($("#strip"), [
    ["Client\u2019s history", int(client), "tok", filled?.window && client > filled.window ? "more than the window" : "its newest call"],
    ["Sent upstream", int(sent), "tok", client == null || sent == null ? "" : sent < client * 0.995 ? `${percent(1 - sent / client)} held back` : "verbatim"],
    ["Saved, net", saved == null ? "\u2013" : saved.money == null ? short(saved.tokens) : money(saved.money), saved?.share == null ? "" : percent(saved.share), saved?.reason || `${money(session.spent.money)} spent in all`, saved?.is_loss ? "neg" : ""],
    ["Read from cache", percent(session.cache_read_share, 1), "", calls ? count(marks.filter((mark) => mark.kind === "miss").length, "miss", "misses") : ""],
    ["Next epoch from", int(next?.tokens ?? filled?.soft), "tok", next ? `${next.reason ?? "soft mark"}${next.away > 0 ? `, ${int(next.away)} away` : ""}` : filled ? "soft mark" : ""],
    ["Added to a call", milliseconds(part(added, 0.5)), "p50", waits.length ? `${milliseconds(part(added, 0.99))} p99; first byte ${seconds(part(waits, 0.5) / 1000)} later` : calls ? "no call has ended yet" : ""],
  ]);
}

function drawTail(fresh = -1) {
  const total = calls.n.length, rows = [];
  for (let i = total - 1; i >= Math.max(0, total - TAIL); i--) {
    const n = calls.n[i], own = marks.filter((mark) => mark.n === n);
    rows.push(h("tr", { class: n === fresh ? "fresh" : null },
      h("th", { scope: "row" }, h("a", { href: callUrl(n), "data-walk": true }, n)), h("td", { class: "t-time dim" }, clock(calls.at_ms[i])),
      h("td", {}, calls.status[i] == null ? h("span", { class: "tag" }, "running") : calls.status[i] >= 400 ? h("span", { class: "tag bad" }, calls.status[i]) : h("span", { class: "mono dim" }, calls.is_auxiliary[i] ? "our summary" : calls.is_side[i] ? "side call" : calls.epoch[i] ? `epoch ${calls.epoch[i]}` : "verbatim"), " ", own.map((mark) => sign(SIGNS[mark.kind] ?? "warn", MARKS[mark.kind] ?? mark.title))),
      h("td", { class: "num dim" }, short(calls.client[i])), h("td", { class: "num strong" }, short(calls.sent[i])), h("td", { class: "num dim" }, percent(share(calls.read[i], calls.input[i]))),
      h("td", { class: "num dim t-dur" }, short(calls.output[i])), h("td", { class: "num t-cost" }, money(calls.money[i]))));
  }
  put($("#tail"), h("table", { class: "tail" }, h("thead", {}, h("tr", {}, [["Call"], ["Time", "t-time"], ["Sent as", "t-what"], ["Client", "num"], ["Upstream", "num"], ["Cache", "num"], ["Output", "num t-dur"], ["Cost", "num t-cost"]].map(([name, look]) => h("th", { scope: "col", class: look }, name)))), h("tbody", {}, rows)));
}

function drawPause() {
  const button = $("#pause");
  button.setAttribute("aria-pressed", String(paused));
  put(button, icon(paused ? "play" : "pause"), paused ? "Resume" : "Pause");
  put($("#tail-note"), paused ? "paused; calls go on" : stream);
}

function drawMarks() {
  if (session.erased_ms) { put($("#events"), h("li", { class: "state" }, "What was said is gone for good. Sizes, times and counts are left.")); return; }
  const newest = marks.toReversed().slice(0, told);
  if (!newest.length) { put($("#events"), h("li", { class: "state" }, "Nothing but calls so far: each went out as the client wrote it.")); return; }
  put($("#events"), newest.map((mark) => h("li", {}, h("a", { class: "at nowrap", href: callUrl(mark.n), "data-walk": true }, `call ${mark.n}`), sign(SIGNS[mark.kind] ?? "warn", MARKS[mark.kind] ?? mark.kind),
    h("span", { class: "title" }, mark.title), h("span", { class: "num dim" }, mark.money ? money(mark.money) : mark.kind === "epoch" && mark.money === 0 ? "free" : ""), h("span", { class: "text" }, mark.text))),
    marks.length > told && h("li", { class: "state" }, h("button", { class: "btn small", type: "button", onclick: () => { told += MORE_EVENTS; drawMarks(); } }, `${count(marks.length - told, "more event")}`)));
}

function drawBranches(branches) {
  const most = calls?.n.at(-1) ?? session.calls;
  const place = (n) => `${((n - 1) / Math.max(1, most - 1)) * 100}%`;
  const items = branches.map((branch, i) => {
    const own = branch.own ?? [], from = own[0] ?? 1, to = own.at(-1) ?? from;
    return h("li", {}, h("a", { class: "clip", href: `/-/sessions/${id}/conversation?branch=${branch.tip}`, title: `${branch.words || "no words of a user"} (tip ${branch.tip.slice(0, 10)})` }, branch.words ? `\u201c${branch.words}\u201d` : `tip ${branch.tip.slice(0, 10)}`, branch.is_side && " (side call)"), h("span", { class: `lane ${i === 0 ? "main" : "left"}`, "aria-hidden": "true", vars: { "--a": place(from), "--z": place(to) } }),
      h("span", { class: "dim num" }, count(own.length, "call"), branch.after ? `, from call ${branch.after}` : ""));
  });
  put($("#branches"), items.length ? h("ol", { class: "lanes" }, items) : h("p", { class: "dim" }, "One conversation, no branches."));
}

async function drawPins() {
  let pins;
  if (session.erased_ms) { put($("#pins"), h("li", { class: "dim" }, "Erased with the session.")); return; }
  try { pins = await get(`/sessions/${id}/pins`); } catch (error) { put($("#pins"), h("li", { class: "dim" }, error.message)); return; }
  const items = pins.items ?? pins;
  put($("#pins"), items.length ? items.map((pin) => h("li", {}, h("span", { class: "swatch k pinned" }), h("span", {}, pin.text ?? `${pin.node.slice(0, 10)}: no branch has this message any more`, " ",
    h("button", { class: "btn small quiet", type: "button", onclick: async () => { try { await remove(`/sessions/${id}/pins`, { node: pin.node }); drawPins(); } catch (error) { say(error.message); } } }, "Unpin"))))
    : h("li", {}, h("span", { class: "swatch k pinned" }), h("span", { class: "dim" }, "No pinned message. What the user states as a rule is kept word for word anyway.")));
}

function drawKey() {
  put($("#tl-key"), h("span", {}, h("i", { class: "sw sent" }), "sent upstream"), h("span", {}, h("i", { class: "sw held" }), "held back, stored"),
    [["epoch", "epoch opened"], ["cache", "cache miss"], ["loop", "doom loop"], ["error", "error"]].map(([key, text]) => h("span", {}, sign(key), text)),
    h("span", {}, h("i", { class: "sw read" }), "read from cache"), h("span", {}, h("i", { class: "sw written" }), "mostly written again"));
  put($("#tl-x"), [["Calls", false], ["Time", true]].map(([name, isTime]) => h("button", { type: "button", "aria-pressed": String(chart.byTime === isTime), onclick: () => { chart.setAxis(isTime); drawKey(); } }, name)));
}

const showChart = () => chart.draw({ calls, marks, limits: { soft: filled?.soft, high: filled?.high } });

async function loadEpochs() {
  if (!session.epochs) return;
  try { epochs = (await get(`/sessions/${id}/epochs`, { limit: 1000 })).items; drawHead(); } catch { /* the number of epochs is known without */ }
}

async function loadTimeline() {
  const found = await get(`/sessions/${id}/timeline`, { limit: MOST_CALLS, after: Math.max(0, session.calls + session.auxiliary.calls - MOST_CALLS) });
  calls = found;
  marks = found.marks ?? [];
  if (!calls.n.length) { put($("#tail")); drawMarks(); put($("#chart"), emptyState("No call yet", "The first call appears here while it runs.")); return; }
  showChart();
  drawTail();
  drawMarks();
  drawStrip();
}

async function loadWindow() {
  if (session.erased_ms) { put($(".win"), emptyState("This session was erased", "Nothing of what filled its window is left.")); return; }
  const parts = { cells: $("#cells"), note: $("#win-note"), marks: $("#cell-key"), legend: $("#legend") };
  try {
    const found = await get(`/sessions/${id}/context`, { messages: false });
    filled = found.window;
    if (!filled) return;
    drawWindow(parts, filled);
    drawStrip();
    if (calls?.n.length) showChart();
  } catch (error) { put($("#win-note"), ""); put($(".win"), errorState(error)); }
}

async function reload() {
  try {
    const found = await get(`/sessions/${id}`);
    session = found.session;
    drawHead();
    await Promise.all([loadTimeline(), loadWindow(), loadEpochs()]);
    drawBranches(found.branches ?? []);
  } catch (error) { say(error.message); }
}

/* New calls are read from the log, at most four times a second; what the window holds, once in two seconds. */
let waiting = 0, lastRun = 0, lastWindow = 0;
async function catchUp() {
  waiting = 0;
  lastRun = Date.now();
  const last = calls?.n.length ? calls.n.at(-1) : 0, open = calls ? calls.status.findIndex((status) => status == null) : -1;
  const from = open >= 0 ? calls.n[open] - 1 : last;
  const found = await get(`/sessions/${id}/timeline`, { after: from, limit: 1000 });
  if (!calls) { calls = found; } else {
    const keep = calls.n.findIndex((n) => n > from);
    for (const name of Object.keys(calls)) if (name !== "marks") calls[name] = [...(keep < 0 ? calls[name] : calls[name].slice(0, keep)), ...found[name]];
  }
  marks = [...marks.filter((mark) => mark.n <= from), ...(found.marks ?? [])];
  if (!calls.n.length) return;
  showChart();
  drawTail(calls.n.at(-1));
  drawMarks();
  if (Date.now() - lastWindow > 2000) {
    lastWindow = Date.now();
    session = (await get(`/sessions/${id}`)).session;
    drawHead();
    await loadWindow();
  }
  drawStrip();
}

export async function show() {
  const found = first();
  ({ session } = found);
  id = session.id;
  chart = timeline($("#chart"), $("#readout"), callUrl);
  drawHead();
  drawStrip();
  drawKey();
  drawPause();
  drawBranches(found.branches ?? []);
  put($("#chart"), bones(1));
  put($("#tail"), bones(Math.min(TAIL, session.calls), 36));
  if (!session.erased_ms) put($("#events"), h("li", { class: "state" }, bones(1)));
  $("#pause").addEventListener("click", () => { paused = !paused; drawPause(); if (!paused) catchUp(); });
  keys.p = () => $("#pause").click();
  follow({ session: id }, (type) => {
    if (type === "RESET") { if (!paused) reload(); return; }
    if (!paused && !document.hidden) waiting ||= setTimeout(() => catchUp().catch((error) => put($("#tail-note"), error.message)), Math.max(0, lastRun + 250 - Date.now()));
  }, (state) => { stream = state; if (!paused) put($("#tail-note"), state); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused) catchUp().catch(() => {}); });
  await Promise.all([
    loadTimeline().then(() => drawBranches(found.branches ?? [])).catch((error) => { put($("#tail")); put($("#events")); put($("#chart"), errorState(error, reload)); }),
    loadWindow(), drawPins(), loadEpochs(),
  ]);
}
