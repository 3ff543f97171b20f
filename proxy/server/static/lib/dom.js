/* Builders of elements. All text enters the page as text nodes, so that nothing that was recorded can run. */
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "vars") for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else if (key === "data") Object.assign(element.dataset, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...flatten(children));
  return element;
}

const flatten = (children) => children.flat(Infinity).filter((child) => child != null && child !== false)
  .map((child) => (child instanceof Node ? child : document.createTextNode(show(child))));

/* Characters that would change the direction or the look of the text around them are shown by their names. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
/* Colours of terminals are left out: the raw bytes have them. */
const TERMINAL = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;
export const show = (value) => String(value).replace(TERMINAL, "").replace(UNSEEN, (c) => (c === "\r" ? "" : `\u2039U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u203a`));

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
export const put = (element, ...children) => { element.replaceChildren(...flatten(children)); return element; };
