/* "Client sent" beside "upstream received": runs of unchanged messages folded, each edit with its reason and its original. */
import { h, put, s } from "./dom.js";
import { count, int } from "./format.js";
import { copy, ICONS } from "./parts.js";

const REFERENCE = /\bref:([a-z0-9]{10})\b/g;
export const references = (text) => [...new Set([...text.matchAll(REFERENCE)].map((match) => match[1]))];

/* What an edit is, from what was sent in its place: its kind (for its colour), its name, and the reason for it. */
export function classify(change) {
  const text = change.sent.map((side) => side.text).join("\n");
  const outputs = change.client.filter((side) => side.role === "tool").length;
  if (!change.client.length) return { kind: "pinned", name: "added", type: "add", why: "Added by the proxy; the client did not send it." };
  if (!change.sent.length) return { kind: "tomb", name: "left out", type: "tomb", why: `${count(change.client.length, "message")} left out; the ledger or a summary beside tells them.` };
  if (/^\[FILE: /m.test(text) || /\[file\b/i.test(text)) return { kind: "file", name: "file reference", type: "file", why: "A large file: its outline stays, the text is one recall away." };
  if (change.client.length > 3) return { kind: "sum1", name: "ledger", type: "sum", why: `${count(change.client.length, "message")}, ${count(outputs, "tool output")} of them, told step by step; each line names its original.` };
  if (change.client.length === 1 && change.client[0].role !== "tool") return { kind: "tomb", name: "shortened", type: "tomb", why: "A long message: what is said elsewhere is left out, the whole is one recall away." };
  return { kind: "tomb", name: "tombstone", type: "tomb", why: "An older tool output: what it was stays, the text is one recall away." };
}

/* Words that the other side does not have, as marks. Common beginnings and ends are left alone. */
export function wordDiff(before, after) {
  const known = new Set(before.split(/\s+/)), out = [];
  let run = "";
  const flush = () => {
    const match = /^(.*?)(\s*)$/s.exec(run);
    if (match[1]) out.push(h("ins", {}, match[1]));
    out.push(match[2]);
    run = "";
  };
  for (const word of after.split(/(\s+)/)) {
    if (/^\s*$/.test(word) ? run && !word.includes("\n") : !known.has(word)) run += word;
    else { flush(); out.push(word); }
  }
  flush();
  return out;
}

const sideText = (side) => (side.text || side.calls.length ? [side.text, ...side.calls.map((name) => `\u2192 calls ${name}`)].filter(Boolean).join("\n") : "(empty)");

export function foldRow(label, note, tokens, load) {
  const body = h("ol", { hidden: true });
  let loaded = false;
  const button = h("button", { type: "button", "aria-expanded": "false", "data-walk": true, onclick: async () => {
    body.hidden = !body.hidden;
    button.setAttribute("aria-expanded", String(!body.hidden));
    if (!loaded && !body.hidden) { loaded = true; put(body, await load()); }
  } }, s("svg", { class: "icon chev", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: ICONS.next })), h("span", {}, label), h("span", { class: "faint" }, note), h("span", { class: "sz" }, tokens));
  return h("div", { class: "cmp-row fold" }, h("div", {}, button, body));
}

export function editRow(change, view, pin) {
  const { kind, name, type, why } = classify(change);
  const tokens = (sides) => sides.reduce((total, side) => total + side.tokens, 0);
  const was = tokens(change.client), is = tokens(change.sent), saved = is - was;
  const found = [...new Set(change.sent.flatMap((side) => side.references ?? references(side.text)))];
  const before = change.client.map(sideText).join("\n\n"), after = change.sent.map(sideText).join("\n\n");
  const original = h("pre", { class: "txt", tabindex: 0 });
  const full = h("div", { class: "full", hidden: true }, h("div", { class: "blk-head" }, h("span", { class: "role" }, "Original"), h("span", { class: "dim" }, `exactly as the client sent it, ${int(was)} tok`)), original);
  const show = change.client.length > 0 && h("button", { class: "btn small", type: "button", "data-orig": true, "data-walk": true, "aria-expanded": "false", onclick: () => {
    full.hidden = !full.hidden;
    show.setAttribute("aria-expanded", String(!full.hidden));
    put(show, full.hidden ? "Show original" : "Hide original");
    if (!full.hidden) put(original, before);
  } }, "Show original");
  const places = change.client.length === 1 ? `message ${change.start + 1}` : `messages ${change.start + 1} to ${change.stop}`;
  return h("div", { class: `cmp-row ${type}`, vars: { "--c": `var(--k-${kind.startsWith("sum") ? "sum" : kind})` } },
    h("div", { class: change.client.length ? "side was" : "side" }, change.client.length
      ? [h("div", { class: "blk-head" }, h("span", { class: "role" }, [...new Set(change.client.map((side) => side.role))].join(", ")), h("span", { class: "dim" }, places), h("span", { class: "sz" }, `${int(was)} tok`)), h("pre", { class: `txt ${before.length < 120 ? "whole" : ""}` }, before.slice(0, 4000))]
      : h("span", { class: "empty-side" }, "not sent by the client")),
    h("div", { class: "gut" }, h("span", { class: `swatch k ${kind}` }), h("span", {}, name), h("span", { class: "delta" }, (saved > 0 ? "+" : "") + int(saved))),
    h("div", { class: "side over" }, h("div", { class: "blk-head" }, h("span", { class: "role" }, change.sent.length ? [...new Set(change.sent.map((side) => side.role))].join(", ") : "nothing"), h("span", { class: "sz" }, `${int(is)} tok`)),
      h("pre", { class: "txt" }, view === "diff" && change.client.length ? wordDiff(before, after) : after || "(left out)"),
      h("p", { class: "why" }, why),
      h("div", { class: "blk-acts" }, show, change.client.length === 1 && h("button", { class: "btn small", type: "button", title: "Keep it word for word in every epoch from the next on", onclick: () => pin(change.start) }, "Bring back"), found.slice(0, 8).map((reference) => h("button", { class: "btn small quiet mono", type: "button", "aria-label": `Copy reference ${reference}`, onclick: () => copy(`ref:${reference}`, `Copied ref:${reference}`) }, `ref:${reference}`)), found.length > 8 && h("span", { class: "faint" }, `and ${found.length - 8} references more`))),
    full);
}
