/* Keyboard, theme and help: the same on every page. */
import { $, $$, h, put } from "./dom.js";
import { icon } from "./parts.js";

const KEYS = [["/", "Go to search or filter"], ["j  k", "Next, previous row"], ["Enter", "Open the row"], ["o", "Show or hide the original of an edit"], ["[  ]", "Previous, next call"],
  ["\u2190  \u2192", "Move along the timeline or the graph"], ["p", "Pause or resume the live tail"], ["g s", "Sessions"], ["g f", "Search"], ["g h", "Health"], ["t", "Theme"], ["?", "These keys"], ["Esc", "Close, or clear the filter"]];
const PLACES = { s: "/-/", f: "/-/search", h: "/-/health" };

function help() {
  const box = h("dialog", { "aria-labelledby": "keys-h" }, h("h2", { id: "keys-h" }, "Keys"),
    h("dl", { class: "keys" }, KEYS.map(([keys, what]) => [h("dt", {}, keys.split("  ").map((key, i) => [i ? " " : "", h("kbd", {}, key)])), h("dd", {}, what)])),
    h("div", { class: "acts" }, h("button", { class: "btn", type: "button", onclick: () => box.close() }, "Close")));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

const theme = () => document.documentElement.dataset.theme ?? "auto";
function drawTheme() {
  const button = $("#theme");
  put(button, icon({ auto: "auto", light: "sun", dark: "moon" }[theme()]));
  button.setAttribute("aria-label", `Theme: ${theme()}. Change`);
}
function nextTheme() {
  const next = { auto: "light", light: "dark", dark: "auto" }[theme()];
  if (next === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
  try { if (next === "auto") localStorage.removeItem("palimpsest-theme"); else localStorage.setItem("palimpsest-theme", next); } catch { /* for this page only */ }
  drawTheme();
}

/* Rows that j and k walk along. The focus itself is the cursor, so that assistive tools see it, too. */
function walk(step) {
  const rows = $$("[data-walk]").filter((row) => row.offsetParent);
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step))].focus();
}

/* What keys do on this page; views add theirs. */
export const keys = { "/": () => ($("#filter") ?? $("#q") ?? $("#quick"))?.focus(), j: () => walk(1), k: () => walk(-1), "?": help, t: nextTheme };

let leader = false;
function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && !/^(checkbox|radio)$/.test(event.target.type);
  if (typing) {
    if (event.key === "Escape") { event.target.value = ""; event.target.dispatchEvent(new Event("input")); event.target.blur(); }
    return;
  }
  if (leader) { leader = false; if (PLACES[event.key]) location.href = PLACES[event.key]; return; }
  if (event.key === "g") { leader = true; setTimeout(() => { leader = false; }, 900); return; }
  if (keys[event.key]) { event.preventDefault(); keys[event.key](event); }
}

export function start() {
  document.addEventListener("keydown", press);
  drawTheme();
  put($("#help"), icon("help"));
  $("#help").addEventListener("click", help);
  $("#theme").addEventListener("click", nextTheme);
}
