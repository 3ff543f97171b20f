/* Messages as people read them: what was said and thought, and calls of tools as one line each, opened by a click. */
import { h, put } from "./dom.js";
import { clock, int, seconds } from "./format.js";
import { sign } from "./parts.js";

const ROLES = { user: "User", assistant: "Model", tool: "Tool", system: "System", developer: "Developer" };
export const roleName = (role) => ROLES[role] ?? (role || "Unknown role");

/* Text with its fenced code, `code` and **strong** words set apart. Everything else stays as it was written. */
const inline = (text) => text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((each, i) => (i % 2 ? h(each[0] === "`" ? "code" : "strong", {}, each[0] === "`" ? each.slice(1, -1) : each.slice(2, -2)) : each));
export function prose(text) {
  return h("div", { class: "said" }, text.split(/^(```[^\n]*\n[\s\S]*?^```[ \t]*$)/m).map((each, i) => {
    if (i % 2) return h("pre", { class: "txt code" }, each.replace(/^```[^\n]*\n/, "").replace(/\n?```[ \t]*$/, ""));
    const told = each.replace(/^\n+|\s+$/g, "");
    return told && h("p", { class: "txt prose" }, inline(told));
  }));
}

/* The arguments of a call: each with its name; texts as they are, without the escapes of JSON. */
const tell = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
const write = (input) => {
  if (input == null || typeof input !== "object" || Array.isArray(input)) return input == null ? "" : tell(input);
  return Object.entries(input).map(([name, value]) => { const text = tell(value); return `${name}:${text.includes("\n") ? "\n" : " "}${text}`; }).join("\n") || "{}";
};
/* The arguments of a call in a line: its values, the shortest names left out. */
const brief = (input) => {
  if (input == null || typeof input !== "object") return write(input);
  const values = Object.entries(input).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
  return (values.length === 1 ? values[0][1] : values.map(([name, value]) => `${name}: ${value}`).join(", ")) ?? "";
};
const lines = (text) => text.replace(/\s+/g, " ").slice(0, 240);

const block = (title, text) => [h("p", { class: "tiny faint" }, title), h("pre", { class: "txt out", tabindex: 0 }, text)];

/* A fold whose content is made when it is first opened. */
function fold(look, head, fill, open) {
  const body = h("div", { class: "fold-in" });
  const box = h("details", { class: look }, h("summary", { "data-walk": true }, head), body);
  const draw = () => { if (box.open && !body.childNodes.length) put(body, fill()); };
  box.addEventListener("toggle", draw);
  if (open) { box.open = true; draw(); }
  return box;
}

const STATES = { completed: ["good", "completed"], error: ["error", "failed"], pending: ["", ""], running: ["", ""] };
const CUT = 4000; // where the API cuts texts of a piece of a conversation
function toolLine(part, { open, plain, note, cut }) {
  const { state, started_at: began, completed_at: ended, compacted_at: held, error_message: fault } = part.status;
  const [shape, label] = plain ? ["", ""] : STATES[state] ?? ["", ""];
  const size = part.output == null ? (plain ? "" : "no output yet") : part.output === "" ? "no output" : `${cut && part.output.length === CUT ? "more than " : ""}${int(part.output.length)} characters`;
  return fold(`tcall${held ? " back" : ""}`, [
    h("span", { class: "tsign" }, shape ? sign(shape, label) : h("span", { class: "dot idle", role: "img", "aria-label": plain ? "call" : "no output yet" })),
    h("span", { class: "tname" }, part.tool_name || "result of an unknown call"), h("span", { class: "targs" }, lines(brief(part.input))),
    h("span", { class: "tend" }, note && h("span", { class: "tag warn" }, sign("loop"), note), held && h("span", { class: "swatch k tomb", role: "img", "aria-label": "held back", title: `held back: since ${clock(held)} models are sent something shorter in place of the output` }), size && h("span", {}, size), began && ended && ended > began && h("span", { class: "took" }, seconds((ended - began) / 1000)))],
  () => [part.input != null && block("Arguments", write(part.input)), part.output != null && block(fault ? `Output: ${fault}` : "Output", part.output || "(nothing)"), part.output == null && part.input == null && h("p", { class: "dim" }, "Nothing is known of it.")], open);
}

/* What a part looks like; none of steps, patches and outlines, which the parts beside them show, too. */
export function drawParts(parts, options = {}) {
  return parts.map((part, i) => {
    if (part.type === "text") return prose(part.text);
    if (part.type === "reasoning") return fold("thought", [h("span", { class: "tname" }, "Thought"), h("span", { class: "targs" }, lines(part.text))], () => h("p", { class: "txt prose" }, part.text), options.open);
    if (part.type === "tool") return toolLine(part, { ...options, note: options.notes?.[i] });
    if (part.type === "compaction") return h("p", { class: "note-line" }, sign("epoch"), `A summary of ${int(part.compacted_message_count)} messages was made up to here. `, options.session && h("a", { href: `/-/sessions/${options.session}/summaries` }, "Summaries"));
    return null;
  });
}

export const shown = (parts) => parts.filter((part) => ["text", "reasoning", "tool", "compaction"].includes(part.type));
