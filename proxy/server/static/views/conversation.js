/* The conversation of a session: its turns, who said what, calls as one line. Of a long one a window is in the document. */
import { first, follow, get } from "../lib/api.js";
import { $, $$, h, put } from "../lib/dom.js";
import { clock, count, int, when } from "../lib/format.js";
import { keys } from "../lib/keys.js";
import { emptyState, icon, say } from "../lib/parts.js";
import { drawParts, roleName, shown } from "../lib/talk.js";

const PIECE = 100, MOST = 500, OVERLAP = 20;
let id, session = null, asked, branch = "", total = 0, turns = [], items = [], start = 0, busy = false, opened = false;

const stop = () => start + items.length;
const link = (name) => `/-/sessions/${id}/conversation?message=${name}#c${name}`;
const callUrl = (n) => `/-/sessions/${id}/calls/${n}`;
const turnOf = (number) => turns.find((turn) => turn.number === number);

function drawHead() {
  document.title = `Conversation \u00b7 ${session?.title || id.slice(0, 10)} \u00b7 palimpsest`;
  put($(".crumbs"), h("li", {}, h("a", { href: "/-/" }, "Sessions")), h("li", {}, h("a", { href: `/-/sessions/${id}` }, session?.title || id.slice(0, 10))), h("li", {}, "Conversation"));
  put($("#meta"), h("span", {}, count(turns.length, "turn")), h("span", {}, count(total, "message")), asked && h("span", { class: "tag warn" }, "a branch, not the newest conversation"),
    asked && h("a", { href: `/-/sessions/${id}/conversation` }, "The newest"), h("span", { class: "held-key" }, h("span", { class: "swatch k tomb" }), "faded: held back now, still stored"));
  put($("#acts"), h("button", { class: "btn", type: "button", "aria-pressed": String(opened), onclick: () => { opened = !opened; drawHead(); for (const each of $$("#talk details")) each.open = opened; } }, "Open all calls"),
    h("a", { class: "btn", href: `/-/search?session=${id}` }, "Search it"));
}

function drawTurns() {
  put($("#turns"), turns.map((turn) => h("li", { data: { turn: turn.number } }, h("a", { href: link(turn.name), onclick: (event) => { event.preventDefault(); go(turn.name, turn.start); } },
    h("span", { class: "no" }, turn.number), h("span", { class: "words" }, turn.title || "(no words of a user)"), h("span", { class: "dim num" }, int(turn.stop - turn.start))))));
}

/* The same call as in the message before: counted, so that a loop is seen. */
function listNotes(at) {
  const key = (part) => `${part.tool_name} ${JSON.stringify(part.input)}`;
  return items[at].parts.map((part) => {
    if (part.type !== "tool") return null;
    let n = 1;
    for (let i = at - 1; i >= 0 && items[i].role === "assistant"; i--) {
      const tools = items[i].parts.filter((each) => each.type === "tool");
      if (!tools.length || tools.some((each) => key(each) !== key(part))) break;
      n += tools.length;
    }
    return n > 2 ? `${n} in a row` : null;
  });
}

function drawMessage(message, at) {
  const parts = shown(message.parts), isQuiet = message.role !== "user" && parts.every((part) => part.type !== "text");
  const body = h("div", { class: "body" }, drawParts(message.parts, { session: id, open: opened, notes: listNotes(at), cut: message.is_cut }));
  const mark = h("a", { class: "anchor", href: link(message.name), "aria-label": `Link to this message, ${roleName(message.role)}, call ${message.n ?? "unknown"}`, onclick: (event) => { event.preventDefault(); history.replaceState(null, "", link(message.name)); target(message.name); } }, "#");
  const whole = message.is_cut && h("button", { class: "btn small", type: "button", onclick: async () => {
    try {
      const found = await get(`/sessions/${id}/messages/${message.id}`, { branch });
      items[items.indexOf(message)] = Object.assign(message, { parts: found.parts, is_cut: false });
      article.replaceWith(drawMessage(message, items.indexOf(message)));
    } catch (error) { say(error.message); }
  } }, "Show all of it");
  const article = h("article", { class: `msg ${message.role === "user" ? "user" : message.role === "assistant" ? "model" : "other"}${isQuiet ? " quiet" : ""}${message.held_ms && !isQuiet ? " back" : ""}`, id: `c${message.name}`, tabindex: -1 },
    h("div", { class: "msg-head" }, h("span", { class: "role" }, roleName(message.role)), message.held_ms && h("span", { class: "swatch k tomb", role: "img", "aria-label": "held back", title: `held back: since ${when(message.held_ms)} models are sent something shorter, or nothing` }),
      h("span", { class: "faint time" }, clock(message.at_ms)), message.n && h("a", { class: "faint", href: callUrl(message.n) }, `call ${message.n}`), mark), body, whole);
  return article;
}

function draw() {
  if (!total) { put($("#talk"), emptyState("Nothing was said yet", "The first message appears here with the first call.")); return; }
  const rows = [];
  items.forEach((message, i) => {
    if (!i || message.turn !== items[i - 1].turn) {
      const turn = turnOf(message.turn);
      rows.push(h("h2", { class: "turn", data: { turn: message.turn } }, `Turn ${message.turn}`, h("span", { class: "note" }, turn && turn.start < start + i ? " goes on" : ` ${when(message.at_ms)}`)));
    }
    rows.push(drawMessage(message, i));
  });
  put($("#talk"), rows);
  drawEnds();
}

function drawEnds() {
  const end = (element, left, words, load) => { element.hidden = left <= 0; put(element, left > 0 && h("button", { class: "btn", type: "button", onclick: load }, `${count(left, words)}`)); };
  end($("#before"), start, "earlier message", earlier);
  end($("#after"), total - stop(), "later message", later);
}

/* Draws anew what changed, while what is being read stays where it is. */
function keepPlace(change) {
  const seen = $$(".msg").find((each) => each.getBoundingClientRect().bottom > 80), top = seen?.getBoundingClientRect().top;
  change();
  draw();
  const same = seen && document.getElementById(seen.id);
  if (same) scrollBy(0, same.getBoundingClientRect().top - top);
}

const load = (from, limit = PIECE) => get(`/sessions/${id}/conversation`, { branch: asked, start: Math.max(0, from), limit, turns: false });
async function once(work) {
  if (busy) return;
  busy = true;
  try { await work(); } catch (error) { say(error.message); } finally { busy = false; }
}

const earlier = () => once(async () => {
  if (!start) return;
  const found = await load(start - PIECE, Math.min(PIECE, start));
  keepPlace(() => { items = [...found.items, ...items].slice(0, MOST); start = found.start; total = found.count; });
});

const later = () => once(async () => {
  if (stop() >= total) return;
  const found = await load(stop());
  keepPlace(() => { items = [...items, ...found.items]; total = found.count; const more = Math.max(0, items.length - MOST); items = items.slice(more); start += more; });
});

function target(name) {
  const found = document.getElementById(`c${name}`);
  for (const each of $$(".msg.target")) each.classList.remove("target");
  if (!found) return;
  found.classList.add("target");
  found.scrollIntoView({ block: "start" });
  found.focus({ preventScroll: true });
}

const go = (name, place) => once(async () => {
  history.replaceState(null, "", link(name));
  if (place < start || place >= stop()) {
    const found = await load(place - OVERLAP);
    ({ items, start, count: total } = found);
    draw();
  }
  target(name);
});

/* The turn that is being read is marked in the list. */
function markTurn() {
  const all = $$("#talk .turn"), isEnd = document.documentElement.scrollHeight - scrollY - innerHeight < 4;
  const seen = isEnd ? all.at(-1) : all.findLast((each) => each.getBoundingClientRect().top < 160) ?? all[0];
  for (const each of $$("#turns li")) {
    const isHere = each.dataset.turn === seen?.dataset.turn;
    if (isHere && !each.firstChild.hasAttribute("aria-current")) { each.firstChild.setAttribute("aria-current", "true"); each.scrollIntoView({ block: "nearest" }); }
    if (!isHere) each.firstChild.removeAttribute("aria-current");
  }
}

let waiting = 0;
async function catchUp() {
  waiting = 0;
  const wasAtEnd = stop() >= total, isNear = document.documentElement.scrollHeight - scrollY - innerHeight < 300;
  const found = await get(`/sessions/${id}/conversation`, { branch: asked, start: Math.max(0, total - OVERLAP), limit: PIECE });
  ({ turns } = found);
  const isSame = found.items[0]?.id === items[found.start - start]?.id; // else the client began another branch
  if (!isSame && wasAtEnd) { ({ items, start, count: total } = found); draw(); } else keepPlace(() => {
    total = found.count;
    if (wasAtEnd) items = [...items.slice(0, found.start - start), ...found.items];
  });
  drawTurns();
  drawHead();
  markTurn();
  if (wasAtEnd && isNear) scrollTo(0, document.documentElement.scrollHeight);
}

export async function show() {
  const found = first(), parameters = new URLSearchParams(location.search);
  id = location.pathname.split("/")[3];
  ({ branch, count: total, turns, items, start } = found);
  asked = found.is_newest ? "" : branch;
  const wide = matchMedia("(min-width: 1100px)"), fit = () => { $("#contents").open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
  drawHead();
  drawTurns();
  draw();
  const name = location.hash.slice(2) || (parameters.get("message") ?? "");
  if (name) target(name); else scrollTo(0, document.documentElement.scrollHeight);
  markTurn();
  addEventListener("hashchange", () => target(location.hash.slice(2)));
  addEventListener("scroll", () => requestAnimationFrame(() => {
    markTurn();
    if (scrollY < 400 && start) earlier();
    else if (document.documentElement.scrollHeight - scrollY - innerHeight < 600 && stop() < total) later();
  }), { passive: true });
  const turn = (step) => { const at = turns.findIndex((each) => each.number === Number($("#turns a[aria-current]")?.parentElement.dataset.turn)); const next = turns[Math.max(0, Math.min(turns.length - 1, at + step))]; if (next) go(next.name, next.start); };
  keys["["] = () => turn(-1);
  keys["]"] = () => turn(1);
  follow({ session: id }, () => { if (!document.hidden) waiting ||= setTimeout(() => catchUp().catch(() => {}), 1000); });
  session = (await get(`/sessions/${id}`).catch(() => null))?.session ?? null;
  drawHead();
}
