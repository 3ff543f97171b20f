/* A call: what it added and what was answered; then what went out of it, why, and how what is missing comes back. */
import { pinMessage } from "../lib/actions.js";
import { first, get, ROOT } from "../lib/api.js";
import { editRow, foldRow, classify } from "../lib/compare.js";
import { $, h, put } from "../lib/dom.js";
import { bytes, count, int, milliseconds, money, percent, seconds, share } from "../lib/format.js";
import { keys } from "../lib/keys.js";
import { bones, copy, errorState, icon, strip } from "../lib/parts.js";
import { drawStack } from "../lib/stack.js";
import { drawParts, roleName, shown } from "../lib/talk.js";

const MOST_RAW = 200_000;
let call, session = null, difference = null, view = "blocks", row = null, open = false, added = null, isLast = true;

const url = (n) => `/-/sessions/${call.session}/calls/${n}`;
const last = () => call.rounds.at(-1);
const plan = () => last()?.plan ?? null;
/* The client's own tokens: a round in which the model recalled has none of them. */
const ownTokens = () => call.rounds.toReversed().find((each) => each.plan?.tokens_client)?.plan.tokens_client ?? row?.client ?? null;

function messages() { // the client's messages after the preamble, as the format has them
  const request = call.request;
  const list = request == null ? [] : Array.isArray(request.messages) ? request.messages : Array.isArray(request.input) ? request.input : [];
  let start = 0;
  while (start < list.length && ["system", "developer"].includes(list[start]?.role)) start++;
  return { list, start };
}

function textOf(message) {
  const content = message?.content ?? message?.output ?? message?.arguments ?? "";
  const text = typeof content === "string" ? content : Array.isArray(content) ? content.map((part) => part.text ?? part.content ?? `(${part.type})`).map((x) => (typeof x === "string" ? x : JSON.stringify(x))).join("\n") : JSON.stringify(content);
  const names = (message?.tool_calls ?? []).map((each) => `\u2192 calls ${each.function?.name}`);
  return [text, ...names].filter(Boolean).join("\n");
}

function explain() {
  const found = plan();
  if (call.missing) return call.missing;
  if (!last()) return "No request has gone upstream for this call yet.";
  if (!found || found.rung === "original") {
    const why = found?.reason ? ` Why: ${found.reason}.` : "";
    return `The upstream received the client\u2019s own bytes, unchanged.${why}`;
  }
  const cut = ownTokens() != null ? `${int(ownTokens())} tokens came in, ${int(found.tokens_upstream)} went out. ` : "";
  const how = { epoch: "It was sent under the epoch that was open, with all that is new behind it.", plan: "This call opened a new epoch.", minimal: "Planning an epoch took too long, so a minimal one was sent." }[found.rung] ?? "";
  return `${cut}${how}${found.reason ? ` (${found.reason})` : ""}`;
}

function drawHead() {
  document.title = `Call ${call.n} \u00b7 ${session?.title || call.session.slice(0, 10)} \u00b7 palimpsest`;
  put($(".crumbs"), h("li", {}, h("a", { href: "/-/" }, "Sessions")), h("li", {}, h("a", { href: `/-/sessions/${call.session}` }, session?.title || call.session.slice(0, 10))), h("li", {}, `Call ${call.n}`));
  put($("h1"), `Call ${call.n}${plan()?.rung === "plan" ? " opened an epoch" : ""}`);
  put($("#lede"), explain());
  put($("#acts"), row && !row.is_auxiliary && !row.is_side && h("a", { class: "btn", href: `/-/sessions/${call.session}/conversation?message=${call.n}#c${call.n}` }, "In the conversation"),
    call.n > 1 && h("a", { class: "btn", href: url(call.n - 1), "aria-label": `Previous call, ${call.n - 1}` }, icon("prev"), call.n - 1), !isLast && h("a", { class: "btn", href: url(call.n + 1), "aria-label": `Next call, ${call.n + 1}` }, call.n + 1, icon("next")));
}

/* As long before the difference is there as with it, so that the strip has its height. */
function tellUnchanged(found) {
  const { list, start } = messages();
  if (difference ? !difference.is_modified : found?.rung === "original") return "nothing was changed";
  if (difference) return `${int(difference.kept)} of ${int(difference.messages)} messages unchanged`;
  return found && list.length ? `\u2026 of ${int(list.length - start)} messages unchanged` : "";
}

function drawStrip() {
  const end = last(), usage = end?.usage, found = plan();
  const input = usage == null ? null : usage.input, output = usage?.output, added = call.rounds[0]?.timings?.overhead_ms;
  strip($("#strip"), [
    ["Upstream answered", end?.status ? String(end.status) : "\u2013", end?.completeness && end.completeness !== "complete" ? end.completeness : "", end?.timings ? `${added == null ? "" : `sent after ${milliseconds(added)}, `}first byte ${seconds(end.timings.first_byte_ms / 1000)}, all in ${seconds(end.timings.total_ms / 1000)}` : "not yet", end?.status >= 400 ? "neg" : ""],
    ["Sent as", !row ? "\u2013" : row.is_auxiliary ? "our summary" : row.epoch ? h("a", { href: `/-/sessions/${call.session}/epochs/${row.epoch}` }, `epoch ${row.epoch}`) : "verbatim", "", `${call.wire.replaceAll("_", " ")}, mode ${call.mode}`],
    ["Edits", difference ? String(difference.changes.length) : "\u2013", "", tellUnchanged(found)],
    ["Cache", percent(share(row?.read ?? usage?.cached, row?.input ?? input)), "read", row?.written != null ? `${int(row.written)} written` : ""],
    ["Cost", row ? money(row.money) : "\u2013", "", row?.saved_money != null ? `${money(row.money + row.saved_money)} without the proxy` : ""],
    ["Tokens", int(input), "in", `${row?.rounds > 1 ? `${int(row.input)} in all ${row.rounds} rounds, ` : ""}${int(output)} out${end?.finish ? `, ${end.finish}` : ""}`],
  ]);
}

/* Messages with a head each; what is long is one click away. */
const spoken = (messages, options) => messages.map((message) => h("li", {}, h("div", { class: "blk-head" }, h("span", { class: "role" }, roleName(message.role), message.sender && ` (${message.sender})`)), h("div", { class: "body" }, drawParts(message.parts, options))));

function drawSpoken() {
  const said = (list) => list.filter((message) => shown(message.parts).length), fresh = said(added.added), answer = said(added.answer), end = last();
  put($("#new-note"), added.before ? h("a", { href: `/-/sessions/${call.session}/conversation?message=${call.n}#c${call.n}` }, `${count(added.before, "message")} before`) : "");
  const isLong = fresh.length > 6;
  put($("#added"), added.missing ? h("li", { class: "dim" }, added.missing) : !fresh.length ? h("li", { class: "dim" }, "Nothing: the client sent no message that can be shown.")
    : [...spoken(fresh.slice(0, -1), { plain: false, open: !isLong }), ...spoken(fresh.slice(-1), { open: true })]);
  put($("#ans-note"), end?.finish ? `finished with ${end.finish}` : "");
  put($("#answer"), added.error && h("li", {}, h("p", { class: "neg" }, added.error)), answer.length ? spoken(answer, { plain: true, open: true })
    : !added.error && h("li", { class: "dim" }, !end?.completeness ? "Not yet: the call is under way, or was cut off." : end.received_size ? "What came has no message that can be read; the bytes are below, under Rounds." : "No answer came."));
}

function tellRound(round, hidden) {
  if (hidden) return round.status >= 400 ? "The upstream refused what was sent" : "The model asked for what was held back";
  if (!round.completeness) return "No answer yet";
  return round.status ? "The answer that the client got" : "No answer came";
}

function drawRounds() {
  put($("#ro-note"), call.rounds.length > 1 ? `${call.rounds.length}, of which ${call.rounds.length - 1} hidden from the client` : "one request");
  put($("#rounds"), call.rounds.map((each, i) => {
    const hidden = i < call.rounds.length - 1;
    return h("li", { class: hidden ? "hiddenround" : null }, h("span", { class: "bead" }, i + 1),
      h("span", {}, h("span", { class: "strong" }, tellRound(each, hidden)), " ", hidden && h("span", { class: "tag held" }, "hidden")),
      h("span", { class: "line2" }, `${each.status || "open"} from ${each.upstream}`, each.usage ? `, ${int(each.usage.input)} in, ${int(each.usage.output)} out` : "", each.error ? `: ${each.error}` : "", " ",
        h("a", { href: `${ROOT}/sessions/${call.session}/exchanges/${call.n}/sent?k=${each.k}`, download: `call-${call.n}-${each.k}-sent.json` }, "sent"), " \u00b7 ", h("a", { href: `${ROOT}/sessions/${call.session}/exchanges/${call.n}/received?k=${each.k}`, download: `call-${call.n}-${each.k}-received` }, `received (${bytes(each.received_size)})`)));
  }));
}

function flows() {
  const found = plan(), client = ownTokens(), sent = found?.tokens_upstream ?? row?.sent;
  if (client == null || sent == null) return null;
  const byKind = new Map();
  let gone = 0, instead = 0;
  for (const change of difference?.changes ?? []) {
    const was = change.client.reduce((total, side) => total + side.tokens, 0), is = change.sent.reduce((total, side) => total + side.tokens, 0), { kind, name } = classify(change);
    const sum = byKind.get(kind) ?? [change.client.length ? "gone" : kind, name, 0, kind, 0];
    sum[2] += was;
    sum[4] += is;
    byKind.set(kind, sum);
    gone += was;
    instead += is;
  }
  const kept = Math.max(0, Math.min(client - gone, sent - instead));
  return { client, sent, parts: [...byKind.values(), ["assistant", "unchanged", Math.max(0, client - gone), "assistant", kept || Math.max(0, sent - instead)]] };
}

function drawFlows() {
  const found = flows();
  if (!found) { put($("#stack"), h("p", { class: "dim" }, "The tokens of this call were not counted: it needed no decision.")); put($("#st-key")); return; }
  drawStack($("#stack"), found.parts, found.client, found.sent);
  put($("#st-key"), [["assistant", "unchanged"], ["sum1", "ledger, summaries"], ["tomb", "tombstones"], ["file", "file references"], ["pinned", "added"]].map(([kind, text]) => h("span", {}, h("i", { class: `swatch k ${kind}` }), text)));
}

function foldedMessages(from, to) {
  const { list, start } = messages();
  return list.slice(start + from, start + to).map((message) => h("li", {}, h("span", { class: "dim" }, message.role ?? message.type), h("span", { class: "clip" }, textOf(message).slice(0, 300) || "(empty)"), h("span", { class: "num dim" }, `${int(textOf(message).length)} characters`)));
}

/* The newest message is never folded away. */
function newestRow() {
  const newest = added?.added.at(-1);
  return h("div", { class: "cmp-row newest" }, h("div", { class: "blk-head" }, h("span", { class: "role" }, newest ? roleName(newest.role) : "Newest message"), h("span", { class: "dim" }, "the newest message, unchanged")),
    newest ? h("div", { class: "body" }, drawParts(newest.parts, { open: true })) : h("p", { class: "dim" }, call.missing || "It cannot be shown in parts; Raw has its bytes."));
}

async function drawRaw() {
  const load = async (path) => { const response = await fetch(path, { credentials: "same-origin" }); if (!response.ok) return `(${response.status}: not there)`; const text = await response.text(); return text.length > MOST_RAW ? `${text.slice(0, MOST_RAW)}\n\u2026 ${int(text.length)} characters in all` : text; };
  const base = `${ROOT}/sessions/${call.session}/exchanges/${call.n}`;
  const head = `${call.method} ${call.target}\n${call.headers.map(([name, value]) => `${name}: ${value}`).join("\n")}\n\n`;
  const [held, sent] = await Promise.all([load(`${base}/held`), load(`${base}/sent`)]);
  const own = call.request_base64 ?? held;
  return h("div", { class: "cmp-row raw" }, h("div", { class: "side" }, h("pre", { class: "txt", tabindex: 0 }, head + own)), h("div", { class: "gut" }), h("div", { class: "side" }, h("pre", { class: "txt", tabindex: 0 }, sent)));
}

async function drawCompare() {
  const found = plan();
  put($("#cmp"), h("div", { class: "cmp-head" },
    h("div", {}, h("h2", {}, "Client sent"), h("p", { class: "tiny dim" }, `${int(ownTokens())} tokens, ${bytes(call.request_size)}`)), h("div", { class: "gut" }),
    h("div", {}, h("h2", {}, "Upstream received"), h("p", { class: "tiny dim" }, `${int(found?.tokens_upstream ?? row?.sent)} tokens`))));
  if (view === "raw") { $("#cmp").append(await drawRaw()); return; }
  if (call.missing) { $("#cmp").append(h("div", { class: "state" }, h("h2", {}, "This call was erased"), h("p", {}, call.missing))); return; }
  const total = messages().list.length - messages().start;
  if (!difference?.is_modified) {
    if (total > 1) $("#cmp").append(foldRow("Messages before the newest, as the client sent them", `${int(total - 1)} unchanged`, "", () => foldedMessages(0, total - 1)));
    $("#cmp").append(newestRow());
    if (open) $("#cmp .fold button")?.click();
    return;
  }
  let at = 0;
  const rows = [];
  const fold = (from, to) => { if (to > from) rows.push(foldRow(from === 0 ? "Messages at the beginning" : to === difference.messages - 1 ? "Newer messages, verbatim" : "Messages between", count(to - from, "unchanged message"), "", () => foldedMessages(from, to))); };
  for (const change of difference.changes) { fold(at, change.start); rows.push(editRow(change, view, (place) => pinMessage(session ?? { id: call.session }, call.n, place))); at = change.stop; }
  if (at < difference.messages) { fold(at, difference.messages - 1); rows.push(newestRow()); }
  for (const member of difference.members) rows.push(h("div", { class: "cmp-row add" }, h("div", { class: "side" }, h("pre", { class: "txt" }, member.client == null ? "(not sent by the client)" : member.client.slice(0, 4000))), h("div", { class: "gut" }, h("span", { class: "swatch k tools" }), h("span", {}, member.name)), h("div", { class: "side over" }, h("pre", { class: "txt" }, member.sent == null ? "(not sent)" : member.sent.slice(0, 4000)))));
  $("#cmp").append(...rows);
  if (open) for (const button of $("#cmp").querySelectorAll(".fold button")) button.click();
}

function drawTools() {
  put($("#view"), [["blocks", "Blocks"], ["diff", "Diff"], ["raw", "Raw"]].map(([value, name]) => h("button", { type: "button", "aria-pressed": String(view === value), onclick: () => { view = value; drawTools(); drawCompare(); } }, name)));
  put($("#curl"), icon("copy"), "Copy as curl, without the key");
  $("#unchanged").setAttribute("aria-pressed", String(open));
}

function curl() {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const left = /^(host|content-length|authorization|x-api-key|api-key|cookie|connection|accept-encoding|transfer-encoding|x-palimpsest-.*)$/i;
  const headers = call.headers.filter(([name]) => !left.test(name)).map(([name, value]) => ` \\\n  -H ${quote(`${name}: ${value}`)}`).join("");
  return `curl ${quote(`${location.origin}${call.target}`)}${headers} \\\n  -H "authorization: Bearer $API_KEY" \\\n  -d ${quote(JSON.stringify(call.request ?? null))}`;
}

/* What is drawn never moves what is seen: each part is uncovered behind those above it, and bones stand behind it as long as another one is loading. */
function uncover(selectors, isLastPart = false) {
  for (const each of selectors) $(each).hidden = false;
  $("#wait")?.replaceWith(isLastPart ? "" : h("div", { id: "wait" }, bones(4)));
}

export async function show() {
  call = first();
  uncover([]);
  $("#curl").addEventListener("click", () => copy(curl(), "Copied. The key is left as $API_KEY."));
  $("#unchanged").addEventListener("click", () => { open = !open; drawTools(); drawCompare(); });
  keys.o = () => (document.activeElement?.closest(".cmp-row")?.querySelector("[data-orig]") ?? $("[data-orig]"))?.click();
  keys["["] = () => { if (call.n > 1) location.href = url(call.n - 1); };
  keys["]"] = () => { if (!isLast) location.href = url(call.n + 1); };
  const quiet = (work) => work.catch(() => null), held = (path) => get(`/sessions/${call.session}/exchanges/${call.n}/${path}`).catch((error) => error);
  const told = held("messages"), changed = held("diff");
  const [found, line] = await Promise.all([quiet(get(`/sessions/${call.session}`)), quiet(get(`/sessions/${call.session}/timeline`, { after: call.n - 1, limit: 2 }))]);
  session = found?.session ?? null;
  isLast = !line || line.n.at(-1) <= call.n;
  if (line?.n[0] === call.n) row = Object.fromEntries(Object.entries(line).filter(([, column]) => Array.isArray(column)).map(([name, column]) => [name, column[0]]));
  drawHead();
  drawStrip();
  uncover([".head", "#strip"]);
  const spokenOf = await told;
  if (spokenOf instanceof Error) put($("#added"), h("li", {}, errorState(spokenOf)));
  else { added = spokenOf; drawSpoken(); }
  uncover([".callpair"]);
  const diff = await changed;
  if (!(diff instanceof Error)) difference = diff;
  uncover([".desk", ".bar2", "#cmp"], true);
  drawStrip();
  drawRounds();
  drawTools();
  drawFlows();
  if (!(diff instanceof Error) || call.missing || !last()) await drawCompare();
  else put($("#cmp"), errorState(diff));
  new ResizeObserver(drawFlows).observe($("#stack"));
}
