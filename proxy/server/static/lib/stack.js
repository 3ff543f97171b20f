/* Two bars on one scale: what came in above, what went out below, bands between. */
import { put, s } from "./dom.js";
import { int, percent, short } from "./format.js";

/* `flows`: [kind in, label, tokens in, kind out, tokens out]; a kind "gone" is hatched. */
export function drawStack(box, flows, client, sent) {
  const width = Math.max(300, box.clientWidth), small = width < 560, scale = width / Math.max(client, sent, 1);
  const top = 24, low = 104, tall = 28;
  const parts = [s("defs", {}, s("pattern", { id: "hatch2", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("line", { class: "hatch-line", x1: 0, y1: 0, x2: 0, y2: 5 })))];
  const look = (kind) => `f-${kind.startsWith("sum") ? "sum" : kind}`;
  /* Edits are counted one by one, and the whole by the provider: where they come to more, they share it. */
  const fit = (place, whole) => Math.min(1, whole / Math.max(1, flows.reduce((total, flow) => total + flow[place], 0)));
  const fitIn = fit(2, client), fitOut = fit(4, sent);
  let a = 0, b = 0;
  for (const [kindIn, label, countIn, kindOut, countOut] of flows) {
    const tokensIn = countIn * fitIn, tokensOut = countOut * fitOut, w = tokensIn * scale, v = tokensOut * scale;
    parts.push(s("path", { class: `flowband ${look(kindOut)}`, d: `M${a} ${top + tall}H${a + w}L${b + v} ${low}H${b}Z` }));
    if (tokensIn > 0) parts.push(s("rect", { class: kindIn === "gone" ? "gone" : look(kindIn), x: a, y: top, width: Math.max(1, w - 1), height: tall }));
    if (kindIn === "gone" && w > 44) parts.push(s("text", { class: "in", x: a + w / 2 - 1, y: top + tall / 2 + 4, "text-anchor": "middle" }, w > 130 ? `${label}, ${short(tokensIn)}` : short(tokensIn)));
    if (tokensOut > 0) parts.push(s("rect", { class: look(kindOut), x: b, y: low, width: Math.max(1, v - 1), height: tall }));
    a += w;
    b += v;
  }
  const back = client - sent;
  parts.push(s("text", { class: "b", x: 0, y: 14 }, `Client sent ${int(client)}`), s("text", { class: "b", x: 0, y: low + tall + 18 }, `Upstream received ${int(sent)}`),
    s("text", { x: width, y: 14, "text-anchor": "end" }, small ? "" : "hatched: held back, stored, one click away"),
    s("text", { x: width, y: low + tall + 18, "text-anchor": "end" }, back <= 0 ? "all of it" : small ? `${percent(back / client)} held back` : `${int(back)} held back, ${percent(back / client)}`));
  put(box, s("svg", { class: "stack", viewBox: `0 0 ${width} 160`, preserveAspectRatio: "none", role: "img", "aria-label": `Client sent ${int(client)} tokens, upstream received ${int(sent)}.` }, parts));
}
