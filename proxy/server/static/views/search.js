/* Search: was it ever said, where, and how it comes back. */
import { first, get } from "../lib/api.js";
import { $, h, put } from "../lib/dom.js";
import { count, int, when } from "../lib/format.js";
import { copy, emptyState, errorState } from "../lib/parts.js";

const KINDS = { message: "message", broadcast: "broadcast", output: "tool output", reasoning: "reasoning", arguments: "arguments of calls", ledger: "ledger", summary: "summary", outline: "outline" };
const LOOKS = { output: "output", summary: "sum1", ledger: "tomb", outline: "file", arguments: "assistant", reasoning: "assistant" };
const SEEN = { sent: ["sent", "The model sees it word for word"], in_short: ["in short", "A text of ours stands in its place; the original is stored"], not_sent: ["not sent", "The newest call has nothing of it; it is stored"] };
const ROLES = ["user", "assistant", "tool"];
const SINCE = [["", "Ever"], ["1d", "Last day"], ["7d", "Last week"], ["30d", "Last month"]];
const chosen = { kind: new Set(), role: new Set(), since: "", session: "" };
const titles = new Map();
let asking = 0;

function mark(text, words) {
  if (!words.length) return [text];
  const pattern = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
  return text.split(pattern).map((part, i) => (i % 2 ? h("mark", {}, part) : part));
}

/* The titles are there before the results are shown, so that nothing jumps. */
async function loadTitles(ids) {
  await Promise.all([...new Set(ids)].filter((id) => !titles.has(id)).map(async (id) => {
    const found = await get(`/sessions/${id}`).catch(() => null);
    titles.set(id, found?.session.title || found?.session.name || id.slice(0, 10));
  }));
}

function drawHit(hit, words) {
  const title = h("a", { href: `/-/sessions/${hit.session}` }, titles.get(hit.session));
  const look = LOOKS[hit.kind] ?? (hit.role === "user" ? "user" : "assistant");
  const [seen, what] = SEEN[hit.visibility] ?? [];
  return h("article", { class: hit.visibility === "sent" || !seen ? "hit" : "hit back" },
    h("div", { class: "hit-head" }, h("span", { class: `swatch k ${look}` }), h("span", {}, hit.kind === "message" ? hit.role : KINDS[hit.kind] ?? hit.kind), h("a", { class: "main", href: `/-/sessions/${hit.session}/calls/${hit.n}`, "data-walk": true }, `call ${hit.n}`), h("span", { class: "dim" }, hit.tool || hit.sender || ""), h("span", { class: "dim" }, when(hit.at_ms)), seen && h("span", { class: hit.visibility === "sent" ? "tag" : "tag held", title: what }, seen)),
    h("pre", { class: hit.role === "tool" || hit.kind === "arguments" ? "txt" : "txt prose" }, mark(hit.snippet, words)),
    h("div", { class: "hit-foot" }, title, h("a", { class: "btn small", href: `/-/api/refs/${hit.reference}?page=all` }, "Show original"), h("button", { class: "btn small quiet mono", type: "button", onclick: () => copy(`ref:${hit.reference}`, `Copied ref:${hit.reference}`) }, `ref:${hit.reference}`)));
}

function draw(answer, text) {
  const words = text.includes('"') ? text.split('"').map((part) => part.trim()).filter(Boolean) : text.split(/\s+/).filter((word) => word.length > 1);
  const sessions = new Set(answer.hits.map((hit) => hit.session)).size;
  put($("#sum"), h("span", {}, `${count(answer.hits.length, "result")} in ${count(sessions, "session")}`), !answer.is_complete && h("span", { class: "tag warn" }, "the time limit ended the search"), answer.behind > 0 && h("span", { class: "faint" }, `${int(answer.behind)} newer records are not indexed yet`));
  if (!answer.hits.length) { put($("#hits"), emptyState(`Nothing found for \u201c${text}\u201d`, "Try fewer or other words, another kind, or a longer time.")); return; }
  put($("#hits"), answer.hits.map((hit) => drawHit(hit, words)));
}

async function load() {
  const text = $("#q").value.trim(), mine = ++asking;
  const parameters = { q: text, session: chosen.session, kind: [...chosen.kind].join(","), role: [...chosen.role].join(","), since: chosen.since, limit: 50 };
  const shown = new URLSearchParams(Object.entries({ q: text, session: chosen.session }).filter(([, value]) => value));
  history.replaceState(null, "", shown.size ? `?${shown}` : location.pathname);
  if (!text) {
    put($("#sum"), "");
    put($("#hits"), emptyState("Everything ever said is here", "Search what clients sent, what tools returned, what models answered, in all sessions, held back or not. Words, a \u201cphrase\u201d, a file name, an identifier."));
    return;
  }
  try {
    const answer = await get("/search", parameters);
    await loadTitles(answer.hits.map((hit) => hit.session));
    if (mine === asking) draw(answer, text);
  } catch (error) { if (mine === asking) put($("#hits"), errorState(error, load)); }
}

function drawOptions() {
  const box = (label, type, group, checked, act) => h("label", {}, h("input", { type, name: group, checked: checked || null, onchange: act }), label);
  const toggle = (set, value) => (event) => { if (event.target.checked) set.add(value); else set.delete(value); load(); };
  put($("#opts"),
    chosen.session && h("fieldset", {}, h("legend", {}, "Where"), box("Only this session", "checkbox", "session", true, () => { chosen.session = ""; drawOptions(); load(); })),
    h("fieldset", {}, h("legend", {}, "Role"), ROLES.map((role) => box(role, "checkbox", role, chosen.role.has(role), toggle(chosen.role, role)))),
    h("fieldset", {}, h("legend", {}, "Kind"), Object.entries(KINDS).map(([kind, label]) => box(label, "checkbox", kind, chosen.kind.has(kind), toggle(chosen.kind, kind)))),
    h("fieldset", {}, h("legend", {}, "Time"), SINCE.map(([value, label]) => box(label, "radio", "since", chosen.since === value, () => { chosen.since = value; load(); }))));
}

export async function show() {
  const parameters = new URLSearchParams(location.search), answer = first();
  $("#q").value = parameters.get("q") ?? "";
  chosen.session = parameters.get("session") ?? "";
  drawOptions();
  if (answer?.hits) await loadTitles(answer.hits.map((hit) => hit.session));
  if (answer?.hits) draw(answer, $("#q").value.trim()); else await load();
  let wait = 0;
  $("#q").addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(load, 200); });
  $("#form").addEventListener("submit", (event) => { event.preventDefault(); load(); });
  const wide = matchMedia("(min-width: 1000px)"), fit = () => { $("#narrow").open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
}
