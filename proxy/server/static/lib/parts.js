/* Parts that all pages share: signs, icons, number strips, dialogs, notes, states. */
import { $, h, put, s } from "./dom.js";
import { int } from "./format.js";

const SIGNS = {
  epoch: "M8 2.5 14.5 13.5H1.5Z",
  error: "M3 1.6 8 6.6 13 1.6 14.4 3 9.4 8 14.4 13 13 14.4 8 9.4 3 14.4 1.6 13 6.6 8 1.6 3Z",
  cache: "M9.5 1 3 9h4l-1 6 7-8.5H8.6Z",
  loop: "M13.5 8a5.5 5.5 0 1 1-1.8-4.1M13.8 1.6v3.1h-3.1",
  good: "M6.3 13.2 1.4 8.4 3 6.8l3.3 3.2L13 3l1.6 1.5Z",
  warn: "M8 1.5 15 14H1ZM7.2 6v4h1.6V6Zm0 5v1.6h1.6V11Z",
  held: "M1 15 15 1M1 9 9 1M7 15l8-8",
};
export const sign = (name, label) => s("svg", { class: `sign ${name}`, viewBox: "0 0 16 16", role: label ? "img" : null, "aria-label": label, "aria-hidden": label ? null : "true" },
  s("path", { d: SIGNS[name], "fill-rule": name === "warn" ? "evenodd" : null, ...(name === "held" ? { fill: "none", stroke: "currentColor", "stroke-width": 1.5 } : {}) }));

export const ICONS = {
  prev: "M10 3 5 8l5 5", next: "M6 3l5 5-5 5", pause: "M5.5 3v10M10.5 3v10", play: "M5 3l8 5-8 5Z",
  copy: "M5.5 5.5V2.5h8v8h-3M2.5 5.5h8v8h-8Z", back: "M6 4 2.5 7.5 6 11M3 7.5h6.5a4 4 0 0 1 0 8",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1Z", auto: "M8 2a6 6 0 1 0 0 12ZM8 2a6 6 0 0 1 0 12",
  help: "M5.8 6a2.2 2.2 0 1 1 3.2 2c-.7.4-1 .8-1 1.6M8 12v.2",
};
export const icon = (name) => s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));

/* Two tones on one scale: what was sent, solid, of what the client sent, hatched. */
export const duo = (client, sent, most) => h("span", {
  class: "duo", role: "img", "aria-label": `${int(sent)} of ${int(client)} tokens sent`,
  vars: { "--w": `${Math.max(1, (client / (most || client || 1)) * 100)}%`, "--f": `${Math.min(100, (sent / (client || 1)) * 100)}%` },
});

/* A strip of figures: [label, figure, unit, note, class]. */
export const strip = (element, items) => put(element, items.map(([label, figure, unit, note, look]) =>
  h("div", {}, h("dt", {}, label), h("dd", { class: `big ${look ?? ""}` }, figure, unit && h("span", { class: "unit" }, ` ${unit}`)), h("dd", { class: "sub" }, note ?? ""))));

let hiding = 0;
export function say(text) {
  $(".toast")?.remove();
  document.body.append(h("div", { class: "toast", role: "status" }, text));
  clearTimeout(hiding);
  hiding = setTimeout(() => $(".toast")?.remove(), 5000);
}

/* Ask before something is done, with its price. `act` returns what is said afterwards, and may fail. */
export function ask(title, text, verb, act, { danger = false, extra = [] } = {}) {
  const note = h("p", { class: "small neg", role: "alert" });
  const confirm = h("button", { class: danger ? "btn danger" : "btn", type: "button", onclick: async () => {
    confirm.disabled = true;
    try { const told = await act(box); box.close(); if (told) say(told); } catch (error) { put(note, error.message); confirm.disabled = false; }
  } }, verb);
  const box = h("dialog", { "aria-labelledby": "ask-h" }, h("h2", { id: "ask-h" }, title), h("p", { class: "dim" }, text), extra, note,
    h("div", { class: "acts" }, h("button", { class: "btn quiet", type: "button", onclick: () => box.close() }, "Cancel"), confirm));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

/* The states of a part of a page: empty, an error. A page's error never suggests that calls fail. */
export const emptyState = (title, text, command) => h("div", { class: "state" }, h("h2", {}, title), h("p", {}, text), command && h("pre", { class: "cmd" }, command));
const FAULTS = { 401: "The token is missing or wrong", 403: "This is not allowed from here", 404: "There is no such thing", 409: "Not now", 410: "This was erased" };
const isAsked = (error) => error.status >= 400 && error.status < 500; // what was asked for is at fault, not the log
export const errorState = (error, retry) => h("div", { class: "state", role: "alert" },
  h("h2", {}, isAsked(error) ? FAULTS[error.status] ?? "This cannot be shown" : "The log did not answer"),
  h("p", {}, isAsked(error) ? error.message.replace(/^palimpsest: /, "") : "Calls are still being served; only this page is blind."),
  h("p", { class: "mono tiny" }, error.status ? `${error.status} ${error.type} \u00b7 ${error.message}` : error.message),
  retry && h("button", { class: "btn", type: "button", onclick: retry }, "Try again"));
export const bones = (rows, height = 44) => h("div", { "aria-busy": "true", "aria-label": "Loading" }, Array.from({ length: rows }, () => h("p", { vars: { "min-height": `${height - 16}px` } }, h("span", { class: "bone" }))));

export async function copy(text, told) {
  try { await navigator.clipboard.writeText(text); say(told); } catch { ask("Copy this", "The browser does not let a page copy here.", "Done", async () => "", { extra: [h("pre", { class: "txt", tabindex: 0 }, text)] }); }
}
