/* An epoch: what went, what it cost, what it has paid back so far; or the next one, before it opens. */
import { revertEpoch } from "../lib/actions.js";
import { first, get, getText, post } from "../lib/api.js";
import { $, h, put } from "../lib/dom.js";
import { clock, count, int, money, percent, short } from "../lib/format.js";
import { references } from "../lib/compare.js";
import { ask, copy, emptyState, errorState, sign, strip } from "../lib/parts.js";

const KINDS = { kept: ["user", "kept"], tombstone: ["tomb", "tombstone"], file: ["file", "file reference"], shortened: ["tomb", "shortened"], detached: ["assistant", "detached"], written: ["sum1", "ledger, summary or memory"] };
let epoch, session = null, id;

const isNext = () => location.pathname.endsWith("/next");
const price = (cost) => (cost == null ? "\u2013" : cost.money == null ? `${short(cost.tokens)} tok` : money(cost.money));

function drawHead() {
  const name = isNext() ? "The next epoch" : `Epoch ${epoch.n}`;
  document.title = `${name} \u00b7 ${session?.title || id.slice(0, 10)} \u00b7 palimpsest`;
  put($(".crumbs"), h("li", {}, h("a", { href: "/-/" }, "Sessions")), h("li", {}, h("a", { href: `/-/sessions/${id}` }, session?.title || id.slice(0, 10))), h("li", {}, name));
  put($("h1"), isNext() ? "What the next epoch would cut" : `Epoch ${epoch.n}`);
  const cut = `${int(epoch.tokens_before)} \u2192 ${int(epoch.tokens_after)} tokens. `;
  put($("#lede"), cut, epoch.explanation ?? "", isNext() ? " Nothing of this is stored or sent yet." : "");
  put($("#acts"), !isNext() && h("a", { class: "btn", href: `/-/sessions/${id}/epochs/next` }, "Preview the next"), !isNext() && session && epoch.state === "active" && h("button", { class: "btn", type: "button", onclick: () => revertEpoch(session, epoch.n, () => location.reload()) }, "Revert"),
    isNext() && h("button", { class: "btn", type: "button", onclick: () => ask("Compact now?", "The conversation is sent in short from the next call on. Every original stays in the log.", "Compact", async () => { const made = await post(`/sessions/${id}/compact`, {}); return `${int(made.tokens_before)} \u2192 ${int(made.tokens_after)} tokens from the next call on.`; }) }, "Compact now"));
}

function drawStrip() {
  const paid = epoch.paid_back;
  strip($("#strip"), [
    ["Before", int(epoch.tokens_before), "tok", "the request as it would have gone"],
    ["After", int(epoch.tokens_after), "tok", epoch.tokens_before ? `${percent(1 - epoch.tokens_after / epoch.tokens_before)} held back` : ""],
    ["It cost", price(epoch.cost), "", "to write the cache anew"],
    isNext() ? ["It would save", price(epoch.saving), "", "with each later call"] : ["Paid back so far", price(paid), "", paid?.calls != null ? `by ${count(paid.calls, "call")}` : ""],
    ["State", epoch.state ?? (isNext() ? "preview" : "\u2013"), "", epoch.strategy ? `strategy ${epoch.strategy}` : ""],
    ["References", int(epoch.references?.length ?? 0), "", "each original is one click away"],
  ]);
}

const foreseen = (from, to) => (epoch.diff ?? []).filter((change) => change.start <= to && change.stop > from).flatMap((change) => change.client).map((side) => `[${side.role}] ${[side.text, ...side.calls.map((name) => `\u2192 ${name}`)].filter(Boolean).join("\n")}`).join("\n\n") || "unchanged";

function drawEdits() {
  const edits = (epoch.edits ?? []).filter((edit) => edit.edit !== "kept"), kept = (epoch.edits ?? []).length - edits.length;
  put($("#ed-note"), `${count(edits.length, "edit")}; ${count(kept, "message")} of the beginning kept as they were`);
  if (!edits.length) { put($("#edits"), emptyState("No edit is known", "This epoch leaves the messages as they are, or its content was erased.")); return; }
  put($("#edits"), edits.map((edit) => {
    const [kind, name] = KINDS[edit.edit] ?? ["tomb", edit.edit], from = edit.start ?? edit.place, to = (edit.stop ?? from + 1) - 1;
    const where = from == null ? "" : from === to ? `message ${from + 1}` : `messages ${from + 1} to ${to + 1}`;
    const found = references(edit.text ?? ""), original = h("pre", { class: "txt", tabindex: 0, hidden: true });
    const show = (found.length > 0 || (isNext() && from != null)) && h("button", { class: "btn small", type: "button", "data-orig": true, "data-walk": true, "aria-expanded": "false", onclick: async () => {
      original.hidden = !original.hidden;
      show.setAttribute("aria-expanded", String(!original.hidden));
      put(show, original.hidden ? "Show original" : "Hide original");
      if (!original.hidden && !original.textContent && isNext()) put(original, foreseen(from, to)); // its references are not stored yet
      if (!original.hidden && !original.textContent) { try { put(original, (await getText(`/refs/${found[0]}`, { page: "all" })).text); } catch (error) { put(original, error.message); } }
    } }, "Show original");
    return h("div", { class: "cmp-row one", vars: { "--c": `var(--k-${kind.startsWith("sum") ? "sum" : kind})` } }, h("div", { class: "side over" },
      h("div", { class: "blk-head" }, h("span", { class: `swatch k ${kind}` }), h("span", { class: "role" }, name), h("span", { class: "dim" }, where)),
      edit.text && h("pre", { class: "txt whole" }, edit.text), h("div", { class: "blk-acts" }, show, found.slice(0, 6).map((reference) => h("button", { class: "btn small quiet mono", type: "button", onclick: () => copy(`ref:${reference}`, `Copied ref:${reference}`) }, `ref:${reference}`)), found.length > 6 && h("span", { class: "faint" }, `and ${found.length - 6} references more`)), original));
  }));
}

function drawEpochs(items) {
  put($("#epochs"), items.length ? items.toReversed().map((each) => h("li", {}, h("a", { class: "at nowrap", href: `/-/sessions/${id}/epochs/${each.n}`, "data-walk": true, "aria-current": each.n === epoch.n ? "page" : null }, `epoch ${each.n}`), sign("epoch"),
    h("span", { class: "title" }, `${short(each.tokens_before)} \u2192 ${short(each.tokens_after)}${each.call ? `, call ${each.call}` : ""}`), h("span", { class: "num dim" }, price(each.cost)), h("span", { class: "text" }, `${clock(each.at_ms ?? each.opened_ms)}. ${each.explanation ?? each.why}`)))
    : h("li", {}, "No epoch yet."));
}

export async function show() {
  epoch = first();
  id = location.pathname.split("/")[3];
  drawHead();
  drawStrip();
  drawEdits();
  const [found, all] = await Promise.all([get(`/sessions/${id}`).catch(() => null), get(`/sessions/${id}/epochs`, { limit: 1000 }).catch((error) => error)]);
  session = found?.session ?? null;
  if (!isNext() && !(all instanceof Error)) epoch = { ...all.items.find((each) => each.n === epoch.n), ...epoch };
  drawHead();
  drawStrip();
  if (all instanceof Error) put($("#epochs"), errorState(all)); else drawEpochs(all.items ?? all);
}
