/* All sessions: what runs, how much is held back, what that saves, what went wrong. */
import { first, follow, get } from "../lib/api.js";
import { $, h, put } from "../lib/dom.js";
import { ago, count, int, money, percent, share, short, when } from "../lib/format.js";
import { duo, emptyState, errorState, sign, strip } from "../lib/parts.js";
import { virtualRows } from "../lib/rows.js";

const PAGE = 200;
const ROW = 60;
const COLUMNS = [
  ["title", "Session", "c-title", (x) => x.title.toLowerCase()], ["model", "Model", "c-model", (x) => x.model], ["calls", "Calls", "c-calls num", (x) => x.calls],
  ["tokens", "Client \u2192 upstream, tokens", "c-tok", (x) => x.client_tokens ?? -1], ["spent", "Spent", "c-spent num", (x) => x.spent?.money ?? 0], ["saved", "Saved", "c-saved num", (x) => x.saved?.money ?? 0],
  ["cache", "Cache", "c-hit num", (x) => x.cache_read_share ?? -1], ["epochs", "Epochs", "c-comp num", (x) => x.epochs], ["errors", "Errors", "c-err num", (x) => x.errors],
  ["last", "Last call", "c-when num", (x) => x.last_ms],
];
const chosen = { status: "", model: "", client: "" };
let sessions = [], next = null, sorted = { key: "last", down: true }, rows = null, asking = 0, loading = false;

/* The filter: words, and `model:`, `client:`, `status:` with a beginning, beside the chosen facets. */
function read() {
  const asked = { ...chosen }, words = [];
  for (const word of $("#filter").value.trim().split(/\s+/)) {
    const [, key, value] = /^(model|client|status):(.+)$/.exec(word) ?? [];
    if (key && (key !== "status" || ["live", "idle"].includes(value))) asked[key] = value; else words.push(word);
  }
  return { q: words.join(" "), ...asked };
}

const held = (x) => (x.client_tokens ? 1 - (x.sent_tokens ?? 0) / x.client_tokens : null);

function drawSaved(saved) {
  if (saved == null) return h("span", { class: "plain faint" }, "\u2013");
  if (saved.money == null) return h("span", { class: "plain faint" }, "no price");
  return h("span", { title: saved.reason || null }, money(saved.money));
}

function drawRow(x) {
  const back = held(x);
  return h("tr", { data: { key: x.id } },
    h("th", { scope: "row", class: "c-title" }, h("span", { class: "who" },
      h("span", { class: `dot ${x.status}`, role: "img", "aria-label": x.status }),
      h("a", { class: "clip", href: `/-/sessions/${x.id}`, "data-walk": true, title: x.title }, x.erased_ms ? `erased on ${when(x.erased_ms)}` : x.title || x.name || "untitled"),
      h("span", { class: "sub clip" }, [x.client, h("span", { class: "mono" }, x.id.slice(0, 10)), x.strategy && x.strategy !== "epochs" && x.strategy, x.mode === "observe" && "observe: only recorded"]
        .filter(Boolean).flatMap((part, i) => (i ? [" \u00b7 ", part] : [part]))))),
    h("td", { class: "c-model" }, h("div", { class: "dim clip" }, x.model)),
    h("td", { class: "c-calls num" }, int(x.calls)),
    h("td", { class: "c-tok" }, h("span", { class: "flow" },
      h("span", { class: "nums" }, h("span", {}, short(x.client_tokens), " \u2192 ", h("b", {}, short(x.sent_tokens))), h("span", {}, back == null ? "not counted" : back < 0.005 ? "verbatim" : `${percent(back)} held back`)),
      x.client_tokens ? duo(x.client_tokens, x.sent_tokens ?? 0) : h("span", { class: "duo none" }))),
    h("td", { class: "c-spent num dim" }, x.spent?.money == null ? h("span", { class: "faint" }, x.spent?.tokens ? "no price" : "\u2013") : money(x.spent.money)),
    h("td", { class: `c-saved num strong ${x.saved?.is_loss ? "neg" : ""}` }, drawSaved(x.saved)),
    h("td", { class: "c-hit num dim" }, percent(x.cache_read_share)),
    h("td", { class: "c-comp num dim" }, x.epochs || h("span", { class: "faint" }, "0")),
    h("td", { class: "c-err num" }, x.errors ? h("span", { class: "tag bad" }, sign("error"), int(x.errors)) : h("span", { class: "faint" }, "0")),
    h("td", { class: "c-when num dim" }, ago(x.last_ms)));
}

function drawHead() {
  return h("thead", {}, h("tr", {}, COLUMNS.map(([key, name, look]) =>
    h("th", { scope: "col", class: look, "aria-sort": sorted.key === key ? (sorted.down ? "descending" : "ascending") : null }, h("button", { type: "button", onclick: () => sortBy(key) }, name)))));
}

async function sortBy(key) {
  sorted = { key, down: sorted.key === key ? !sorted.down : !["title", "model"].includes(key) };
  draw();
  while (next && sessions.length < 2000) await more(); // what is not here yet cannot be sorted
}

function order() {
  const [, , , read] = COLUMNS.find(([key]) => key === sorted.key);
  return [...sessions].sort((a, b) => { const x = read(a), y = read(b); return (x < y ? -1 : x > y ? 1 : b.seq - a.seq) * (sorted.down ? -1 : 1); });
}

function draw() {
  put($("#count"), next ? `the newest ${int(sessions.length)} sessions` : count(sessions.length, "session"));
  if (!sessions.length) {
    const isNarrowed = $("#filter").value || Object.values(chosen).some(Boolean);
    put($("#list"), isNarrowed ? emptyState("No session matches", "Remove a word or a facet. Escape clears the filter.")
      : emptyState("No session yet", "Point a client at the proxy. Nothing else in it has to change; the first call appears here while it runs.", `palimpsest run -- claude\n\n# or, for any client\nexport OPENAI_BASE_URL=${location.origin}/v1`));
    rows = null;
    return;
  }
  const body = h("tbody", {});
  put($("#list"), h("table", {}, drawHead(), body));
  rows = virtualRows(window, body, COLUMNS.length, ROW, drawRow);
  rows.show(order());
}

function drawFacets() {
  const distinct = (read) => [...new Set(sessions.map(read).filter(Boolean))].sort();
  const kinds = [["Status", "status", ["live", "idle"]], ["Model", "model", distinct((x) => x.model)], ["Client", "client", distinct((x) => x.client.split(" ")[0])]];
  put($("#facets"), kinds.filter(([, key, values]) => values.length > 1 || chosen[key]).map(([name, key, values]) => h("div", { class: "facet", role: "group", "aria-label": name }, h("span", { class: "name" }, name),
    values.map((value) => h("button", { class: "chip", type: "button", "aria-pressed": String(chosen[key] === value), onclick: () => { chosen[key] = chosen[key] === value ? "" : value; load(); } },
      value === "live" && h("span", { class: "dot live" }), value)))));
}

/* Of calls that were checked with the client's own request: how often that had the same answer. */
function drawShadow(shadow) {
  if (shadow == null) return [];
  const { agreement, same, arguments: others, text, other } = shadow.total;
  const compared = same + others + text + other;
  const interval = agreement == null ? "nothing could be compared" : `${percent(agreement.low)} to ${percent(agreement.high)}, of ${count(compared, "checked call")}`;
  return [["Same answer", agreement == null ? "\u2013" : percent(agreement.share), "", interval]];
}

function drawStrip(savings) {
  const sum = (read) => sessions.reduce((total, x) => total + (read(x) ?? 0), 0);
  const client = sum((x) => x.client_tokens), sent = sum((x) => x.sent_tokens), calls = sum((x) => x.calls), errors = sum((x) => x.errors);
  const told = sessions.filter((x) => x.cache_read_share != null && x.sent_tokens);
  const read = share(told.reduce((total, x) => total + x.cache_read_share * x.sent_tokens, 0), told.reduce((total, x) => total + x.sent_tokens, 0));
  const total = savings?.estimate;
  strip($("#strip"), [
    ["Live now", int(sessions.filter((x) => x.status === "live").length), `of ${int(sessions.length)}`, next ? "the newest sessions" : "sessions on record"],
    ["Client sent", short(client), "tok", `${count(calls, "call")}${next ? ` of the newest ${int(sessions.length)} sessions` : ""}`],
    ["Upstream received", short(sent), "tok", client ? `${percent(1 - sent / client)} held back, all of it stored` : "nothing counted yet"],
    ["Saved", total?.money == null ? (total ? short(total.tokens) : "\u2013") : money(total.money), total?.share == null ? "" : percent(total.share), savings == null ? "" : total == null ? "nothing was managed yet" : total.losing ? `net; ${count(total.losing, "session")} at a loss` : "net, over all sessions", total?.money < 0 ? "neg" : ""],
    ["Read from cache", percent(read, 1), "", "of upstream tokens"],
    ["Errors", int(errors), "", "calls that were refused, failed or broke off"],
    ...drawShadow(savings?.shadow),
  ]);
}

async function load() {
  const mine = ++asking;
  drawFacets();
  try {
    const page = await get("/sessions", { limit: PAGE, ...read() });
    if (mine !== asking) return;
    sessions = page.items;
    next = page.next;
    draw();
    drawFacets();
  } catch (error) { if (mine === asking) put($("#list"), errorState(error, load)); }
}

async function more() {
  if (!next || loading) return;
  loading = true;
  try {
    const mine = asking, page = await get("/sessions", { limit: PAGE, cursor: next, ...read() });
    if (mine !== asking) return;
    sessions = [...sessions, ...page.items];
    next = page.next;
    if (rows) rows.show(order());
    put($("#count"), next ? `the newest ${int(sessions.length)} sessions` : count(sessions.length, "session"));
  } finally { loading = false; }
}

/* A session with a new call is read again, at most one request a second however many calls there are. */
const stale = new Set();
let timer = 0;
async function refresh() {
  timer = 0;
  const ids = [...stale].slice(0, 20);
  stale.clear();
  if (Object.values(read()).some(Boolean)) { await load(); return; } // only the server knows what matches
  for (const id of ids) {
    try {
      const { session } = await get(`/sessions/${id}`);
      sessions = [session, ...sessions.filter((x) => x.id !== id)];
    } catch { /* it was erased, or is not in the log yet: the next call shows it */ }
  }
  if (rows && sessions.length) rows.show(order()); else draw();
}

export async function show() {
  const page = first();
  sessions = page.items;
  next = page.next;
  drawStrip(null);
  drawFacets();
  draw();
  $("#filter").addEventListener("input", () => { clearTimeout(show.wait); show.wait = setTimeout(load, 200); });
  $("#finder").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("scroll", () => { if (document.documentElement.scrollHeight - scrollY - innerHeight < 1200) more(); }, { passive: true });
  follow({}, (type, event) => {
    if (type === "RESET") { load(); return; }
    if (!event.session) return;
    stale.add(event.session);
    timer ||= setTimeout(refresh, 1000);
  });
  try { drawStrip(await get("/savings")); } catch { /* the strip says that nothing is known */ }
}
