/* Health: is it serving, is everything on record, what needs somebody. */
import { first, get } from "../lib/api.js";
import { $, h, put } from "../lib/dom.js";
import { bytes, count, int, seconds } from "../lib/format.js";
import { emptyState, errorState, sign } from "../lib/parts.js";

const VERDICTS = { ready: "Serving, and all is well", degraded: "Serving, with something to know", starting: "Starting", draining: "Ending: calls under way are finished" };
const TOLD = {
  ready: "All calls go through, and all of them are on record.", dropped: "Calls go through. Some records were lost: see the log below.",
  degraded: "Calls go through. What stands below needs somebody.",
};
const STATES = { ok: ["good", "good"], warning: ["warn", "warn"], fault: ["error", "bad"] };
const words = (name) => name.replaceAll("_", " ").replace(/^is /, "");
const EVERY = 10_000;
let health;

function draw() {
  put($("#verdict"), VERDICTS[health.status] ?? health.status);
  put($("#lede"), TOLD[health.status === "ready" && health.log.dropped ? "dropped" : health.status] ?? "");
  put($("#acts"), h("a", { class: "btn", href: "/-/metrics" }, "metrics"), h("a", { class: "btn", href: "/-/health.json" }, ".json"), h("a", { class: "btn", href: "/-/api" }, "API"));
  put($("#alerts"), (health.reasons ?? []).map((reason) => h("div", { class: "alert bad", role: "alert" }, h("strong", {}, health.status), h("span", {}, reason))));
  const { log, index } = health;
  put($("#log"), [
    ["The log", log.problem || "in order"], ["Waiting to be written", log.pending ? `${count(log.pending, "record")}, ${bytes(log.pending_bytes)}` : "nothing"],
    ["Not recorded", log.dropped ? count(log.dropped, "record") : "nothing"], ["Lost at the last stop", log.lost_at_stop ? count(log.lost_at_stop, "record") : "nothing"],
    ["Search", index.fault || (index.is_rebuilding ? "the index is made anew" : index.behind ? `${count(index.behind, "record")} behind, ${seconds(index.behind_seconds)}` : "follows the log")],
    ["Size of the index", bytes(index.size)], ["Passages by meaning", index.vectors ? int(index.vectors) : "none: no embedding model is set"],
  ].flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  const upstreams = Object.entries(health.upstreams ?? {});
  put($("#ups"), upstreams.length ? h("table", {}, h("thead", {}, h("tr", {}, ["Upstream", "State", "Failures in a row", "The last one"].map((name, i) => h("th", { scope: "col", class: i === 2 ? "num" : null }, name)))),
    h("tbody", {}, upstreams.map(([name, each]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "nowrap" }, each.circuit === "open" ? h("span", { class: "tag bad" }, sign("error"), "failing") : h("span", { class: "tag good" }, sign("good"), "no fault")), h("td", { class: "num" }, int(each.failures ?? 0)), h("td", { class: "dim" }, each.last || "\u2013")))))
    : emptyState("No upstream is set", "Calls go nowhere."));
  put($("#settings"), (health.settings ?? []).flatMap((each) => [h("dt", {}, each.label), h("dd", {}, each.text)]));
}

function drawFindings(findings) {
  const faults = findings.filter((each) => each.state === "fault").length, warnings = findings.filter((each) => each.state === "warning").length;
  put($("#doc-note"), faults ? count(faults, "fault") : warnings ? count(warnings, "warning") : "no fault");
  put($("#findings"), findings.map((each) => {
    const [shape, look] = STATES[each.state] ?? ["warn", "warn"];
    return h("li", { class: look }, sign(shape, each.state), h("span", { class: "p-name" }, words(each.name)), h("span", { class: "p-text" }, each.sentence, each.advice && each.state !== "ok" ? h("span", { class: "dim" }, ` ${each.advice}`) : ""));
  }));
}

async function check() {
  $("#doctor").disabled = true;
  put($("#doc-note"), "checking\u2026");
  try {
    const found = await get("/doctor");
    drawFindings(found.findings ?? found.items ?? found);
  } catch (error) { put($("#findings"), errorState(error, check)); put($("#doc-note"), ""); }
  $("#doctor").disabled = false;
}

export async function show() {
  health = first();
  draw();
  $("#doctor").addEventListener("click", check);
  setInterval(async () => {
    if (document.hidden) return;
    try { health = await get("/health"); draw(); } catch (error) { put($("#verdict"), "The proxy does not answer"); put($("#lede"), error.message); }
  }, EVERY);
  await check();
}
